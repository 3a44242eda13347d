"""The example files for Slurm and Kubernetes: linters accept them, they fit together, and what they write can be read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from myxtts.cli.main import make_parser
from myxtts.cluster.spec import find_cluster
from myxtts.errors import choose_exit_code
from tests.support.processes import ROOT

SBATCH = ROOT / "examples" / "slurm" / "train.sbatch"
MANIFEST = ROOT / "examples" / "kubernetes" / "train.yaml"
# Beside Python, where pip puts programs, whatever else is on the path.
SHELLCHECK = Path(sys.executable).parent / "shellcheck"
YAMLLINT = (sys.executable, "-m", "yamllint", "--strict", "--config-file", str(ROOT / ".yamllint.yaml"))

# Fields of the kinds that are used here, as Kubernetes' own schemas name them.
FIELDS = """
    apiVersion kind metadata name labels annotations spec clusterIP publishNotReadyAddresses selector data podSelector
    matchLabels policyTypes ingress from completionMode parallelism completions backoffLimit podFailurePolicy rules action
    onPodConditions type status onExitCodes operator values containerName template subdomain restartPolicy
    terminationGracePeriodSeconds containers image command args env value valueFrom fieldRef fieldPath ports containerPort
    protocol resources limits requests volumeMounts mountPath readOnly volumes persistentVolumeClaim claimName configMap
    emptyDir medium sizeLimit
"""
FREE = ("labels", "annotations", "selector", "matchLabels", "data", "limits", "requests")
"""Below these, whoever writes the file chooses the names."""


def list_fields(value, is_free=False):
    """The names of all fields that are not free."""
    if isinstance(value, list):
        return [name for each in value for name in list_fields(each)]
    if not isinstance(value, dict):
        return []
    below = [name for key, inner in value.items() for name in list_fields(inner, is_free=key in FREE)]
    return below if is_free else [*value, *below]


@pytest.fixture(scope="module")
def objects():
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


def test_the_manifest_has_only_fields_that_kubernetes_knows(objects):
    versions = {kind: content["apiVersion"] for kind, content in objects.items()}
    assert versions == {"Service": "v1", "ConfigMap": "v1", "NetworkPolicy": "networking.k8s.io/v1", "Job": "batch/v1"}
    assert set(list_fields(list(objects.values()))) <= set(FIELDS.split())
    assert "paralellism" in list_fields({**objects["Job"]["spec"], "paralellism": 2}), "a wrong one would be found"


def test_the_parts_of_the_manifest_belong_together(objects, tmp_path):
    job, service = objects["Job"], objects["Service"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(objects["ConfigMap"]["data"]["cluster.yaml"], encoding="utf-8")
    spec = find_cluster(str(cluster), 1, {})
    assert spec.size == job["spec"]["parallelism"] == job["spec"]["completions"]
    name, domain = job["metadata"]["name"], pod["subdomain"]
    # Kubernetes gives the pods of an indexed job the host names <job>-<index>.
    assert [address.host for address in spec.workers] == [f"{name}-{index}.{domain}" for index in range(spec.size)]
    assert service["metadata"]["name"] == domain
    assert service["spec"]["selector"] == {"job-name": name}, "the label that a job gives its pods"
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {spec.workers[0].port, spec.control.port}
    fenced = objects["NetworkPolicy"]["spec"]
    assert fenced["podSelector"]["matchLabels"] == {"job-name": name}
    assert fenced["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == {"job-name": name}
    assert container["command"] == ["myxtts", "train"]
    given = make_parser("train", "myxtts train").parse_all(container["args"]).given
    assert given["training.cluster"].value == "/etc/myxtts/cluster.yaml"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_a_worker_that_is_asked_to_stop_uses_up_no_attempt(objects):
    spec = objects["Job"]["spec"]
    rules = {rule["action"] for rule in spec["podFailurePolicy"]["rules"]}
    (codes,) = (rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule)
    assert rules == {"Ignore"}
    assert codes == {"operator": "In", "values": [choose_exit_code(signal.SIGTERM, is_worker=True)]}
    # Kubernetes takes a failure policy with no other.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def lint(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout


def test_the_linters_accept_the_scripts_and_the_manifest_and_can_find_something(tmp_path):
    assert lint(SHELLCHECK, SBATCH, *(ROOT / "examples").glob("*.sh")) == ""
    assert lint(*YAMLLINT, MANIFEST) == ""
    script, manifest = tmp_path / "train.sbatch", tmp_path / "train.yaml"
    script.write_text("#!/bin/bash\nrm -rf $1/*\n", encoding="utf-8")
    manifest.write_text("---\nname: myxtts\nname: other\n", encoding="utf-8")
    assert "SC2086" in lint(SHELLCHECK, script)
    assert "duplication of key" in lint(*YAMLLINT, manifest)


SLURM_PROGRAMS = {
    "scontrol": """
        case $1 in
        show) printf 'node-a\\nnode-b\\n' ;;
        *) echo "$@" >>"$TOLD/asked" ;;
        esac""",
    "srun": """
        while [ "$1" != bash ]; do shift; done
        for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" || code=$?; done
        exit ${code:-0}""",
    "myxtts": """
        printf '%s\\n' "$@" >"$TOLD/$SLURM_PROCID"
        echo "$SRUN_CPUS_PER_TASK" >"$TOLD/cores"
        exit $ENDS_WITH""",
}
"""In the place of Slurm's, and of what it starts: they note what they are told."""


class Slurm:
    """A cluster that is made up."""

    def __init__(self, folder):
        self._folder = folder
        (folder / "bin").mkdir()
        for name, code in SLURM_PROGRAMS.items():
            (folder / "bin" / name).write_text(f"#!/bin/bash{code}\n", encoding="utf-8")
            (folder / "bin" / name).chmod(0o755)

    def run(self, *words, job=123456, ends_with=0, restarts=0):
        """The exit code of the script."""
        environ = {
            "PATH": f"{self._folder}/bin:{os.environ['PATH']}", "TOLD": str(self._folder), "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": "node-[a-b]", "ENDS_WITH": str(ends_with), "SLURM_CPUS_PER_TASK": "8",
        }  # fmt: skip
        if restarts:
            environ["SLURM_RESTART_COUNT"] = str(restarts)
        return subprocess.run(["bash", str(SBATCH), "corpus", "codec", *map(str, words)], env=environ).returncode

    def read(self, name):
        path = self._folder / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    def read_given(self, index):
        """The settings that a worker was started with."""
        command, *words = self.read(str(index)).splitlines()
        assert command == "train"
        return {key: each.value for key, each in make_parser("train", "myxtts train").parse_all(words).given.items()}

    def read_cluster(self, index=0):
        return find_cluster(self.read_given(index)["training.cluster"], index, {})


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def test_the_batch_script_starts_a_worker_on_every_node(slurm, tmp_path):
    run = tmp_path / "my run"
    assert slurm.run(run, "--epochs", "3") == 0
    for index in (0, 1):
        given = slurm.read_given(index)
        assert given["training.worker_index"] == str(index)
        assert given["training.checkpoint_dir"] == str(run)
        assert given["training.epochs"] == "3"
        spec = slurm.read_cluster(index)
        assert [address.host for address in spec.workers] == ["node-a", "node-b"]
        assert spec.rendezvous_s == 900
    assert slurm.read("cores") == "8\n", "as srun was told"


def test_jobs_that_follow_each_other_share_no_port(slurm, tmp_path):
    ports = []
    for job in range(5998, 6003):
        assert slurm.run(tmp_path / "run", job=job) == 0
        spec = slurm.read_cluster()
        ports += [spec.workers[0].port, spec.control.port]
    assert len(set(ports)) == len(ports)
    assert all(20000 <= port < 32768 for port in ports), "below those that Linux gives to whoever asks for any"


@pytest.mark.parametrize(
    ("ends_with", "restarts", "goes_on"),
    [
        (0, 0, False),
        (1, 0, True),
        (choose_exit_code(signal.SIGTERM, is_worker=True), 19, True),
        (1, 20, False),
        (2, 0, False),
    ],
)
def test_a_job_that_did_not_finish_goes_on_unless_it_cannot(slurm, tmp_path, ends_with, restarts, goes_on):
    assert slurm.run(tmp_path / "run", ends_with=ends_with, restarts=restarts) == ends_with
    assert slurm.read("asked") == ("requeue 123456\n" if goes_on else None)


def test_the_batch_script_says_how_it_is_used():
    done = subprocess.run(["bash", str(SBATCH)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: sbatch train.sbatch CORPUS CODEC RUN" in done.stderr

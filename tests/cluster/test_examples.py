"""The example files for Slurm and Kubernetes: they parse, they fit together, and what they write can be read."""

import os
import shutil
import subprocess

import pytest
import yaml

from myxtts.cli.train import build_parser
from myxtts.cluster.spec import find_cluster
from tests.support.processes import ROOT

SBATCH = ROOT / "examples" / "slurm" / "train.sbatch"
MANIFEST = ROOT / "examples" / "kubernetes" / "train.yaml"

# What Kubernetes' own schemas say of the kinds used here, as far as the examples use them: field -> type, or a schema.
_LABELS = {"*": str}
_META = {"name!": str, "labels": _LABELS, "annotations": _LABELS}
_SELECTOR = {"matchLabels": _LABELS}
_CONTAINER = {
    "name!": str,
    "image!": str,
    "command": [str],
    "args": [str],
    "env": [{"name!": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath!": str}}}],
    "ports": [{"containerPort!": int, "name": str, "protocol": str}],
    "resources": {"limits": {"*": (str, int)}, "requests": {"*": (str, int)}},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
_VOLUME = {
    "name!": str,
    "persistentVolumeClaim": {"claimName!": str},
    "configMap": {"name!": str},
    "emptyDir": {"medium": str, "sizeLimit": str},
}
_POD = {
    "subdomain": str,
    "restartPolicy!": str,
    "terminationGracePeriodSeconds": int,
    "containers!": [_CONTAINER],
    "volumes": [_VOLUME],
}
SCHEMAS = {
    ("v1", "Service"): {
        "metadata!": _META,
        "spec!": {"clusterIP": str, "publishNotReadyAddresses": bool, "selector!": _LABELS},
    },
    ("v1", "ConfigMap"): {"metadata!": _META, "data": {"*": str}},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "metadata!": _META,
        "spec!": {"podSelector!": _SELECTOR, "policyTypes": [str], "ingress": [{"from": [{"podSelector": _SELECTOR}]}]},
    },
    ("batch/v1", "Job"): {
        "metadata!": _META,
        "spec!": {
            "completionMode": str,
            "parallelism": int,
            "completions": int,
            "backoffLimit": int,
            "template!": {"metadata": {"labels": _LABELS}, "spec!": _POD},
        },
    },
}


def check(value, schema, path):
    if isinstance(schema, list):
        assert isinstance(value, list), path
        for number, each in enumerate(value):
            check(each, schema[0], f"{path}[{number}]")
        return
    if not isinstance(schema, dict):
        kinds = schema if isinstance(schema, tuple) else (schema,)
        assert type(value) in kinds, f"{path}: {value!r}"
        return
    assert isinstance(value, dict), path
    known = {key.removesuffix("!"): inner for key, inner in schema.items()}
    missing = [key[:-1] for key in schema if key.endswith("!") and key[:-1] not in value]
    assert not missing, f"{path} lacks {missing}"
    for key, inner in value.items():
        assert key in known or "*" in known, f"{path}.{key} is no field"
        check(inner, known.get(key, known.get("*")), f"{path}.{key}")


@pytest.fixture(scope="module")
def objects():
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


def test_the_manifest_has_only_fields_that_kubernetes_knows(objects):
    for kind, content in objects.items():
        schema = SCHEMAS[(content.pop("apiVersion"), kind)]
        check({key: value for key, value in content.items() if key != "kind"}, schema, kind)


def test_a_wrong_field_would_be_found(objects):
    broken = {**objects["Job"]["spec"], "paralellism": 2}
    with pytest.raises(AssertionError, match="paralellism is no field"):
        check(broken, SCHEMAS["batch/v1", "Job"]["spec!"], "Job.spec")


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
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_command_of_the_manifest_is_one_of_ours(objects):
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["myxtts", "train"]
    arguments = build_parser("myxtts train").parse_all(container["args"])
    assert arguments.given["training.cluster"].value == "/etc/myxtts/cluster.yaml"


def test_the_batch_script_is_a_shell_script():
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
    checker = shutil.which("shellcheck")
    if checker is not None:
        subprocess.run([checker, str(SBATCH)], check=True)


def test_the_batch_script_starts_a_worker_on_every_node(tmp_path):
    """With programs of our own in the place of Slurm's: what it writes is read, and what it starts is parsed."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, code in {
        "scontrol": "printf 'node-a\\nnode-b\\n'",
        "srun": 'while [ "$1" != bash ]; do shift; done\nfor SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@"; done',
        "myxtts": 'printf "%s\\n" "$@" > "$TOLD/$SLURM_PROCID"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{code}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    environ = {
        "PATH": f"{tools}:{os.environ['PATH']}", "TOLD": str(tmp_path), "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node-[a-b]",
    }  # fmt: skip
    run = tmp_path / "my run"
    subprocess.run(["bash", str(SBATCH), "corpus", "codec", str(run), "--epochs", "3"], check=True, env=environ)
    for index in (0, 1):
        words = (tmp_path / str(index)).read_text(encoding="utf-8").splitlines()
        assert words[0] == "train"
        found = build_parser("myxtts train").parse_all(words[1:]).given
        given = {key: each.value for key, each in found.items()}
        assert given["training.worker_index"] == str(index)
        assert given["training.checkpoint_dir"] == str(run)
        assert given["training.epochs"] == "3"
        spec = find_cluster(given["training.cluster"], index, {})
        assert [address.host for address in spec.workers] == ["node-a", "node-b"]
        assert spec.rendezvous_s == 900


def test_the_batch_script_says_how_it_is_used():
    done = subprocess.run(["bash", str(SBATCH)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: sbatch train.sbatch CORPUS CODEC RUN" in done.stderr

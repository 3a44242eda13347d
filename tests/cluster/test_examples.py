"""The example files that start a Ray cluster: linters accept them, they fit together, and what they start can be parsed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from myxtts.cli.main import make_parser
from tests.support.processes import ROOT

# Beside Python, where pip puts programs, whatever else is on the path.
SHELLCHECK = Path(sys.executable).parent / "shellcheck"
YAMLLINT = (sys.executable, "-m", "yamllint", "--strict", "--config-file", str(ROOT / ".yamllint.yaml"))
SBATCH = ROOT / "examples" / "slurm" / "ray.sbatch"
MANIFEST = ROOT / "examples" / "kubernetes" / "rayjob.yaml"

# Of a RayJob, as KubeRay's reference of its API names them, and of what Kubernetes itself knows.
FIELDS = """
    apiVersion kind metadata name labels spec podSelector matchLabels policyTypes ingress from ports port protocol
    entrypoint shutdownAfterJobFinishes ttlSecondsAfterFinished backoffLimit rayClusterSpec rayVersion authOptions mode
    headGroupSpec rayStartParams template containers image env value resources limits volumeMounts mountPath volumes
    persistentVolumeClaim claimName emptyDir medium sizeLimit workerGroupSpecs groupName replicas minReplicas maxReplicas
    num-gpus
"""

FREE = ("labels", "annotations", "selector", "matchLabels", "data", "limits", "requests")
"""Below these, whoever writes the file chooses the names."""


def list_fields(value: Any, is_free: bool = False) -> list[str]:
    """The names of all fields that are not free."""
    if isinstance(value, list):
        return [name for each in value for name in list_fields(each)]
    if not isinstance(value, dict):
        return []
    below = [name for key, inner in value.items() for name in list_fields(inner, is_free=key in FREE)]
    return below if is_free else [*value, *below]


def lint(*words: object) -> str:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True).stdout


PROGRAMS = {
    "scontrol": """
        case $1 in
        show) printf 'node-a\\nnode-b\\nnode-c\\n' ;;
        *) echo "$@" >>"$TOLD/asked" ;;
        esac""",
    "srun": """
        while [ "$1" != bash ]; do shift; done
        for SLURM_PROCID in 0 1 2; do export SLURM_PROCID; "$@"; done""",
    "ray": """
        printf '%s\\n' "$@" >"$TOLD/ray-$SLURM_PROCID"
        env | grep ^RAY_ >"$TOLD/environ"
        stat -c %a "$RAY_AUTH_TOKEN_PATH" >"$TOLD/mode"
        cat "$RAY_AUTH_TOKEN_PATH" >"$TOLD/token"
        while [ "$1" != -- ]; do shift; done
        shift
        # Starts nothing where it is told so, and ends with 0 all the same, as the real one does.
        if [ "$SLURM_PROCID" = 0 ] && [ "$ENDS_WITH" != none ]; then "$@"; fi""",
    "myxtts": """
        printf '%s\\n' "$@" >"$TOLD/myxtts"
        exit "$ENDS_WITH\"""",
}
"""In the place of Slurm's, of Ray's and of ours: they note what they are told."""


def start(folder: Path, run: Path, ends_with: object = 0, restarts: int = 0) -> int:
    """The exit code of the script on a cluster of three nodes that is made up."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, code in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash{code}\n", encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    environ = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}", "TOLD": str(folder), "ENDS_WITH": str(ends_with),
        "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node-[a-c]", "SLURM_JOB_NUM_NODES": "3",
        "SLURM_GPUS_ON_NODE": "1", "SLURM_RESTART_COUNT": str(restarts),
    }  # fmt: skip
    return subprocess.run(["bash", str(SBATCH), "my corpus", str(run), "--epochs", "3"], env=environ).returncode


def test_the_linters_accept_the_scripts_and_the_manifest_and_can_find_something(tmp_path: Path) -> None:
    assert lint(SHELLCHECK, SBATCH, *(ROOT / "examples").glob("*.sh")) == ""
    assert lint(*YAMLLINT, MANIFEST) == ""
    script, manifest = tmp_path / "train.sbatch", tmp_path / "train.yaml"
    script.write_text("#!/bin/bash\nrm -rf $1/*\n", encoding="utf-8")
    manifest.write_text("---\nname: myxtts\nname: other\n", encoding="utf-8")
    assert "SC2086" in lint(SHELLCHECK, script)
    assert "duplication of key" in lint(*YAMLLINT, manifest)


def test_the_batch_script_trains_on_the_first_node_and_lets_the_others_prepare(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    assert start(tmp_path, run) == 0
    command, *words = (tmp_path / "myxtts").read_text().splitlines()
    assert command == "train"
    given = {key: each.value for key, each in make_parser("train", "myxtts train").parse_all(words).given.items()}
    assert given["training.preparers"] == "2"
    assert (given["data.train_data"], given["training.checkpoint_dir"]) == ("my corpus", str(run))
    assert given["training.epochs"] == "3"
    for number, gpus in ((0, "0"), (1, "1"), (2, "1")):
        told = (tmp_path / f"ray-{number}").read_text().splitlines()
        assert told[0] == "symmetric-run"
        assert told[told.index("--address") + 1] == given["training.cluster"]
        assert told[told.index("--num-gpus") + 1] == gpus, "the card that trains is not Ray's to give away"
        assert ("--include-dashboard=false" in told) == (number == 0), "`ray start` takes it for the head alone"
    assert given["training.cluster"].startswith("node-a:2")


def test_the_batch_script_makes_a_token_that_nobody_else_can_read_and_removes_it(tmp_path: Path) -> None:
    start(tmp_path, tmp_path / "run")
    environ = dict(line.split("=", 1) for line in (tmp_path / "environ").read_text().splitlines())
    assert environ["RAY_AUTH_MODE"] == "token"
    assert environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert (tmp_path / "mode").read_text() == "600\n"
    assert len((tmp_path / "token").read_text().strip()) == 64
    assert not Path(environ["RAY_AUTH_TOKEN_PATH"]).exists()


@pytest.mark.parametrize(
    ("ends_with", "restarts", "code", "goes_on"),
    [(0, 0, 0, False), (143, 0, 143, True), (1, 20, 1, False), (2, 0, 2, False), ("none", 0, 1, True)],
)
def test_a_job_that_did_not_finish_goes_on_unless_it_cannot(
    tmp_path: Path, ends_with: object, restarts: int, code: int, goes_on: bool
) -> None:
    assert start(tmp_path, tmp_path / "run", ends_with, restarts) == code
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else None) == ("requeue 123456\n" if goes_on else None)


def test_the_manifest_has_only_known_fields_and_its_parts_belong_together() -> None:
    objects: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}
    assert set(list_fields(list(objects.values()))) <= set(FIELDS.split())
    spec = objects["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    command, *words = shlex.split(spec["entrypoint"])
    assert (command, words[0]) == ("myxtts", "train")
    given = make_parser("train", "myxtts train").parse_all(words[1:]).given
    (group,) = cluster["workerGroupSpecs"]
    assert int(str(given["training.preparers"].value)) == group["replicas"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0", "its card trains"
    fenced = objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    for part in (cluster["headGroupSpec"], group):
        assert part["template"]["metadata"]["labels"] == fenced
        (container,) = part["template"]["spec"]["containers"]
        environ = {each["name"]: each["value"] for each in container["env"]}
        assert environ["RAY_USAGE_STATS_ENABLED"] == "0"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in part["template"]["spec"]["volumes"]}
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()

"""The repository itself: what is ignored, what stands at the root, and what make does."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from myxtts.cli.main import make_parser
from myxtts.config import resolve_config

ROOT = Path(__file__).resolve().parents[2]


def list_files(*patterns):
    """Files git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()


def test_only_four_pages_stand_at_the_root():
    pages = {path for path in list_files("*.md") if "/" not in path}
    assert pages == {"README.md", "README.fa.md", "CONTRIBUTING.md", "CHANGELOG.md"}


ROOMS = [path.name for path in (ROOT / "myxtts").iterdir() if path.is_dir() and path.name != "__pycache__"]


SOURCE = [
    *(f"myxtts/{room}/new_module.py" for room in ROOMS),
    "myxtts/data/demo/metadata.csv", "myxtts/data/demo/wavs/a.flac", "myxtts/models/checkpoint.py", "myxtts/build/x.py",
    "myxtts/dist/x.py", "myxtts/runs/x.py", "myxtts/checkpoints/x.py", "tests/data/test_x.py", "tests/assets/parity/a.npz",
    "tests/build/x.py", "configs/x.yaml", "docs/benchmarks/x.json", "benchmarks/x.py", "examples/x.py", "tools/x.py",
    "docs/en/build/x.md",
]  # fmt: skip
LEFT_BY_RUNS = [
    ".venv/bin/python",
    "checkpoints/run/x.safetensors",
    "evaluation/x.json",
    "spoken.wav",
    "myxtts/config/__pycache__/a.pyc",
]


def test_gitignore_keeps_out_what_runs_leave_behind_and_swallows_no_source(tmp_path):
    # In a repository of its own: here, a file that is already tracked would never count as ignored.
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    command = ["git", "check-ignore", *SOURCE, *LEFT_BY_RUNS]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.split() == LEFT_BY_RUNS


def test_no_machine_paths_and_no_package_addresses_are_committed():
    # Put together here so that this file does not find itself.
    forbidden = re.compile("/(" + "root|work|home" + r")/[a-z]|index-" + "url|trusted-" + "host")
    hits = []
    for path in list_files():
        file = ROOT / path
        if file.suffix in (".npz", ".flac", ".ogg", ".wav", ".png", ".pth") or not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        hits += [f"{path}: {match.group()}" for match in forbidden.finditer(text)]
    assert hits == []


@pytest.mark.parametrize(
    ("target", "gpu", "extras"),
    [("test", "yes", ".[gpu,dev]"), ("test", "", ".[dev]"), ("train", "yes", ".[gpu]"), ("train", "", '"."')],
)
def test_make_installs_the_extras_of_the_machine(target, gpu, extras, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    command = ["make", "--dry-run", target, f"HAS_GPU={gpu}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert extras in text
    assert ("--rehearsal" in text) == (target == "train" and not gpu)


def test_make_train_flags_are_flags_of_the_program():
    text = (ROOT / "Makefile").read_text()
    words = " ".join(re.findall(r"^(?:TRAIN_FLAGS +\?=|REHEARSAL :=)(.*)$", text, flags=re.MULTILINE))
    resolve_config(flags=make_parser("train", "train").parse_all(shlex.split(words)).given)

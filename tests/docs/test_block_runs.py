"""The blocks of the pages that are marked `run` or `rehearsal`, really run, each in a folder of its own."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from myxtts.data.ljspeech import demo_corpus_path
from tests.support.doc_blocks import (
    PARSE_ONLY,
    REHEARSAL,
    list_needed_runs,
    make_stand,
    read_all_blocks,
    split_commands,
)

pytestmark = pytest.mark.soak

BLOCKS = [block for block in read_all_blocks() if block.tag not in ("", PARSE_ONLY)]
SHORT = ["--model-size", "tiny", "--codec-steps", "2", "--max-steps", "2", "--batch-size", "4"]
"""What is added to training commands of a rehearsal: the pages speak of hours."""
SMALL = ["--model-size", "tiny", "--batch-size", "4"]
"""What is added to those that measure a run."""
MEASURING = ("myxtts profile", "myxtts diagnose")
MOST_SECONDS = 600


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a few updates."""
    folder = tmp_path_factory.mktemp("trained")
    make_stand(folder, demo_corpus_path())
    run("python train_main.py --train-data path/to/my_corpus --checkpoint-dir runs/voice " + " ".join(SHORT), folder)
    return folder / "runs" / "voice"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs(block, trained, tmp_path):
    make_stand(tmp_path, demo_corpus_path(), find_last(trained))
    for name in ("voice.wav", "me.wav", "a.wav", "b.wav"):
        shutil.copy(next((demo_corpus_path() / "wavs").glob("*.flac")), tmp_path / name)
    for name in ("text.txt", "book.txt"):
        (tmp_path / name).write_text("Good morning.")
    for name in list_needed_runs(block):
        shutil.copytree(trained, tmp_path / "runs" / name)
    if block.language == "python":
        subprocess.run([sys.executable, "-c", block.text], check=True, cwd=tmp_path, timeout=MOST_SECONDS)
        return
    for command in split_commands(block.text):
        run(shorten(command, trained) if block.tag == REHEARSAL else command, tmp_path)


def find_last(run):
    """The last checkpoint of a run."""
    return max(run.glob("step-*"))


def shorten(command, trained):
    command = re.sub(r"step-\d+", find_last(trained).name, command)
    if command.startswith(MEASURING):
        return shlex.join([*shlex.split(command), *SMALL])
    if "train_main.py" not in command or "--print" in command:
        return command
    # A decoder has no codec to train, and keeps the size of its model.
    added = SHORT if "--stage decoder" not in command else ["--max-steps", "2", "--batch-size", "4"]
    return shlex.join([*shlex.split(command), *added])


def run(command, folder):
    """Runs a command of a page on logical CPU devices; players are silent."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    player = tools / "aplay"
    player.write_text("#!/bin/sh\ncat > /dev/null\n")
    player.chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder, env={**os.environ, "PATH": path, "MYXTTS_REHEARSAL": "1", "PYTHONPATH": ""},
        capture_output=True, text=True, timeout=MOST_SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"

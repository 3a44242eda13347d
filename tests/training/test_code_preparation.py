"""Codes made by command are found by a run with the same settings, and the device is one such as the run's."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from myxtts.config import XTTSConfig
from myxtts.devices.planning import plan_preparing_device
from myxtts.errors import DevicePlanError
from tests.devices.test_plan import make_machine
from tests.support.tiny_run import run_command_tiny, run_tiny

CLIPS = 24
"""One of the corpus cannot be read."""


@pytest.fixture(scope="module")
def told(codec_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said when codes are made for a part of a corpus and for all of it, and then trained on."""
    folder = tmp_path_factory.mktemp("run")
    corpus = shutil.copytree(codec_run / "corpus", folder / "corpus")
    # Which part a clip is in follows from its time as well.
    for clip in (corpus / "wavs").iterdir():
        os.utime(clip, (1, 1))
    common = ("--train-data", corpus, "--codec", codec_run / "codec")
    words = (*common, "--rehearsal", "--deterministic", "--num-workers", "0")
    said, files = [], []
    for part in (("--part", "2/2"), ()):
        said.append(run_command_tiny("data-prepare", *words, *part, told=folder / "told"))
        files.append(sorted(corpus.glob(".myxtts/codes/*/*.npz")))
    run_tiny(folder / "run", *common, "--max-steps", "2", **{"data.cache": "disk"})
    files.append(sorted(corpus.glob(".myxtts/codes/*/*.npz")))
    return {"output": "".join(said), "files": files, "corpus": corpus, "codec": codec_run / "codec"}


def test_the_command_tells_what_it_made_what_codes_depend_on_and_how_to_train_on_them(told: dict[str, Any]) -> None:
    lines = told["output"].splitlines()
    part, whole = (line for line in lines if "codes made" in line)
    count = int(part.split()[5])
    assert 0 < count < CLIPS
    assert part == f"Part 2 of 2 has {count} of {CLIPS} clips: {count} codes made, 0 were there already."
    assert whole == f"{CLIPS} clips: {CLIPS - count} codes made, {count} were there already."
    codec, corpus = told["codec"], told["corpus"]
    for line in (
        "  preparing device         cpu",
        "  --deterministic          on",
        "  threads of an operation  2",
        f"They are in {corpus}/.myxtts/codes",
        f"Train on them with --train-data {corpus} --codec {codec} --deterministic --cache disk",
    ):
        assert line in lines


def test_a_run_with_the_same_settings_makes_no_code(told: dict[str, Any]) -> None:
    part, whole, trained = told["files"]
    assert len(part) < len(whole)
    assert trained == whole, "neither under this key nor under another one"


def plan(cards: int, **sections: Any) -> tuple[str, int | None]:
    found = plan_preparing_device(XTTSConfig(**sections), make_machine(cards))
    assert len(found.processes) == 1
    return found.data.device, found.data.physical_id


def test_the_device_is_that_which_prepares_in_the_run_whatever_its_mode() -> None:
    for training in ({}, {"mode": "dual"}, {"mode": "isolated"}, {"mode": "auto"}):
        assert plan(2, data={"data_gpu": 1, "model_gpu": 0}, training=training) == ("/GPU:0", 1)
        assert plan(2, training=training) == ("/GPU:0", 0)
    assert plan(0) == ("/CPU:0", None)
    assert plan(2, training={"rehearsal": True}) == ("/CPU:1", None)
    limits = {"data_gpu": 0, "model_gpu": 0, "data_gpu_memory": 1024, "model_gpu_memory": 1024}
    assert plan(1, data=limits) == ("/GPU:0", 0)
    with pytest.raises(DevicePlanError, match="asked for GPU 3"):
        plan(2, data={"data_gpu": 3, "model_gpu": 0})

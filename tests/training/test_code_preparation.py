"""Codes made by command are found by a run with the same settings, and the device is one such as the run's."""

import json
import os
from typing import Any

import pytest

from myxtts.config import XTTSConfig
from myxtts.errors import DevicePlanError
from myxtts.training.code_preparation import plan_preparing_device
from tests.devices.test_plan import make_machine
from tests.pipeline.small_runs import make_run_folder
from tests.support.processes import run_python

CLIPS = 5


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = make_run_folder(tmp_path_factory.mktemp("run"), clips=CLIPS)
    (folder / "run").mkdir()
    # Which part a clip is in follows from its time as well, which is otherwise that of the checkout.
    for clip in (folder / "corpus" / "wavs").iterdir():
        os.utime(clip, (1, 1))
    result = run_python(["-m", "tests.training.code_program", str(folder)])
    assert result.returncode == 0, result.stderr[-4000:]
    output, _, answer = result.stdout.rpartition("@@")
    return {**json.loads(answer), "output": output, "folder": folder}


def test_the_command_tells_what_it_made(told: dict[str, Any]) -> None:
    assert told["codes"] == [0, 0]
    part, whole = (line for line in told["output"].splitlines() if "codes made" in line)
    count = int(part.split()[5])
    assert 0 < count < CLIPS
    assert part == f"Part 2 of 2 has {count} of {CLIPS} clips: {count} codes made, 0 were there already."
    assert whole == f"{CLIPS} clips: {CLIPS - count} codes made, {count} were there already."


def test_the_command_tells_what_codes_depend_on_and_how_to_train_on_them(told: dict[str, Any]) -> None:
    lines = told["output"].splitlines()
    assert "  preparing device         cpu" in lines
    assert "  --deterministic          on" in lines
    assert "  threads of an operation  2" in lines
    codec, corpus = told["folder"] / "codec", told["folder"] / "corpus"
    assert f"They are in {corpus}/.myxtts/codes" in lines
    assert lines[-1] == f"Train on them with --train-data {corpus} --codec {codec} --deterministic --cache disk"


def test_a_run_with_the_same_settings_makes_no_code(told: dict[str, Any]) -> None:
    assert told["run"]["misses"] == 0
    assert told["run"]["hits"] > 0
    assert len(list((told["folder"] / "corpus" / ".myxtts" / "codes").iterdir())) == 1, "one key"


def plan(cards: int, **sections: Any) -> tuple[str, int | None]:
    found = plan_preparing_device(XTTSConfig(**sections), make_machine(cards))
    assert len(found.processes) == 1
    return found.data.device, found.data.physical_id


@pytest.mark.parametrize(
    "training",
    [{}, {"mode": "dual"}, {"mode": "isolated"}, {"mode": "auto"}],
    ids=lambda each: each.get("mode", "none"),
)
def test_the_device_is_that_which_prepares_in_the_run_whatever_its_mode(training: dict[str, str]) -> None:
    assert plan(2, data={"data_gpu": 1, "model_gpu": 0}, training=training) == ("/GPU:0", 1)
    assert plan(2, training=training) == ("/GPU:0", 0)


def test_without_a_gpu_the_cpu_prepares_and_a_rehearsal_uses_none() -> None:
    assert plan(0) == ("/CPU:0", None)
    assert plan(2, training={"rehearsal": True}) == ("/CPU:1", None)
    limits = {"data_gpu": 0, "model_gpu": 0, "data_gpu_memory": 1024, "model_gpu_memory": 1024}
    assert plan(1, data=limits) == ("/GPU:0", 0)


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(DevicePlanError, match="asked for GPU 3"):
        plan(2, data={"data_gpu": 3, "model_gpu": 0})


def test_the_note_on_other_cards_speaks_of_preparing() -> None:
    (note,) = plan_preparing_device(XTTSConfig(), make_machine(2)).notes
    assert note.startswith("Preparing on GPU 0 alone; other cards stay unused")
    assert note.endswith("For another one set CUDA_VISIBLE_DEVICES=1.")

"""However a run is made, its losses are the same to the last bit. In its corpus one clip turns out to be damaged."""

import numpy as np
import soundfile

from tests.training.conftest import DAMAGED
from tests.training.runs import (
    finish,
    read_counts,
    read_events,
    read_losses,
    read_story,
    read_validations,
    start,
    train,
)
from tests.training.strikes import count_steps, kill_producer, leaves_nothing, list_processes


def test_every_update_and_validation_is_told(unbroken):
    assert [step for step, _ in read_losses(unbroken)] == list(range(1, 9))
    assert [step for step, _ in read_validations(unbroken)] == [3, 6, 8]
    losses = [loss for _, loss in read_losses(unbroken)]
    assert losses[-1] < losses[0], "it learns"
    assert len(set(losses)) == 8


def test_a_clip_damaged_after_the_scan_is_replaced_and_told(unbroken):
    said = unbroken.with_suffix(".said").read_text(encoding="utf-8")
    assert DAMAGED in said
    clips = [clips for _, clips, _, _ in read_counts(unbroken)]
    assert sum(clips[:3]) == sum(clips[3:6]) == 23, "another clip stands in its place"


def test_every_validation_and_the_end_are_said_aloud_and_the_files_named(unbroken):
    for name in (*(f"samples/step-{step:08d}-free.wav" for step in (3, 6, 8)), "spoken.wav"):
        samples, rate_hz = soundfile.read(unbroken / name)
        assert rate_hz == 22_050
        assert np.isfinite(samples).all()
        assert len(samples) > 0, name
    said = unbroken.with_suffix(".said").read_text(encoding="utf-8")
    (line,) = [line for line in said.splitlines() if line.startswith("Spoken ")]
    assert str(unbroken / "spoken.wav") in line
    assert "Griffin-Lim" in said


def test_two_devices_and_codes_in_memory_change_nothing(unbroken, flags, tmp_path):
    folder = tmp_path / "dual"
    with leaves_nothing(folder):
        said = train(folder, *flags, "--mode", "dual", **{"data.cache": "memory"})
    assert "Codes are kept in memory" in said
    assert DAMAGED in said
    assert read_story(folder) == read_story(unbroken)


def test_a_producer_killed_twice_and_codes_on_disk_change_nothing(unbroken, flags, tmp_path):
    folder = tmp_path / "isolated"
    struck: set[int] = set()
    with leaves_nothing(folder):
        run = start(folder, *flags, "--mode", "isolated", **{"data.cache": "disk"})
        kill_producer(run, folder, lambda: True, struck)
        kill_producer(run, folder, lambda: count_steps(folder) >= 1, struck)
        said = finish(run, folder)
    assert said.code == 0, said.text[-6000:]
    assert "--cache is disk" in said.text
    assert DAMAGED in said.text
    assert sum(event.name == "producer died" for event in read_events(folder)) == 2
    assert read_story(folder) == read_story(unbroken)


def test_a_run_that_is_over_has_left_nothing(unbroken):
    assert list_processes(unbroken) == []

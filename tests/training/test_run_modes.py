"""However a run is made, its losses are the same to the last bit. In its corpus one clip turns out to be damaged."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import soundfile

from myxtts.monitoring.metrics import MachineRow, TrainRow
from tests.support.tiny_run import count_steps, leaves_nothing, run_tiny, start_tiny
from tests.training.conftest import DAMAGED


def test_every_update_and_validation_is_told(unbroken):
    assert "Model: a size of its own, 1 layers of width 16 (" in unbroken.text
    assert unbroken.text.count("Starting from nothing. ") == 1
    losses = dict(unbroken.losses)
    assert list(losses) == list(range(1, 9))
    assert [step for step, _ in unbroken.validations] == [3, 6, 8]
    assert losses[8] < losses[1], "it learns"
    assert len(set(losses.values())) == 8
    assert sum(row.retraces for row in unbroken.list_rows(TrainRow)) == 0
    hosts = [row.host for row in unbroken.list_rows(MachineRow)]
    assert max(host.peak_rss_bytes or 0 for host in hosts) > 1 << 20, "the host is sampled beside the run"


def test_a_clip_damaged_after_the_scan_is_replaced_and_told(unbroken):
    assert DAMAGED in unbroken.text
    clips = [clips for _, clips, _, _ in unbroken.counts]
    assert sum(clips[:3]) == sum(clips[3:6]) == 23, "another clip stands in its place"


def test_every_validation_and_the_end_are_said_aloud_and_the_files_named(unbroken):
    for name in (*(f"samples/step-{step:08d}-free.wav" for step in (3, 6, 8)), "spoken.wav"):
        samples, rate_hz = soundfile.read(unbroken.folder / name)
        assert rate_hz == 22_050
        assert np.isfinite(samples).all()
        assert len(samples) > 0, name
    (line,) = [line for line in unbroken.text.splitlines() if line.startswith("Spoken ")]
    assert str(unbroken.folder / "spoken.wav") in line
    told = dict(line.split(maxsplit=1) for line in unbroken.text.splitlines() if line.startswith(("Play ", "Say ")))
    assert str(unbroken.folder / "spoken.wav") in told["Play"]
    program, *words = shlex.split(told["Say"])
    assert shutil.which(program) or Path(program).exists()
    assert words[:3] == ["synthesize", "--checkpoint", str(unbroken.folder)]
    assert Path(words[words.index("--reference") + 1]).exists()
    assert "Griffin-Lim" in unbroken.text
    page = (unbroken.folder / "listen.html").read_text(encoding="utf-8")
    assert all(
        f"{name}</" in page for name in ("<h2>At the end", "<b>Recording", "<b>Step 3", "<b>Step 6", "<b>Step 8")
    )
    assert (unbroken.folder / "report.html").is_file()


def test_two_devices_and_codes_in_memory_change_nothing(unbroken, flags, tmp_path):
    with leaves_nothing(tmp_path / "dual"):
        run = run_tiny(tmp_path / "dual", *flags, mode="dual", **{"data.cache": "memory"})
    assert "Codes are kept in memory" in run.text
    assert DAMAGED in run.text
    assert run.story == unbroken.story


def test_a_producer_killed_twice_and_codes_on_disk_change_nothing(unbroken, flags, tmp_path):
    folder = tmp_path / "isolated"
    struck: set[int] = set()
    with leaves_nothing(folder):
        live = start_tiny(folder, *flags, mode="isolated", **{"data.cache": "disk"})
        live.kill_producer(lambda: True, struck)
        live.kill_producer(lambda: count_steps(folder) >= 1, struck)
        run = live.finish(0)
    assert "--cache is disk" in run.text
    assert DAMAGED in run.text
    assert sum(event.name == "producer died" for event in run.events) == 2
    assert run.story == unbroken.story

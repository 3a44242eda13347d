"""A run ends with a page to listen to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.monitoring.time_ledger import TimeLedger
from myxtts.reports.pages import note_clip
from myxtts.training.run_log import RunLog
from tests.monitoring.runs import make_run_row


def open_watch(folder: Path) -> RunLog:
    plan = plan_devices(PlanRequest.from_config(XTTSConfig(training={"rehearsal": True})), read_machine())
    return RunLog(
        folder,
        ledger=TimeLedger(),
        row=make_run_row(),
        plan=plan,
        tensorboard=None,
        epochs=None,
        checkpoint_interval=10,
    )


def test_what_the_validations_said_is_on_the_page_of_the_run(tmp_path: Path) -> None:
    recording = tmp_path / "clip.wav"
    soundfile.write(recording, np.random.default_rng(1).normal(0, 0.1, 3000), 22050)
    with open_watch(tmp_path) as watch:
        watch.begin_loop()
        note_clip(tmp_path, "Hello there.", recording)
        soundfile.write(tmp_path / "samples" / "step-00000002.wav", np.zeros(3000) + 0.1, 22050)
        watch.log_validation(step=2, loss=1.25, scalars={}, is_best=True)
        watch.summarise(2, "finished")
    page = (tmp_path / "listen.html").read_text()
    for words in (
        "Hello there.",
        "<b>Recording</b><span>clip.wav</span>",
        "<b>Step 2</b><span>loss 1.25 · best</span>",
    ):
        assert words in page


def test_a_run_that_was_never_validated_has_no_such_page(tmp_path: Path) -> None:
    with open_watch(tmp_path) as watch:
        watch.begin_loop()
        watch.summarise(0, "stopped")
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "listen.html").exists()

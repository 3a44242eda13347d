"""What a run tells of cards and host while it goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest, plan_devices
from myxtts.monitoring.metrics_log import read_metrics
from myxtts.monitoring.metrics_rows import MachineRow
from myxtts.monitoring.time_ledger import TimeLedger
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.batch_source import PipelineFacts
from myxtts.training.run_watch import RunWatch
from tests.monitoring.runs import make_run_row


def log_steps(watch: RunWatch, step: int) -> None:
    facts = PipelineFacts((), (), BatchMeters())
    watch.log_steps(
        step=step, epoch=0, losses=[3.0], learning_rate=1e-4, scalars={}, retraces=0, pipeline=facts
    )  # fmt: skip


def await_sample(watch: RunWatch) -> None:
    deadline = time.monotonic() + 60
    while not watch._sampler.samples and time.monotonic() < deadline:
        time.sleep(0.01)


def test_cards_and_host_are_sampled_beside_the_run_and_written_with_its_steps(tmp_path: Path) -> None:
    plan = plan_devices(PlanRequest.from_config(XTTSConfig(training={"rehearsal": True})), read_machine())
    before = threading.active_count()
    watch = RunWatch(
        tmp_path,
        ledger=TimeLedger(),
        row=make_run_row(),
        resumed=False,
        plan=plan,
        tensorboard=None,
        epochs=None,
        checkpoint_interval=10,
    )
    with watch:
        watch.begin_loop()
        await_sample(watch)
        log_steps(watch, 1)
        # What was written is not kept: a run of weeks takes no more memory for it than one of minutes.
        assert len(watch._sampler.samples) <= 1
        await_sample(watch)
        log_steps(watch, 2)
    assert threading.active_count() <= before
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl").rows if isinstance(row, MachineRow)]
    assert [row.step for row in rows] == [1, 2]
    assert rows[0].cards == ()
    assert rows[0].host.cpu_share is None
    assert (rows[1].host.peak_rss_bytes or 0) > 1 << 20

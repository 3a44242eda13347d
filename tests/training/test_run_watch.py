"""What a run tells of cards, host and memory while it goes on."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from myxtts.config import XTTSConfig
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import NvmlError
from myxtts.monitoring.memory_watch import LEAK_EVENT, Phase
from myxtts.monitoring.metrics_log import read_metrics
from myxtts.monitoring.metrics_rows import EventRow, MachineRow, SummaryRow, TrainRow
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import TimeLedger
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.batch_memory import BatchMemory
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.batch_source import PipelineFacts
from myxtts.pipeline.order import Kind
from myxtts.training import run_log
from myxtts.training.run_log import RunLog
from myxtts.training.trainer import XTTSTrainer
from tests.monitoring.runs import make_flow, make_run_row


def log_steps(watch: RunLog, step: int) -> None:
    facts = PipelineFacts((), (), BatchMeters())
    watch.log_steps(
        step=step, epoch=0, losses=[3.0], learning_rate=1e-4, scalars={}, pipeline=facts
    )  # fmt: skip


def open_watch(folder: Path, mode: str = "single") -> RunLog:
    config = XTTSConfig(training={"rehearsal": True, "mode": mode})
    return RunLog(
        folder,
        ledger=TimeLedger(),
        row=make_run_row(),
        plan=plan_devices(PlanRequest.from_config(config), read_machine()),
        tensorboard=None,
        epochs=None,
        checkpoint_interval=10,
    )


def list_events(folder: Path) -> list[tuple[int, str, str]]:
    rows = read_metrics(folder / "metrics.jsonl").rows
    return [(row.step, row.name, row.text) for row in rows if isinstance(row, EventRow)]


def await_sample(watch: RunLog) -> None:
    deadline = time.monotonic() + 60
    while not watch._sampler.samples and time.monotonic() < deadline:
        time.sleep(0.01)


def test_cards_and_host_are_sampled_beside_the_run_and_written_with_its_steps(tmp_path: Path) -> None:
    before = threading.active_count()
    with open_watch(tmp_path) as watch:
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


MIB = 1 << 20
STEPS = 200


def count_batch(watch: RunLog, step: int, memory: BatchMemory) -> None:
    watch.count_batch(BatchFacts(step, Kind.TRAIN, step, 0, 1, 0, 0, 4, 100, 120), memory)


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_leak_is_told_in_the_log_the_metrics_the_summary_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    used = {"host": 500 * MIB, "device": 900 * MIB}
    monkeypatch.setattr(run_log, "read_private_bytes", lambda pid: used["host"])
    monkeypatch.setattr(runtime, "read_pool_bytes", lambda device: used["device"])
    with open_watch(tmp_path) as watch:
        watch.begin_loop()
        for step in range(1, STEPS + 1):
            used[where] += MIB
            watch.end_phase(step, Phase.TRAINING)
        log_steps(watch, STEPS)
        summary = watch.summarise(STEPS, "finished")
    ((step, name, text),) = list_events(tmp_path)
    assert (step <= STEPS, name) == (True, LEAK_EVENT)
    memory = "host memory of the trainer" if where == "host" else "device memory of the model"
    assert text.startswith(f"Memory keeps growing: {memory}, 100 MB per 100 steps, in the training of the gpt stage")
    assert text in caplog.text
    assert summary.leaks == (text,)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count(text) == 2, "as a finding, and as an event"


def test_memory_of_the_producer_is_told_apart_and_begins_anew_with_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "read_private_bytes", lambda pid: 500 * MIB)
    monkeypatch.setattr(run_log, "read_role_memory", Mock(side_effect=NvmlError("it does not answer")))
    with open_watch(tmp_path, "isolated") as watch:
        watch.begin_loop()
        for step in range(1, 2 * STEPS):
            # A new process every 100 batches: none of them grows for long enough to be told.
            count_batch(watch, step, BatchMemory(10**6 + step // 100, (100 + step % 100) * MIB, None))
        assert list_events(tmp_path) == []
        for step in range(1, STEPS):
            count_batch(watch, step, BatchMemory(10**7, (100 + step) * MIB, None))
        log_steps(watch, STEPS)
    assert [name for _, name, _ in list_events(tmp_path)] == [LEAK_EVENT]
    assert "host memory of the producer" in list_events(tmp_path)[0][2]
    assert watch.read_producer_memory() == (299 * MIB, 299 * MIB)
    (row,) = (row for row in read_metrics(tmp_path / "metrics.jsonl").rows if isinstance(row, TrainRow))
    used = {use.device: use.used_bytes for use in row.memory}
    assert (used["host, trainer"], used["host, producer"]) == (500 * MIB, 299 * MIB)
    assert used["data /CPU:1"] is None, "of a pool on a processor nobody knows: that is not 0"
    assert used["model /CPU:1"] is None, "nor what a driver would have to tell that does not answer"


def test_what_happens_beside_the_training_is_written_with_its_next_steps(tmp_path: Path) -> None:
    with open_watch(tmp_path) as watch:
        watch.begin_loop()
        watch.note_later("stalled", "Stage 'step' ...")
        assert list_events(tmp_path) == []
        log_steps(watch, 3)
        watch.note_later("stalled", "again")
        watch.summarise(3, "failed")
    assert list_events(tmp_path) == [(3, "stalled", "Stage 'step' ..."), (3, "stalled", "again")]


def test_the_last_word_of_a_process_that_ends_at_once_is_in_the_metrics(tmp_path: Path) -> None:
    with open_watch(tmp_path) as watch:
        watch.begin_loop()
        log_steps(watch, 3)
        watch.note_last_word("stalled", "why")
        *_, event, summary = read_metrics(tmp_path / "metrics.jsonl").rows
    assert isinstance(event, EventRow)
    assert (event.step, event.text) == (3, "why")
    assert isinstance(summary, SummaryRow)
    assert summary.status == "failed"


def test_reading_memory_takes_next_to_nothing(tmp_path: Path) -> None:
    with open_watch(tmp_path) as watch:
        watch.begin_loop()
        best_s = min(time_phases(watch, first) for first in range(0, 1000, 100))
    # A tenth of a percent of a step of a quarter of a second; it is a tenth of that on a machine with nothing else to do. Of this
    # thread's own time: others may run meanwhile.
    assert best_s / 100 < 250e-6


def time_phases(watch: RunLog, first: int) -> float:
    began = time.thread_time()
    for step in range(first, first + 100):
        watch.end_phase(step, Phase.TRAINING)
    return time.thread_time() - began


@pytest.mark.parametrize(
    ("waits", "stage", "flag"), [(0.6, "prepare", "--cache auto"), (0.0, None, "--max-clip-seconds 9")]
)
def test_the_pace_of_a_run_names_the_stage_that_is_waited_for_and_one_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, waits: float, stage: str | None, flag: str
) -> None:
    caplog.set_level(logging.INFO)
    flow = make_flow(1.0, train_waits=waits, transfer_waits=waits)
    with open_watch(tmp_path) as watch:
        watch.clock = StepClock(warm_up=0, clock=iter(jitter(50)).__next__)
        watch._opened_at = time.perf_counter() - 1.0
        for _ in range(40):
            watch.clock.end_step()
        trainer = XTTSTrainer.__new__(XTTSTrainer)
        source = SimpleNamespace(read_facts=lambda: PipelineFacts(flow.stages, flow.handoffs, BatchMeters()))
        trainer._run_log, trainer._source = watch, source  # type: ignore[assignment]
        trainer._log_pipeline_performance()
    said = " ".join(caplog.text.split())
    assert "variation 50.0%" in said
    assert "High timing variation" in said
    assert flag in said
    assert ("the training waits for stage 'prepare'" in said) == (stage is not None)


def jitter(count: int) -> list[float]:
    """Moments one and three seconds apart in turn."""
    return [2.0 * number + (number % 2) for number in range(count)]

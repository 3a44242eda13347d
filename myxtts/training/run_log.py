"""What a run tells while it goes on: metrics, the view, TensorBoard, samples, the summary at the end, and what it does just now."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data.corpus import Corpus
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan
from myxtts.errors import RunFinishedError, RunFolderError
from myxtts.monitoring.clock import Cause, Flow, ProgressMeter, StepClock, TimeLedger
from myxtts.monitoring.findings import MachineFacts, find_timing_variation, settle_sections
from myxtts.monitoring.live_view import Picture, open_view
from myxtts.monitoring.memory import LEAK_EVENT, Leak, Memory, MemoryWatch, Phase, read_memory_use
from myxtts.monitoring.metrics import (
    FILE_NAME,
    LOG_NAME,
    EventRow,
    IntervalMeter,
    MachineRow,
    MemoryUse,
    MetricsLog,
    RunRow,
    SummaryRow,
    TrainRow,
    ValidationRow,
    open_metrics_log,
    read_metrics,
)
from myxtts.monitoring.sampler import MachineSampler, list_sampled_cards, summarise_cards, summarise_host
from myxtts.monitoring.summary import RunSummary, format_performance, read_settings, summarise_run
from myxtts.monitoring.tensorboard import open_tensorboard
from myxtts.pipeline.batch import Batch, BatchFacts, BatchMemory
from myxtts.pipeline.batches import Batches, PipelineFacts
from myxtts.pipeline.threads import Work
from myxtts.processes import read_private_bytes
from myxtts.reports.pages import LISTENING_PAGE, note_clip, write_listening_page, write_run_page
from myxtts.training.run_folder import TrainerFolder
from myxtts.training.saver import CheckpointSaver
from myxtts.training.schedule import Schedule
from myxtts.training.stopping import StopNow
from myxtts.utils.commons import PlainFormatter

_log = logging.getLogger(__name__)

REPORT_NAME = "report.html"
TENSORBOARD_FOLDER = "tensorboard"
STALLED = "stalled"
"""The event in the metrics file."""

_NAMES = {
    Cause.TRACE: "step",
    # The stages that make it are looked at while it is waited for; this is for the case that none of them works.
    Cause.DATA_STALL: "waiting for a batch",
    Cause.OTHER_WORKERS: "waiting for other workers",
    # On an asynchronous device a step that hangs shows when its loss is read.
    Cause.OTHER: "reading the losses",
}
"""What is done, where it is called otherwise than its cause."""
_START_UP, _ENDING = "start-up", "the end of the run"
_STEADY = frozenset({Cause.STEP, Cause.TRANSFER, Cause.VALIDATION})
"""All else may take long without hanging: large files, first calls, a producer that is started again, and all the steps that an
asynchronous device still has to do before it can tell a loss."""


class RunLog:
    """Tells of one session of a stage, from where it stands. A context: the view is shown within.

    Make it under the model device's scope.

    Args:
        ledger: of the session's time, begun when the program was.
        predicted_step_s: what `--mode auto` expected of a step; None where it chose nothing.
    """

    def __init__(
        self,
        saver: CheckpointSaver,
        schedule: Schedule,
        plan: DevicePlan,
        ledger: TimeLedger,
        predicted_step_s: float | None,
    ):
        run, training = saver.run, saver.config.training
        self.folder, self.ledger, self.clock = run.path, ledger, StepClock()
        self._plan, self._schedule, self._is_shared = plan, schedule, plan.is_shared
        around = MachineFacts.of_machine(read_machine())
        settings = settle_sections(saver.config, around)
        settings["training"]["validation_interval"] = schedule.validation_interval
        settings["training"]["checkpoint_interval"] = schedule.checkpoint_interval
        self._row = RunRow(
            time_s=time.time(),
            step=saver.progress.step,
            end_step=schedule.end_step,
            stage=run.stage,
            mode=str(plan.mode),
            devices={"data": plan.data.device, "model": plan.model.device},
            settings=settings,
            environment=saver.environment,
            around=asdict(around),
            predicted_step_s=predicted_step_s,
        )
        self._meter = IntervalMeter(self.clock, ledger)
        epochs = training.epochs if run.stage == training.stage else None
        self._progress = ProgressMeter(schedule.end_step, epochs)
        self._validation: ValidationRow | None = None
        self._last_row: TrainRow | None = None
        self._events_seen = 0
        self._stalls: deque[str] = deque()
        self._memory = MemoryWatch(run.stage)
        self._producer: BatchMemory | None = None
        self._producer_bytes: tuple[int | None, int | None] = (None, None)
        self._metrics = self._open_log(saver.progress.step, saver.progress.is_validated)
        self._board = open_tensorboard(choose_board(run, saver.config))
        self._closing = ExitStack()
        self._closing.callback(lambda: self._metrics.close())
        if self._board is not None:
            self._closing.callback(self._board.close)
        self._listener = saver.trained.make_listener(run.path)
        self._sampler = MachineSampler(list_sampled_cards(plan))

    def __enter__(self) -> Self:
        self._show = self._closing.enter_context(open_view(self._row.stage, self._row.mode))
        self._closing.enter_context(self._sampler)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def rewind(self, step: int, is_validated: bool) -> None:
        """Takes back what was told of the steps after this one: the session does them again."""
        self._metrics.close()
        self._metrics = self._open_log(step, is_validated)
        # Of a pipeline that is closed; the next one counts anew.
        self._events_seen = 0

    def begin_loop(self) -> None:
        """Start-up is over."""
        self.ledger.begin_loop()
        self.clock.begin()

    def count_batch(self, facts: BatchFacts, memory: BatchMemory, **traces: bool) -> None:
        """A batch was trained on; see `IntervalMeter.count_batch`."""
        self._meter.count_batch(facts, **traces)
        self._watch_preparation(facts.updates, memory)

    def end_phase(self, step: int, phase: Phase, *, has_traced: bool = False) -> None:
        """A phase of the run is over: its memory is looked at. Takes some microseconds."""
        used = {
            Memory.MODEL_DEVICE: runtime.read_pool_bytes(self._plan.model.device),
            Memory.TRAINER: read_private_bytes(os.getpid()),
        }
        self._tell_leaks(step, self._memory.add(step, phase, used, counts=not has_traced))

    def read_producer_memory(self) -> tuple[int | None, int | None]:
        """Bytes that the producer process held with its last batch, and the most with any: on its card, or in a rehearsal on the host.
        None is unknown, as before the first batch."""
        return self._producer_bytes

    def log_steps(self, *, step: int, pipeline: PipelineFacts, losses: Sequence[float], **facts: Any) -> None:
        """The steps since the last call; `facts` are epoch, learning rate and scalars of their `TrainRow`."""
        self._note_stalls(step)
        for event in pipeline.events[self._events_seen :]:
            place = "" if event.position is None else f"batch {event.position}: "
            self.note(step, f"producer {event.kind}", f"{place}{event.reason}")
        self._events_seen = len(pipeline.events)
        memory = tuple(self._read_memory())
        self._last_row = row = self._meter.close(
            _read_flow(pipeline), step=step, losses=tuple(losses), memory=memory, **facts
        )
        self._metrics.write(row)
        if samples := self._sampler.take_samples():
            cards, host = summarise_cards(samples), summarise_host(samples)
            self._metrics.write(MachineRow(time_s=time.time(), step=step, cards=tuple(cards), host=host))
        interval = self._schedule.checkpoint_interval
        next_checkpoint = min(self._schedule.end_step, (step // interval + 1) * interval)
        traced_s = row.spent.get(Cause.TRACE, 0.0)
        progress = self._progress.measure(step, next_checkpoint if next_checkpoint > step else None, traced_s=traced_s)
        self._show(Picture(row, progress, self.clock.read(), self._validation))
        if self._board is not None:
            self._board.write_train_row(row)

    def log_validation(self, *, step: int, loss: float, scalars: Mapping[str, float], is_best: bool) -> None:
        """A round of validation is done."""
        self._validation = row = ValidationRow(
            time_s=time.time(), step=step, loss=loss, scalars=dict(scalars), is_best=is_best
        )
        self._metrics.write(row)
        if self._board is not None:
            self._board.write_validation_row(row)

    def listen(self, step: int, batch: Batch, corpus: Corpus) -> None:
        """Makes samples of a batch's first clip, as the model would say it now, and tells of them."""
        with self.ledger.spend(Cause.VALIDATION) as span:
            # Made by functions of its own, which the first sample traces.
            span.is_first = True
            try:
                paths = self._listener.hear(step, batch.tensors, self._board)
            except tf.errors.ResourceExhaustedError:
                # Nothing depends on it: a run is worth more than a sample of it.
                _log.warning("Out of memory while the sample of step %d was made: there is none to listen to.", step)
                return
        for path in paths:
            self.note(step, "sample", str(path.relative_to(self.folder)))
        clip = batch.info.clip_numbers[0]
        note_clip(self.folder, corpus.text[clip], corpus.find_file(clip))

    def read_work(self, source: Batches | None, start_s: float) -> Work:
        """What the thread that trains is doing now. For any thread."""
        own = None if source is None else source.read_work()
        if own is not None:
            return own
        span, since_s = self.ledger.peek()
        if span.cause is Cause.START_UP:
            return read_start_work(self.ledger, start_s)
        is_first = span.is_first or span.cause not in _STEADY or self.clock.ended == 0
        return Work(span.name or _NAMES.get(span.cause, str(span.cause)), span.item, since_s, is_first)

    def note(self, step: int, name: str, text: str) -> None:
        """Something worth telling happened."""
        self._metrics.write(EventRow(time_s=time.time(), step=step, name=name, text=text))

    def note_stall(self, text: str, *, is_last: bool) -> None:
        """Notes that the training hangs, with the next steps or at the end; or at once, where that ends the process. For any thread."""
        if not is_last:
            self._stalls.append(text)
            return
        # Not through the log that is open: the thread that writes it is stuck.
        step = 0 if self._last_row is None else self._last_row.step
        with MetricsLog(self.folder / FILE_NAME) as log:
            log.write(EventRow(time_s=time.time(), step=step, name=STALLED, text=text))
            log.write(SummaryRow(time_s=time.time(), step=step, status="failed", spent={}))

    def summarise(self, step: int, status: str) -> RunSummary:
        """Writes the summary and the page of the run, and returns the summary."""
        self._note_stalls(step)
        spent, path = self.ledger.take_window(), self.folder / FILE_NAME
        summary = summarise_run(read_metrics(path).rows, spent, status)
        self._metrics.write(SummaryRow(time_s=time.time(), step=step, status=status, spent=spent))
        write_run_page(path, self.folder / REPORT_NAME)
        write_listening_page(self.folder, self.folder / LISTENING_PAGE)
        return summary

    def format_performance(self, pipeline: PipelineFacts) -> str:
        """The step times so far and, where they vary much, who waits."""
        times, row = self.clock.read(), self._last_row
        finding = find_timing_variation(times, _read_flow(pipeline), self._row.mode, read_settings(self._row))
        rates = (None, None) if row is None else (row.clips_per_s, row.audio_seconds_per_s)
        return format_performance(times, *rates, finding)

    def _open_log(self, step: int, is_validated: bool) -> MetricsLog:
        log, lost_s = open_metrics_log(self.folder / FILE_NAME, step or None, is_validated=is_validated)
        log.write(replace(self._row, time_s=time.time(), step=step, lost_s=lost_s))
        return log

    def _watch_preparation(self, step: int, made: BatchMemory) -> None:
        """Looks at the memory of whoever prepared a batch, as far as it is not that of the training."""
        used = {} if self._is_shared else {Memory.DATA_DEVICE: made.device_bytes}
        if made.pid != os.getpid():
            if self._producer is not None and self._producer.pid != made.pid:
                self._memory.forget(Memory.PRODUCER)
                self._memory.forget(Memory.DATA_DEVICE)
            self._producer = made
            now = made.host_bytes if self._plan.rehearsal else made.device_bytes
            most = [each for each in (now, self._producer_bytes[1]) if each is not None]
            self._producer_bytes = now, max(most, default=None)
            used[Memory.PRODUCER] = made.host_bytes
        self._tell_leaks(step, self._memory.add(step, Phase.PREPARATION, used))

    def _tell_leaks(self, step: int, leaks: Sequence[Leak]) -> None:
        for leak in leaks:
            _log.warning("%s", leak)
            self.note(step, LEAK_EVENT, str(leak))

    def _read_memory(self) -> Iterator[MemoryUse]:
        producer = self._producer
        for role in self._plan.own_roles:
            if role.process is self._plan.model.process:
                yield read_memory_use(role)
            else:
                # Of a pool of another process the driver knows nothing; the process itself does.
                pool = None if producer is None else producer.device_bytes
                yield MemoryUse(f"{role.role} {role.device}", pool, role.limit_mib and role.limit_mib * MIB, pool)
        yield MemoryUse("host, trainer", read_private_bytes(os.getpid()), None)
        if producer is not None:
            yield MemoryUse("host, producer", producer.host_bytes, None)

    def _note_stalls(self, step: int) -> None:
        while self._stalls:
            self.note(step, STALLED, self._stalls.popleft())


def choose_board(run: TrainerFolder, config: XTTSConfig) -> Path:
    """The folder of the curves. One run writes into one folder: other workers than the chief keep to their own."""
    given = config.training.tensorboard_log_dir
    return run.path / TENSORBOARD_FOLDER if given is None or not run.is_chief else Path(given)


def _read_flow(pipeline: PipelineFacts) -> Flow:
    return Flow(pipeline.elapsed_s, pipeline.work, pipeline.handoffs, pipeline.preparers, pipeline.trainers)


@contextmanager
def keep_run_log(folder: Path) -> Iterator[None]:
    """Writes what is logged within to the folder's `run.log` too, and an error that ends the block with its traceback."""
    path = folder / LOG_NAME
    try:
        file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}). Make it writable, or give another --checkpoint-dir."
        ) from None
    # A full disk stops the run where it matters, and says so there.
    file.handleError = lambda record: None  # type: ignore[method-assign]
    file.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("myxtts")
    logger.addHandler(file)
    try:
        yield
    except (RunFinishedError, StopNow):
        raise
    except BaseException as error:
        # To the file alone: the program shows it in its own way.
        told = (f"{type(error).__name__}: {error}",)
        file.handle(logger.makeRecord(logger.name, logging.ERROR, __file__, 0, "%s", told, sys.exc_info()))
        raise
    finally:
        logger.removeHandler(file)
        # What a full disk did not take is tried once more here.
        with suppress(OSError):
            file.close()


def read_start_work(ledger: TimeLedger, limit_s: float) -> Work:
    """What the thread is doing before there is anything to train, or after. For any thread."""
    span, since_s = ledger.peek()
    name = span.name or (_START_UP if span.cause is Cause.START_UP else _ENDING)
    return Work(name, span.item, since_s, limit_s=limit_s)

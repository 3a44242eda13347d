"""The life of a run, from its configuration to a trained model: devices, folder, watchdog, and how it ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from myxtts.cluster.spec import find_cluster
from myxtts.config import XTTSConfig
from myxtts.config.flags import names_settings
from myxtts.devices import runtime
from myxtts.devices.plan import DevicePlan
from myxtts.errors import DevicePlanError
from myxtts.models.gpt import GPT
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.stage import TimeLimits, Work
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.errors import NotTrainingError, RunStoppedError
from myxtts.training.listening import Spoken
from myxtts.training.mode import ModeChoice, PlannedRun, fix_cache, plan_run
from myxtts.training.placement import apply_devices
from myxtts.training.run_folder import FollowerFolder, RunFolder, open_run
from myxtts.training.run_log import keep_run_log, read_start_work
from myxtts.training.run_stages import AnyRun, RunStages
from myxtts.training.stage_run import StageRequest, StageResult, StageRun
from myxtts.training.stopping import StopNow, StopRequests, Watchdog, explain_stop_before_run
from myxtts.training.workers import Alone, Team, gather_team

_log = logging.getLogger(__name__)

STALLED = "stalled"
"""The event in the metrics file."""


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended."""

    stage: StageResult
    """The last stage that ran."""
    resume_command: str
    spoken: Spoken | None = None
    """What the trained model said at the end; None where it did not."""

    @property
    def is_finished(self) -> bool:
        return self.stage.ending.is_finished


class XTTSTrainer:
    """Trains XTTS as a configuration says.

    Args:
        config: what was asked for.
        model: a GPT to train instead of a fresh one; it must have been built on the model device.
        resume_checkpoint: go on from this checkpoint of the run's folder instead of its newest one.
        model_device: the logical device that must train, for a caller that relies on it; else the plan decides.
        plan: which device does which job; by default the plan in force in this process, or the one the configuration asks for.
        command: the words that started the program, for the command that resumes the run.
        choice: how the plan was chosen, where `--mode auto` did it.

    Example:
        trainer = XTTSTrainer(XTTSConfig(model={"size": "tiny"}, training={"rehearsal": True, "max_steps": 100}))
        result = trainer.train()
    """

    def __init__(
        self,
        config: XTTSConfig,
        model: GPT | None = None,
        resume_checkpoint: str | os.PathLike[str] | None = None,
        model_device: str | None = None,
        *,
        plan: DevicePlan | None = None,
        command: Sequence[str] = (),
        choice: ModeChoice | None = None,
    ):
        self._ledger = TimeLedger()
        given = plan or runtime.active_plan()
        planned = plan_run(config, command) if given is None else PlannedRun(given, choice)
        self.plan, self._choice = planned.plan, planned.choice
        self.config = config = fix_cache(config, self._choice)
        if model_device is not None and model_device != self.plan.model.device:
            raise DevicePlanError(
                f"model_device is {model_device}, but the plan trains on {self.plan.model.device}. Leave it out, or give settings "
                "that plan it so."
            )
        self._model = model
        self._run: AnyRun | None = None
        self._team: Team = Alone()
        training = config.training
        self._cluster = find_cluster(training.cluster, training.worker_index, os.environ)
        self._stage: StageRun | None = None
        self._stages: RunStages | None = None
        self._resume_checkpoint = None if resume_checkpoint is None else Path(resume_checkpoint)
        self._command = tuple(command) or (Path(sys.executable).name, *sys.argv)

    @property
    def model_device(self) -> str:
        """The logical device that trains."""
        return self.plan.model.device

    @property
    def data_device(self) -> str:
        """The logical device that prepares; in the isolated modes a device of the producer process."""
        return self.plan.data.device

    @property
    def step_times(self) -> list[float]:
        """Seconds of the steps so far that count: without warm-up, tracing, validating and saving."""
        watch = None if self._stage is None else self._stage.watch
        return [] if watch is None else list(watch.clock.durations_s)

    def train(self) -> TrainingResult:
        """Trains to the end, or until SIGTERM or Ctrl-C asks for an end: then the run is saved and can be resumed.

        Raises `RunStoppedError` where the signal comes before there is anything to train or between two stages.
        """
        with names_settings(), StopRequests() as stop:
            return self._open_watchdog().run(lambda: self._train_until_stopped(stop))

    def _train_until_stopped(self, stop: StopRequests) -> TrainingResult:
        try:
            with stop.while_idle():
                return self._train_run(stop)
        except StopNow:
            assert stop.signal is not None
            raise self._explain_stop(stop.signal) from None

    def _open_watchdog(self) -> Watchdog:
        limits = TimeLimits.from_setting(self.config.training.watchdog_seconds)
        start_s = limits.setup_s
        if self._cluster is not None:
            # Others may be started late.
            start_s = max(start_s, self._cluster.rendezvous_s)

        def read_work() -> Work:
            own = None if self._stage is None else self._stage.read_work(start_s)
            ledger = self._ledger if self._stages is None else self._stages.ledger
            return own or read_start_work(ledger, start_s)

        return Watchdog(
            read_work, limits, advise=self._advise, on_warning=self._note_stall, on_force=self._note_last_word
        )

    def _advise(self) -> str:
        """How to go on after a hang. Nothing is looked up for it: the disk may be what hangs."""
        if self._run is None:
            return "Nothing was trained in this session. Start it again with the same command."
        return f"To go on from the last checkpoint:\n  {self._run.resume_command}"

    def _note_stall(self, text: str) -> None:
        if self._stage is not None and self._stage.watch is not None:
            self._stage.watch.note_later(STALLED, text)

    def _note_last_word(self, text: str) -> None:
        if self._stage is not None and self._stage.watch is not None:
            self._stage.watch.note_last_word(STALLED, text)

    def _train_run(self, stop: StopRequests) -> TrainingResult:
        with self._gather_team() as self._team, self._open_run() as run, keep_run_log(run.path):
            stop.take()
            self._run = run
            run.note_choice(None if self._choice is None else self._choice.dump())
            self._stages = RunStages(
                self.config,
                self.plan,
                team=self._team,
                ledger=self._ledger,
                choice=self._choice,
                model=self._model,
                run_stage=self._run_stage,
            )
            result = self._stages.train(run, stop)
            return TrainingResult(result, run.resume_command, self._stages.spoken)

    @contextmanager
    def _gather_team(self) -> Iterator[Team]:
        """The team, with the device plan in force. Only what it takes until it is there is booked."""
        gathering = gather_team(self.config, self.plan, self._cluster, lambda: apply_devices(self.config, self.plan))
        name = "setting up the devices" if self._cluster is None else "meeting the other workers"
        with ExitStack() as gathered:
            with self._ledger.spend(Cause.START_UP, name):
                team = gathered.enter_context(gathering)
            yield team

    def _open_run(self) -> AnyRun:
        """The chief's folder of the run, or the own one of another worker."""
        opened: list[RunFolder] = []

        def open_folder() -> bool:
            opened.append(open_run(self.config, command=self._command, checkpoint=self._resume_checkpoint))
            return opened[0].is_resumed

        is_resumed = self._team.lead("open", open_folder)
        if opened:
            return opened[0]
        training = self.config.training
        path = Path(training.checkpoint_dir) / f"worker-{self._team.share.part}"
        return FollowerFolder(path, stage=training.stage, command=self._command, is_resumed=is_resumed)

    def _explain_stop(self, signal: Signals) -> RunStoppedError:
        """The error that says how far the run is."""
        run = self._run
        done = None if run is None else run.describe_progress()
        if run is None or done is None:
            return explain_stop_before_run(self.config, self._command, signal)
        return RunStoppedError(
            f"Stopped by {signal.name} before the next update. Nothing is lost of the run in {run.path}: {done}.",
            signal,
            run.resume_command,
        )

    def _run_stage(self, request: StageRequest) -> StageResult:
        self._stage = StageRun(request)
        return self._stage.run()

    def _train_step_impl(self, batch: DeviceBatch) -> Any:
        """One micro-batch of the stage that runs, as every mode trains on it; the update's result with the last of its step."""
        if self._stage is None:
            raise NotTrainingError("There is no model to train a step of: train() builds it. Call that first.")
        return self._stage.updates.add(batch.tensors, batch.facts)

    def _log_pipeline_performance(self) -> None:
        """Says how long steps took and, where they vary much, which stage waits and what to change."""
        stage = self._stage
        if stage is None or stage.watch is None or stage.source is None:
            return
        _log.info("%s", stage.watch.format_performance(stage.source.read_facts()))

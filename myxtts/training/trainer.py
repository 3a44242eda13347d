"""From a configuration to a trained model: devices, data, codec, GPT."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from myxtts.checkpoints.retention import Checkpoint
from myxtts.cluster.spec import find_cluster
from myxtts.config import ModelConfig, XTTSConfig
from myxtts.config.presets import MODEL_SIZES
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.devices import runtime
from myxtts.devices.plan import DevicePlan
from myxtts.errors import DevicePlanError
from myxtts.models.gpt import GPT
from myxtts.models.names import count_parameters
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.patience import Patience, Work
from myxtts.pipeline.preparation_settings import choose_augmentation
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.auto_mode import PlannedRun, fix_cache, plan_run
from myxtts.training.early_stop import explain_early_stop
from myxtts.training.errors import CodecMissingError, RunStoppedError
from myxtts.training.follower_folder import FollowerFolder
from myxtts.training.gathering import describe_codec, gather_team
from myxtts.training.interrupts import StopNow, StopRequests
from myxtts.training.last_words import Spoken, speak_last_words
from myxtts.training.lengths import count_free_steps
from myxtts.training.mel_statistics import measure_mel_norms
from myxtts.training.mode_choice import ModeChoice
from myxtts.training.run_folder import RunFolder, open_run
from myxtts.training.run_log import keep_run_log
from myxtts.training.run_work import read_start_work
from myxtts.training.stage_run import StageRequest, StageResult, StageRun, describe_data
from myxtts.training.starting_point import (
    Codec,
    StartingPoint,
    adopt_lengths,
    fit_model_config,
    keep_starting_point,
    read_codec,
    read_starting_point,
    require_grown_vocabulary,
    require_same_codec,
    require_same_vocabulary,
)
from myxtts.training.team import Alone, Team
from myxtts.training.trained_decoder import build_decoder_step, describe_decoder
from myxtts.training.trained_model import TrainedModel, build_codec_step, build_gpt_step
from myxtts.training.watchdog import Watchdog
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)

AnyRun = RunFolder | FollowerFolder
DROP_REPORT_NAME = "drop_report.json"
STALLED = "stalled"
"""The event in the metrics file."""
DETERMINISTIC_THREADS = 2
"""Of both roles in every mode: the number of threads decides about last bits."""


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
                f"model_device is {model_device}, but the plan trains on {self.plan.model.device}. Leave it out, or give flags "
                "that plan it so."
            )
        self._model = model
        self._run: AnyRun | None = None
        self._team: Team = Alone()
        training = config.training
        self._cluster = find_cluster(training.cluster, training.worker_index, os.environ)
        self._stage: StageRun | None = None
        self._spoken: Spoken | None = None
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
        with StopRequests() as stop:
            return self._open_watchdog().run(lambda: self._train_until_stopped(stop))

    def _train_until_stopped(self, stop: StopRequests) -> TrainingResult:
        try:
            with stop.while_idle():
                return self._train_run(stop)
        except StopNow:
            assert stop.signal is not None
            raise self._explain_stop(stop.signal) from None

    def _open_watchdog(self) -> Watchdog:
        patience = Patience.from_limit(self.config.training.watchdog_seconds)
        start_s = patience.start_s
        if self._cluster is not None:
            # Others may be started late.
            start_s = max(start_s, self._cluster.rendezvous_s)

        def read_work() -> Work:
            own = None if self._stage is None else self._stage.read_work(start_s)
            return own or read_start_work(self._ledger, start_s)

        return Watchdog(
            read_work, patience, advise=self._advise, on_warning=self._note_stall, on_force=self._note_last_word
        )

    def _advise(self) -> str:
        """How to go on after a hang. Nothing is looked up for it: the disk may be what hangs."""
        if self._run is None:
            return "Nothing was trained in this session. Start it again with the same command."
        return f"To go on from the last checkpoint: {self._run.resume_command}"

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
            train = {"codec": self._train_codec_run, "gpt": self._train_gpt_run, "decoder": self._train_decoder_run}
            return TrainingResult(train[run.stage](run, stop), run.resume_command, self._spoken)

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
            return explain_early_stop(self.config, self._command, signal)
        return RunStoppedError(
            f"Stopped by {signal.name} before the next update. Nothing is lost of the run in {run.path}: {done}.",
            signal,
            run.resume_command,
        )

    def _train_codec_run(self, run: AnyRun, stop: StopRequests) -> StageResult:
        assert isinstance(run, RunFolder), "a cluster trains no codec"
        data = self._collect_data(run, None)
        return self._train_codec(run, self.config, data, stop)

    def _train_gpt_run(self, run: AnyRun, stop: StopRequests) -> StageResult:
        training = self.config.training
        start = None
        if training.init_from:
            start = read_starting_point(Path(training.init_from), run.path, is_resumed=run.is_resumed)
        data = self._collect_data(run, start)
        found = self._find_codec(start)
        config = fit_model_config(self.config, start, None if found is None else found.config, data.text_tokens)
        if found is None:
            assert isinstance(run, RunFolder), "workers of a cluster are given a codec"
            trained = self._train_own_codec(run, config, data, stop)
            if isinstance(trained, StageResult):
                return trained
            found = trained
        codec = found
        if run.checkpoint is not None:
            require_same_codec(codec, run.checkpoint.path)
        _log.info("Model: %s.", _describe_model(config, start))
        return self._run_on_codes(
            run, config, data, codec, lambda steps: build_gpt_step(config, data, codec, start, self._model), stop
        )

    def _train_decoder_run(self, run: AnyRun, stop: StopRequests) -> StageResult:
        training = self.config.training
        start = keep_starting_point(
            Path(training.init_from or training.checkpoint_dir), run.path, is_resumed=run.is_resumed
        )
        asked = adopt_lengths(self.config, start)
        data = self._collect_data(run, start, asked)
        require_same_vocabulary(start, data.text_tokens)
        codec = read_codec(Path(training.codec) if training.codec else start.folder)
        config = fit_model_config(asked, start, codec.config, data.text_tokens)
        if run.checkpoint is not None:
            require_same_codec(codec, run.checkpoint.path)
        if choose_augmentation(config.data) is not None:
            _log.warning("Augmentation is left out: a decoder must learn to sound like the recordings themselves.")
        _log.info("Decoder: %s.", describe_decoder(config, start))
        return self._run_on_codes(
            run, config, data, codec, lambda steps: build_decoder_step(config, data, codec, start), stop
        )

    def _run_on_codes(
        self,
        run: AnyRun,
        config: XTTSConfig,
        data: RunData,
        codec: Codec,
        build: Callable[[int], TrainedModel],
        stop: StopRequests,
    ) -> StageResult:
        """A stage that trains on a codec's codes, and speaks at its end."""
        request = StageRequest(
            run=run,
            config=config,
            plan=self.plan,
            data=data,
            mel_norms=codec.mel_norms,
            codec_folder=codec.folder,
            build=build,
            stop=stop,
            ledger=self._ledger,
            choice=self._choice,
            team=self._team,
        )
        self._team.require_equal("codec", describe_codec(codec), "Copy the chief's to every machine.")
        result = self._run_stage(request)
        # Somebody who wants the process gone does not wait for a sentence.
        is_wanted = config.training.speak and self._team.is_chief
        if result.ending.is_finished and is_wanted and stop.signal is None:
            with self._ledger.spend(Cause.OTHER, "speaking"), suppress(StopNow):
                self._spoken = speak_last_words(run.path, data.train)
        return result

    def _run_stage(self, request: StageRequest) -> StageResult:
        self._stage = StageRun(request)
        try:
            return self._stage.run()
        finally:
            # Once more, with the clips that were replaced during training.
            request.data.report.write_json(request.run.path / DROP_REPORT_NAME)

    def _train_step_impl(self, batch: DeviceBatch) -> Any:
        """One micro-batch of the stage that runs, as every mode trains on it; the update's result with the last of its step."""
        assert self._stage is not None, "train() has built the model"
        return self._stage.updates.add(batch.tensors, batch.facts)

    def _log_pipeline_performance(self) -> None:
        """Says how long steps took and, where they vary much, which stage waits and what to change."""
        stage = self._stage
        if stage is None or stage.watch is None or stage.source is None:
            return
        _log.info("%s", stage.watch.format_performance(stage.source.read_facts()))

    def _collect_data(self, run: AnyRun, start: StartingPoint | None, config: XTTSConfig | None = None) -> RunData:
        vocabulary = None if start is None else start.vocabulary
        with self._ledger.spend(Cause.START_UP, "scanning the corpus") as span:

            def note_progress(kind: str, done: int, total: int) -> None:
                span.item = done

            data = collect_run_data(
                config or self.config, folder=run.path, vocabulary=vocabulary, progress=note_progress
            )
        if start is not None:
            require_grown_vocabulary(start, data.tokenizer_path)
        data.report.write_json(run.path / DROP_REPORT_NAME)
        _log.info("Data: %s", describe_data(data))
        self._team.require_equal(
            "clips",
            asdict(data.fingerprint),
            "Every worker must see the same corpus: copy it, or put it on shared storage.",
        )
        return data

    def _find_codec(self, start: StartingPoint | None) -> Codec | None:
        given = self.config.training.codec
        if given is not None:
            return read_codec(Path(given))
        if start is None:
            return None
        try:
            return read_codec(start.folder)
        except CodecMissingError as error:
            raise CodecMissingError(
                f"{error} A model is fine-tuned on the codes of its own codec; give that one with --codec."
            ) from None

    def _train_own_codec(
        self, run: RunFolder, config: XTTSConfig, data: RunData, stop: StopRequests
    ) -> Codec | StageResult:
        """The codec of a run that was given none: trained now, unless an earlier start of the run has done it."""
        with run.open_codec() as codec_run:
            if not codec_run.is_finished:
                _log.info("No codec was given: one is trained first, in %s.", codec_run.path)
                result = self._train_codec(codec_run, config, data, stop)
                if not result.ending.is_finished:
                    return result
                stop.check()
                self._ledger = TimeLedger()
            return read_codec(codec_run.path)

    def _train_codec(self, run: RunFolder, config: XTTSConfig, data: RunData, stop: StopRequests) -> StageResult:
        mel_norms = self._find_mel_norms(run, data)
        return self._run_stage(
            StageRequest(
                run=run,
                config=config,
                plan=self.plan,
                data=data,
                mel_norms=mel_norms,
                codec_folder=None,
                build=lambda steps: build_codec_step(
                    config, mel_norms, steps=steps, free_steps=count_free_steps(run.list_lengths(steps))
                ),
                stop=stop,
                ledger=self._ledger,
                # The codec that a GPT run trains first is not what was measured.
                choice=self._choice if self.config.training.stage == "codec" else None,
            )
        )

    def _find_mel_norms(self, run: RunFolder, data: RunData) -> Any:
        checkpoint: Checkpoint | None = run.checkpoint
        if checkpoint is not None:
            return read_codec(checkpoint.path).mel_norms
        # On the host: once, before anything trains.
        with self._ledger.spend(Cause.START_UP, "measuring the mel statistics"), get_device_context("/CPU:0"):
            return measure_mel_norms(data.train, self.config.training.seed)


def make_plan(config: XTTSConfig, command: Sequence[str] = ()) -> DevicePlan:
    """The device plan of a configuration on this machine."""
    return plan_run(config, command).plan


def apply_devices(config: XTTSConfig, plan: DevicePlan) -> None:
    """Puts the plan into force in this process, with equal threads and determinism where the run must be bit-exact."""
    if config.training.deterministic:
        runtime.set_thread_pools(DETERMINISTIC_THREADS, DETERMINISTIC_THREADS)
        runtime.enable_determinism()
    runtime.apply_plan(plan)


def _describe_model(config: XTTSConfig, start: StartingPoint | None) -> str:
    counts = count_parameters(config.model)
    parts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in counts.items() if name in ("gpt", "dvae"))
    origin = "from scratch" if start is None else f"fine-tuned from {shlex.quote(str(start.folder))}"
    return f"{_name_size(config.model)} ({parts} parameters), {origin}"


def _name_size(model: ModelConfig) -> str:
    """The size with these numbers, if it has a name: settings, a starting point or a codec may have changed any of them."""
    for name, numbers in MODEL_SIZES.items():
        if all(getattr(model, key) == number for key, number in numbers.items() if key != "decoder_width"):
            return name
    return f"a size of its own, {model.gpt_layers} layers of width {model.gpt_width}"

"""The story of a run, top to bottom: devices, folder, data, codec, model, batches, loop, speech."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.cluster.exchange import MEETING_S
from myxtts.cluster.trainers import find_trainer
from myxtts.config import XTTSConfig
from myxtts.config.presets import BASE_VOICE
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.devices import runtime
from myxtts.devices.plan import DevicePlan
from myxtts.errors import ClusterError, DevicePlanError, HeadLostError, NotTrainingError, UpdateMemoryError
from myxtts.models.gpt import GPT
from myxtts.monitoring.clock import Cause, TimeLedger
from myxtts.monitoring.summary import RunSummary
from myxtts.pipeline.batch import Batch, specify_batch
from myxtts.pipeline.batches import PRODUCER_FOLDER, Batches, OpenRemote, open_batches
from myxtts.pipeline.codes import choose_cache_folder
from myxtts.pipeline.recipe import BatchRecipe, Target, choose_preparation
from myxtts.pipeline.threads import TimeLimits, Work
from myxtts.training.listening import Spoken, speak_at_end
from myxtts.training.loop import Ending, TrainingLoop
from myxtts.training.memory_estimate import RunShape, check_run
from myxtts.training.mode import ModeChoice, PlannedRun, fix_cache, plan_run
from myxtts.training.model import (
    TrainedModel,
    build_codec_step,
    build_decoder_step,
    build_gpt_step,
    check_variables,
    describe_model,
    measure_mel_norms,
    warn_of_strange_voices,
)
from myxtts.training.peers import Peers, gather_peers, open_preparers
from myxtts.training.run_folder import RunFolder, TrainerFolder, open_run, open_worker_folder
from myxtts.training.run_log import REPORT_NAME, RunLog, choose_board, keep_run_log, read_start_work
from myxtts.training.saver import CheckpointSaver, describe_environment
from myxtts.training.schedule import Schedule, count_free_steps, plan_schedule
from myxtts.training.starting_point import (
    Codec,
    StartingPoint,
    find_codec,
    fit_model_config,
    open_start,
    read_codec,
    require_vocabulary,
    take_codec,
)
from myxtts.training.step import UpdateMaker
from myxtts.training.stopping import StopNow, StopRequests, Watchdog, explain_stop
from myxtts.units import SAMPLE_RATE_HZ
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)

DROP_REPORT_NAME = "drop_report.json"
FROM_NOTHING = (
    "Starting from nothing. Before it says sentences that it was not trained on, a model needs tens of hours of speech and more than "
    "ten million codes. --init-from base starts from the voice that comes with MyXTTS, which can speak."
)


@dataclass(frozen=True)
class StageResult:
    """How a stage ended."""

    ending: Ending
    step: int
    summary: RunSummary
    folder: Path
    board: Path
    """Where TensorBoard finds the curves."""

    @property
    def report(self) -> Path:
        """The page about it."""
        return self.folder / REPORT_NAME


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
        """Of the stage that runs or comes next: each has its own."""
        given = plan or runtime.active_plan()
        planned = plan_run(config, command) if given is None else PlannedRun(given, choice)
        self.plan, self._choice = planned.plan, planned.choice
        self.config = config = fix_cache(config, self._choice)
        if model_device is not None and model_device != self.plan.model.device:
            raise DevicePlanError(
                f"model_device is {model_device}, but the plan trains on {self.plan.model.device}. Leave it out, or give settings "
                "that plan it so."
            )
        if model is not None and self.plan.others:
            raise DevicePlanError(
                f"The GPT that was given is on {self.plan.model.device}, but {len(self.plan.trainers)} devices are to train. Leave it out, "
                "and each of them is given a copy; or leave out model_gpus."
            )
        self._model = model
        self._resume_checkpoint = None if resume_checkpoint is None else Path(resume_checkpoint)
        self._command = tuple(command) or (Path(sys.executable).name, *sys.argv)
        self._cluster = find_trainer(os.environ)
        if config.training.trainers > 1 and self._cluster is None:
            raise ClusterError(
                f"training.trainers is {config.training.trainers}, but this process would train alone: `myxtts train` starts them all. "
                "Use that, or leave it out; several cards of this machine are training.model_gpus."
            )
        self._peers: Peers
        self._open_remote: OpenRemote | None = None
        self._run: TrainerFolder | None = None
        # Of the stage that runs, or ran last, as far as it has come.
        self._updates: UpdateMaker | None = None
        self._run_log: RunLog | None = None
        self._recipe: BatchRecipe | None = None
        self._data: RunData | None = None
        self._source: Batches | None = None
        self._is_in_loop = False

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
        return [] if self._run_log is None else list(self._run_log.clock.durations_s)

    def train(self) -> TrainingResult:
        """Trains to the end, or until SIGTERM or Ctrl-C asks for an end: then the run is saved and can be resumed.

        Raises `RunStoppedError` where the signal comes before there is anything to train or between two stages.
        """
        with StopRequests() as stop:
            return self._open_watchdog().run(lambda: self._train(stop))

    def _train(self, stop: StopRequests) -> TrainingResult:
        """All that is open during a run, and what is said where it ends before there is anything to save."""
        try:
            with (
                stop.while_idle(),
                gather_peers(self.config, self.plan, self._cluster, stop, self._ledger) as self._peers,
                self._open_run() as self._run,
                keep_run_log(self._run.path),
                open_preparers(self.config, self.plan) as self._open_remote,
            ):
                stop.take()
                return self._train_run(self._run)
        except HeadLostError as error:
            resume = "" if self._run is None else f"\nTo go on from the last checkpoint:\n  {self._run.resume_command}"
            raise HeadLostError(f"{error}{resume}") from None
        except StopNow:
            assert stop.signal is not None
            raise explain_stop(self.config, self._command, stop.signal, is_open=self._run is not None) from None

    @contextmanager
    def _open_run(self) -> Iterator[TrainerFolder]:
        """The chief's folder of the run, or the own one of another worker."""
        with ExitStack() as opened:
            found: list[TrainerFolder] = []

            def open_folder() -> bool:
                run = open_run(self.config, command=self._command, checkpoint=self._resume_checkpoint)
                found.append(opened.enter_context(run))
                return found[0].is_resumed

            is_resumed = self._peers.lead("open", open_folder)
            if not found:
                own = open_worker_folder(self.config, self._peers.share.part, self._command, is_resumed=is_resumed)
                found.append(opened.enter_context(own))
            yield found[0]

    def _train_run(self, run: TrainerFolder) -> TrainingResult:
        """Trains what the run is for: a codec; or a GPT, after its codec where none is given; or a GPT's decoder."""
        run.note_choice(None if self._choice is None else asdict(self._choice))
        config, start = open_start(
            self.config, run.path, is_resumed=run.is_resumed, keeps=self.config.training.keeps_start
        )
        data = self._collect_data(run, config, start)
        if run.stage == "codec":
            return TrainingResult(self._train_stage(run, config, data), run.resume_command)
        codec = find_codec(config, start)
        config = fit_model_config(config, start, None if codec is None else codec.config, data.text_tokens)
        if codec is None:
            assert isinstance(run, RunFolder), "workers of a cluster are given a codec"
            with run.open_codec() as codec_run:
                if not codec_run.is_finished:
                    _log.info("No codec was given: one is trained first, in %s.", codec_run.path)
                    result = self._train_stage(codec_run, config, data)
                    if not result.ending.is_finished:
                        return TrainingResult(result, run.resume_command)
                    self._peers.stop.check()
                    self._ledger = TimeLedger()
                codec = read_codec(codec_run.path)
        run.require_codec(codec)
        if self._peers.size > 1:
            self._peers.require_equal("codec", {"digest": codec.digest}, "Copy the chief's to every machine.")
        _log.info("%s.", describe_model(config, start, run.stage))
        if start is None and not run.is_resumed:
            _log.info("%s", FROM_NOTHING)
        elif config.training.init_from == BASE_VOICE and config.training.codec is None and not run.is_resumed:
            with get_device_context("/CPU:0"):
                warn_of_strange_voices(data.train, codec, config.training.seed)
        result = self._train_stage(run, config, data, codec, start)
        return TrainingResult(result, run.resume_command, self._speak_at_end(run, data, result))

    def _collect_data(self, run: TrainerFolder, config: XTTSConfig, start: StartingPoint | None) -> RunData:
        """The clips to train on, with a vocabulary that fits the model to start from."""
        vocabulary = None if start is None else start.vocabulary
        with self._ledger.spend(Cause.START_UP, "scanning the corpus") as span:

            def note_progress(kind: str, done: int, total: int) -> None:
                span.item = done

            data = collect_run_data(config, folder=run.path, vocabulary=vocabulary, progress=note_progress)
        if start is not None:
            is_trained = run.stage == "gpt" and not config.training.lora_rank
            require_vocabulary(start, data.tokenizer_path, data.text_tokens, is_trained=is_trained)
        data.report.write_json(run.path / DROP_REPORT_NAME)
        _log.info("Data: %s", _describe_data(data, has_fixed_shapes=config.data.pad_to_fixed_length))
        advice = "Every worker must see the same corpus: copy it, or put it on shared storage."
        self._peers.require_equal("clips", asdict(data.fingerprint), advice)
        return data

    def _train_stage(
        self,
        run: TrainerFolder,
        config: XTTSConfig,
        data: RunData,
        codec: Codec | None = None,
        start: StartingPoint | None = None,
    ) -> StageResult:
        """Trains to the end, or until it is told to stop: a codec where none is given, else the GPT or the decoder of one."""
        peers, schedule = self._peers, plan_schedule(config, data.sampler, run.stage)
        mel_norms = self._find_mel_norms(run, config, data) if codec is None else codec.mel_norms
        recipe = self._plan_batches(run, config, data, schedule, mel_norms, None if codec is None else codec.folder)
        trained = self._build_model(run, recipe, data, codec, start)
        saver = CheckpointSaver(run, config, trained, data, describe_environment(self.plan, peers.size))
        self._run_log, self._recipe, self._source = None, None, None
        self._updates = UpdateMaker(
            trained.step,
            schedule.choose_rate,
            accumulation=config.training.gradient_accumulation_steps,
            retries=config.training.on_oom == "retry",
            sum_workers=peers.sum_gradients if peers.size > 1 else None,
            worker=peers.share.part * len(self.plan.trainers),
        )
        if isinstance(run, RunFolder):
            _log.info("%s", run.store.describe_disk(trained.collect_content(), trained.collect_tensors()))
        peers.lead("begin", lambda: run.begin(schedule.end_step, saver.environment))
        with self._ledger.spend(Cause.START_UP, "restoring the checkpoint"), get_device_context(self.model_device):
            saver.restore()
            peers.share_start(saver)
        # The codec that a GPT run trains first is not what was measured.
        predicted_s = self._choice.step_s if self._choice and run.stage == self.config.training.stage else None
        # From here on a signal ends the run at the next update. Before, there is nothing to save, and it ends at once.
        with (
            peers.stop.while_busy(),
            get_device_context(self.model_device),
            RunLog(saver, schedule, self.plan, self._ledger, predicted_s) as log,
        ):
            self._run_log, self._is_in_loop = log, True
            try:
                ending = self._run_loop(saver, schedule, recipe, log)
            except BaseException:
                log.summarise(saver.progress.step, "failed")
                raise
            finally:
                self._is_in_loop = False
                # Once more, with the clips that were replaced during training.
                data.report.write_json(run.path / DROP_REPORT_NAME)
            summary = log.summarise(saver.progress.step, "finished" if ending.is_finished else "stopped")
            if ending.is_finished:
                run.finish(ending.reason, is_early=ending.is_early)
        return StageResult(ending, saver.progress.step, summary, run.path, choose_board(run, self.config))

    def _find_mel_norms(self, run: TrainerFolder, config: XTTSConfig, data: RunData) -> NDArray[np.float32]:
        """Of a codec that is trained: those it began with, or measured now."""
        saved = run.open_checkpoint()
        if saved is not None:
            return take_codec(saved.model).mel_norms
        # On the host: once, before anything trains.
        with self._ledger.spend(Cause.START_UP, "measuring the mel statistics"), get_device_context("/CPU:0"):
            return measure_mel_norms(data.train, config.training.seed)

    def _plan_batches(
        self,
        run: TrainerFolder,
        config: XTTSConfig,
        data: RunData,
        schedule: Schedule,
        mel_norms: NDArray[np.float32],
        codec_folder: Path | None = None,
    ) -> BatchRecipe:
        """What the batches of a stage are made of. Said and refused is what of it does not fit into memory.

        Args:
            config: with the numbers that data and starting point have fixed.
            codec_folder: whose codes a GPT learns, or says; None to train the codec.
        """
        preparation = choose_preparation(config, Target(run.stage), mel_norms.tolist(), speakers=data.speakers)
        recipe = BatchRecipe(
            config=config,
            plan=self.plan,
            preparation=preparation,
            validation_interval=schedule.validation_interval,
            first_step=0,
            end_step=schedule.end_step,
            codec_folder=codec_folder,
            cache_folder=choose_cache_folder(data, run.path),
            share=self._peers.share,
        )
        bills = check_run(config, self.plan, RunShape(run.stage, recipe.list_buckets(data), preparation))
        _log.info("%s", bills)
        if self.plan.has_producer:
            # It begins with whole batches and finds out by itself how many clips fit: the bill is an estimate.
            return recipe
        return replace(recipe, preparation=replace(preparation, rows_at_a_time=bills.rows_at_a_time))

    def _build_model(
        self, run: TrainerFolder, recipe: BatchRecipe, data: RunData, codec: Codec | None, start: StartingPoint | None
    ) -> TrainedModel:
        """What a stage trains, on the model device."""
        config, end_step = recipe.config, recipe.end_step
        _log.info("Creating model on device: %s", self.model_device)
        with (
            self._ledger.spend(Cause.START_UP, "building the model"),
            get_device_context(self.model_device),
            self._peers.scope(),
        ):
            if codec is None:
                assert isinstance(run, RunFolder), "a cluster trains no codec"
                mel_norms = np.array(recipe.preparation.mel_norms, np.float32)
                free_steps = count_free_steps(run.list_lengths(end_step))
                trained = build_codec_step(config, mel_norms, steps=end_step, free_steps=free_steps)
            elif run.stage == "gpt":
                trained = build_gpt_step(config, data, codec, start, self._model)
            else:
                assert start is not None, "a decoder is trained for a GPT"
                trained = build_decoder_step(config, data, codec, start)
        check_variables(trained.list_variables(), [role.device for role in self.plan.trainers])
        return trained

    def _run_loop(self, saver: CheckpointSaver, schedule: Schedule, recipe: BatchRecipe, log: RunLog) -> Ending:
        """Runs the loop; where an update ran out of memory, again from the last checkpoint, in smaller parts."""
        assert self._updates is not None
        cause, failed_at = Cause.START_UP, None
        while True:
            opening = partial(self._open_batches, saver, recipe, cause)
            try:
                return TrainingLoop(opening, self._updates, saver, schedule, log, self._peers).run()
            except UpdateMemoryError as error:
                failed_at, cause = self._recover(error, failed_at, saver, log), Cause.RECOVERY

    def _open_batches(self, saver: CheckpointSaver, recipe: BatchRecipe, cause: Cause) -> Batches:
        """The batches from where the run stands."""
        assert self._updates is not None
        progress, self._data = saver.progress, saver.data
        failures = tuple(saver.journal.list_failures(progress.step))
        self._recipe = replace(recipe, first_step=progress.step, is_validated=progress.is_validated, failures=failures)
        with ExitStack() as undo:
            with self._ledger.spend(cause, "opening the pipeline"):
                self._source = source = open_batches(
                    self._recipe,
                    saver.data,
                    folder=saver.run.path / PRODUCER_FOLDER,
                    # Nothing else of it: an end in the midst of opening would leave threads and processes behind.
                    waiting=self._peers.stop.while_idle,
                    open_remote=self._open_remote,
                )
            undo.callback(source.close)
            if saver.trained.step.uses_xla:
                # Here and not at each shape's first batch: the pipeline fills meanwhile.
                shapes = [specify_batch(recipe.preparation, bucket) for bucket in recipe.list_buckets(saver.data)]
                with self._ledger.spend(Cause.TRACE, "compiling the step") as span:

                    def note_shape(number: int) -> None:
                        span.item = number

                    self._updates.compile_ahead(shapes, progress.step, note_shape)
            undo.pop_all()
        return source

    def _recover(self, error: UpdateMemoryError, failed_at: int | None, saver: CheckpointSaver, log: RunLog) -> int:
        """Goes back to the last checkpoint after an update that ran out of memory. Returns the update's number.

        Raises the error, with the ways out, where that is hopeless or not wanted.
        """
        step, saved = saver.progress.step, saver.saved_step
        is_hopeless = failed_at == step or saved is None
        # Others have made the update, or wait for it: only all of them together can go back.
        if saver.config.training.on_oom == "stop" or is_hopeless or self._peers.size > 1:
            raise _explain_way_out(error, saved) from error
        assert self._updates is not None
        self._updates.parts *= 2
        _log.warning(
            "Out of memory inside the update of step %d. Going on from the checkpoint of step %d, in parts half as large.",
            step,
            saved,
        )
        with log.ledger.spend(Cause.RECOVERY):
            saver.restore()
        log.rewind(saver.progress.step, saver.progress.is_validated)
        return step

    def _speak_at_end(self, run: TrainerFolder, data: RunData, result: StageResult) -> Spoken | None:
        stop, spoken = self._peers.stop, None
        is_wanted = self.config.training.speak and self._peers.is_chief
        # Somebody who wants the process gone does not wait for a sentence.
        if result.ending.is_finished and is_wanted and stop.signal is None:
            with self._ledger.spend(Cause.OTHER, "speaking"), suppress(StopNow):
                spoken = speak_at_end(run.path, data.train, could_speak=self.config.training.init_from is not None)
        # Nobody goes before the chief is done: whoever watches over workers starts only those again that failed.
        with stop.while_busy(), self._ledger.spend(Cause.OTHER_WORKERS, "waiting for all workers at the end"):
            self._peers.sum_numbers("end", [])
        return spoken

    def _open_watchdog(self) -> Watchdog:
        limits = TimeLimits.from_setting(self.config.training.watchdog_seconds)
        start_s = limits.setup_s
        if self._cluster is not None:
            # Others may be started late.
            start_s = max(start_s, MEETING_S)

        def read_work() -> Work:
            if self._is_in_loop and self._run_log is not None:
                return self._run_log.read_work(self._source, start_s)
            return read_start_work(self._ledger, start_s)

        def tell(text: str, is_last: bool) -> None:
            if self._run_log is not None:
                self._run_log.note_stall(text, is_last=is_last)

        return Watchdog(read_work, limits, advise=self._advise, tell=tell)

    def _advise(self) -> str:
        """How to go on after a hang. Nothing is looked up for it: the disk may be what hangs."""
        if self._run is None:
            return "Nothing was trained in this session. Start it again with the same command."
        return f"To go on from the last checkpoint:\n  {self._run.resume_command}"

    def _train_step_impl(self, batch: Batch) -> Any:
        """One micro-batch of the stage that runs, as every mode trains on it; the update's result with the last of its step."""
        if self._updates is None:
            raise NotTrainingError("There is no model to train a step of: train() builds it. Call that first.")
        return self._updates.add(batch.tensors, batch.info.facts)

    def _log_pipeline_performance(self) -> None:
        """Says how long steps took and, where they vary much, which stage waits and what to change."""
        if self._run_log is not None and self._source is not None:
            _log.info("%s", self._run_log.format_performance(self._source.read_facts()))


def _describe_data(data: RunData, *, has_fixed_shapes: bool) -> str:
    """What is trained on, in a line."""
    buckets = len(data.sampler.plan.buckets)
    shapes = f"{buckets} batch shapes" if has_fixed_shapes else f"a shape for every batch of {buckets} groups by length"
    return (
        f"{len(data.train)} clips ({data.train.total_seconds / 60:.1f} min) to train on, {len(data.validation)} to validate "
        f"with; {shapes}, {data.sampler.steps_per_epoch} updates per epoch, "
        f"{data.sampler.plan.waste.audio_share:.1%} padding at {SAMPLE_RATE_HZ} Hz."
    )


def _explain_way_out(error: UpdateMemoryError, saved: int | None) -> UpdateMemoryError:
    begins = "from step 0, as there is no checkpoint yet" if saved is None else f"from the checkpoint of step {saved}"
    smaller = (
        "Before the first checkpoint the settings may still be changed: half the --batch-size and twice the --grad-accum, or a "
        "smaller --model-size, need less."
        if saved is None
        else "A run that needs less has a smaller --batch-size and a larger --grad-accum, and another --checkpoint-dir."
    )
    return UpdateMemoryError(f"{error} Started again, the run goes on {begins}. {smaller}")

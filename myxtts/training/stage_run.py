"""One stage of a run from its folder to its end: the parts are built, joined, run and closed here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.checkpoints.store import Checkpoint, DiskNeed
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import DevicePlan
from myxtts.monitoring.metrics_rows import RunRow
from myxtts.monitoring.run_summary import RunSummary
from myxtts.monitoring.settings_in_force import Surroundings, settle_sections
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_source import PRODUCER_FOLDER, BatchSource, SourceRequest
from myxtts.pipeline.code_cache import choose_cache_folder
from myxtts.pipeline.host_source import make_maker
from myxtts.pipeline.order import Kind, RunOrder
from myxtts.pipeline.preparation_settings import PreparationSettings, Target, choose_preparation, reads_prompts
from myxtts.pipeline.production import Production
from myxtts.pipeline.sources import open_source
from myxtts.pipeline.stage import Work
from myxtts.training.errors import UpdateMemoryError
from myxtts.training.lengths import (
    choose_checkpoint_interval,
    choose_validation_interval,
    compute_learning_rate,
    count_updates,
)
from myxtts.training.loop import ALL_DONE, Ending, Intervals, TrainingLoop, describe_stop
from myxtts.training.memory_estimate import RunShape, check_run
from myxtts.training.mode import ModeChoice
from myxtts.training.model import Keeper, RunProgress, TrainedModel
from myxtts.training.placement import check_variables, describe_environment
from myxtts.training.run_folder import FollowerFolder, RunFolder
from myxtts.training.run_log import REPORT_NAME, RunWatch, read_run_work
from myxtts.training.step import UpdateMaker
from myxtts.training.stopping import StopNow, StopRequests
from myxtts.training.workers import Alone, Team
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)

TENSORBOARD_FOLDER = "tensorboard"


@dataclass(frozen=True, eq=False)
class StageRequest:
    """What one stage is run with."""

    run: RunFolder | FollowerFolder
    config: XTTSConfig
    """With the numbers that data and starting point have fixed."""
    plan: DevicePlan
    data: RunData
    mel_norms: Any
    codec_folder: Path | None
    """Whose codes a GPT learns, or says; None to train the codec."""
    build: Callable[[int], TrainedModel]
    """Makes the model for so many updates; called under the model device's scope."""
    stop: StopRequests
    ledger: TimeLedger
    choice: ModeChoice | None = None
    """What `--mode auto` chose for this stage."""
    team: Team = field(default_factory=Alone)
    """Who trains it."""


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


class StageRun:
    """A stage that is ready to run."""

    def __init__(self, request: StageRequest):
        self._request = request
        config, data = request.config, request.data
        training = config.training
        self.end_step = count_updates(config, data.sampler, request.run.stage)
        self._validation_interval = choose_validation_interval(training, data.sampler)
        self._intervals = Intervals(
            log=training.log_interval,
            checkpoint=choose_checkpoint_interval(training, self._validation_interval),
            early_stopping=training.early_stopping,
            saves_best=training.keep_best > 0 and training.best_metric == "val_loss",
        )
        self._board = choose_board(request.run, training.tensorboard_log_dir)
        self._environment = describe_environment(request.plan, request.team.size)
        device = request.plan.model.device
        self._preparation = self._choose_preparation()
        _log.info("Creating model on device: %s", device)
        with request.ledger.spend(Cause.START_UP, "building the model"), get_device_context(device):
            self.trained = request.build(self.end_step)
            self._listener = self.trained.make_listener(request.run.path)
        check_variables(self.trained.list_variables(), device)
        self._keeper = Keeper(request.run, config, self.trained, data, self._environment)
        self.source: BatchSource | None = None
        """While it runs."""
        self.watch: RunWatch | None = None
        self._is_running = False
        self.updates = UpdateMaker(
            self.trained.step,
            self.choose_rate,
            accumulation=training.gradient_accumulation_steps,
            retries=training.on_oom == "retry",
            sum_workers=request.team.sum_gradients if request.team.size > 1 else None,
            worker=request.team.share.part,
        )
        if isinstance(request.run, RunFolder):
            need = request.run.store.estimate_disk(self.trained.collect_content(), self.trained.collect_tensors())
            _log.info("%s", _describe_disk(need, request.run.path))

    def run(self) -> StageResult:
        """Trains to the end, or until it is told to stop."""
        request = self._request
        request.team.lead("begin", self._begin)
        with request.ledger.spend(Cause.START_UP, "restoring the checkpoint"):
            progress = self._restore(request.run.checkpoint)
        # From here on a signal ends the run at the next update. Before, there is nothing to save, and it ends at once.
        with request.stop.while_busy():
            return self._run_watched(progress)

    def _run_watched(self, progress: RunProgress) -> StageResult:
        request = self._request
        with self._open_watch(progress) as watch, get_device_context(request.plan.model.device):
            self.watch, self._is_running = watch, True
            try:
                ending, progress = self._train(watch, progress)
            except BaseException:
                watch.summarise(progress.step, "failed")
                raise
            finally:
                self._is_running = False
            summary = watch.summarise(progress.step, "finished" if ending.is_finished else "stopped")
        if ending.is_finished:
            request.run.finish(ending.reason, is_early=ending.is_early)
        return StageResult(ending, progress.step, summary, request.run.path, self._board)

    def read_work(self, start_s: float) -> Work | None:
        """What the training thread is doing while the stage runs; None before and after. For any thread.

        Args:
            start_s: how long a part of its start-up may take.
        """
        return read_run_work(self.watch, self.source, start_s) if self.watch is not None and self._is_running else None

    def _choose_preparation(self) -> PreparationSettings:
        """What batches hold; said and refused is what of it does not fit into memory."""
        request, plan = self._request, self._request.plan
        settings = choose_preparation(request.config, Target(request.run.stage), request.mel_norms)
        buckets = request.team.share.shrink_all(request.data.sampler.plan.buckets)
        bills = check_run(request.config, plan, RunShape(request.run.stage, buckets, settings))
        _log.info("%s", bills)
        if plan.has_producer:
            # It begins with whole batches and finds out by itself how many clips fit: the bill is an estimate.
            return settings
        return replace(settings, rows_at_a_time=bills.rows_at_a_time)

    def choose_rate(self, step: int) -> float:
        """The learning rate of an update."""
        return compute_learning_rate(self._request.config.training, step, self.end_step)

    def _begin(self) -> int:
        run = self._request.run
        assert isinstance(run, RunFolder), "the chief's"
        return run.begin(self.end_step, self._environment)

    def _restore(self, checkpoint: Checkpoint | None) -> RunProgress:
        with get_device_context(self._request.plan.model.device):
            progress = RunProgress() if checkpoint is None else self._keeper.restore(checkpoint)
            return self._request.team.start_from(progress, self._keeper, self.trained)

    def _train(self, watch: RunWatch, progress: RunProgress) -> tuple[Ending, RunProgress]:
        """Runs the loop; where an update ran out of memory, again from the last checkpoint, in smaller parts."""
        request, training = self._request, self._request.config.training
        failed_at: int | None = None
        while progress.step < self.end_step or not progress.is_validated:
            try:
                request.stop.check()
                cause = Cause.START_UP if failed_at is None else Cause.RECOVERY
                with request.ledger.spend(cause, "opening the pipeline"):
                    self.source = source = self._open_source(progress)
            except StopNow:
                if request.team.size > 1:
                    # The others wait for a batch, and are to hear why it does not come.
                    raise
                assert request.stop.signal is not None
                return describe_stop(request.stop.signal), progress
            try:
                return self._run_loop(source, watch, progress), progress
            except UpdateMemoryError as error:
                is_hopeless = failed_at == progress.step or self._keeper.saved_step is None
                # Others have made the update, or wait for it: only all of them together can go back.
                if training.on_oom == "stop" or is_hopeless or request.team.size > 1:
                    raise self._explain_way_out(error) from error
                assert isinstance(request.run, RunFolder), "of a run that is trained alone"
                failed_at = progress.step
                self.updates.parts *= 2
                _log.warning(
                    "Out of memory inside the update of step %d. Going on from the checkpoint of step %d, in parts half as large.",
                    failed_at,
                    self._keeper.saved_step,
                )
                with watch.ledger.spend(Cause.RECOVERY):
                    progress = self._restore(request.run.store.latest())
                watch.rewind(progress.step, progress.is_validated)
            finally:
                source.close()
        return Ending(ALL_DONE, is_finished=True), progress

    def _explain_way_out(self, error: UpdateMemoryError) -> UpdateMemoryError:
        saved = self._keeper.saved_step
        begins = (
            "from step 0, as there is no checkpoint yet" if saved is None else f"from the checkpoint of step {saved}"
        )
        smaller = (
            "Before the first checkpoint the settings may still be changed: half the --batch-size and twice the --grad-accum, or a "
            "smaller --model-size, need less."
            if saved is None
            else "A run that needs less has a smaller --batch-size and a larger --grad-accum, and another --checkpoint-dir."
        )
        return UpdateMemoryError(f"{error} Started again, the run goes on {begins}. {smaller}")

    def _run_loop(self, source: BatchSource, watch: RunWatch, progress: RunProgress) -> Ending:
        request = self._request
        loop = TrainingLoop(
            source=source,
            trained=self.trained,
            updates=self.updates,
            order=self._make_order(progress),
            data=request.data,
            keeper=self._keeper,
            watch=watch,
            intervals=self._intervals,
            stop=request.stop,
            listener=self._listener,
            device=request.plan.model.device,
            progress=progress,
            choose_rate=self.choose_rate,
            plan_step=make_maker(
                request.data,
                Kind.TRAIN,
                request.config.data,
                reads_prompts(request.config.data, self._preparation.target),
            ).plan_step,
            team=request.team,
        )
        return loop.run()

    def _make_order(self, progress: RunProgress) -> RunOrder:
        data = self._request.data
        return RunOrder(
            data.sampler,
            data.validation_batches,
            validation_interval=self._validation_interval,
            end_step=self.end_step,
            first_step=progress.step,
            is_validated=progress.is_validated,
        )

    def _open_source(self, progress: RunProgress) -> BatchSource:
        request = self._request
        return open_source(
            SourceRequest(
                plan=request.plan,
                data=request.data,
                order=self._make_order(progress),
                production=self._describe_production(progress),
                folder=request.run.path / PRODUCER_FOLDER,
                # Nothing else of it: an end in the midst of opening would leave threads and processes behind.
                waiting=request.stop.while_idle,
            )
        )

    def open_factory(self) -> BatchFactory:
        """What makes the batches of this stage on the data device, in this process."""
        request = self._request
        production = self._describe_production(RunProgress())
        return BatchFactory(request.data, production, request.plan.data.device)

    def _describe_production(self, progress: RunProgress) -> Production:
        request = self._request
        return Production(
            config=request.config,
            preparation=self._preparation,
            validation_interval=self._validation_interval,
            first_step=progress.step,
            end_step=self.end_step,
            codec_folder=request.codec_folder,
            cache_folder=choose_cache_folder(request.data, request.run.path),
            failures=tuple(self._keeper.journal.list_failures(progress.step)),
            share=request.team.share,
        )

    def _open_watch(self, progress: RunProgress) -> RunWatch:
        request, training = self._request, self._request.config.training
        plan = request.plan
        around = Surroundings.of_machine(read_machine())
        row = RunRow(
            time_s=time.time(),
            step=progress.step,
            end_step=self.end_step,
            stage=request.run.stage,
            mode=str(plan.mode),
            devices={"data": plan.data.device, "model": plan.model.device},
            settings=self._settle_settings(around),
            environment=self._environment,
            around=around.dump(),
            predicted_step_s=None if request.choice is None else request.choice.step_s,
        )
        return RunWatch(
            request.run.path,
            ledger=request.ledger,
            row=row,
            resumed=progress.step > 0,
            is_validated=progress.is_validated,
            plan=plan,
            tensorboard=self._board,
            epochs=training.epochs if request.run.stage == training.stage else None,
            checkpoint_interval=self._intervals.checkpoint,
        )

    def _settle_settings(self, around: Surroundings) -> dict[str, dict[str, Any]]:
        """The configuration in force, with what `auto` came to."""
        sections = settle_sections(self._request.config, around)
        sections["training"]["validation_interval"] = self._validation_interval
        sections["training"]["checkpoint_interval"] = self._intervals.checkpoint
        return sections


def describe_data(data: RunData, *, has_fixed_shapes: bool) -> str:
    """What is trained on, in a line."""
    buckets = len(data.sampler.plan.buckets)
    shapes = f"{buckets} batch shapes" if has_fixed_shapes else f"a shape for every batch of {buckets} groups by length"
    return (
        f"{len(data.train)} clips ({data.train.total_seconds / 60:.1f} min) to train on, {len(data.validation)} to validate "
        f"with; {shapes}, {data.sampler.steps_per_epoch} updates per epoch, "
        f"{data.sampler.plan.waste.audio_share:.1%} padding at {SAMPLE_RATE_HZ} Hz."
    )


def choose_board(run: RunFolder | FollowerFolder, given: str | None) -> Path:
    """The folder of the curves. One run writes into one folder: other workers than the chief keep to their own."""
    return run.path / TENSORBOARD_FOLDER if given is None or isinstance(run, FollowerFolder) else Path(given)


def _describe_disk(need: DiskNeed, folder: Path) -> str:
    room = f"{need.peak_bytes / 1e6:.0f} MB in {folder} ({need.kept} kept, {need.checkpoint_bytes / 1e6:.0f} MB each)"
    free = f"{need.free_bytes / 1e9:.1f} GB are free"
    return f"Checkpoints need {room}; {free}." + ("" if need.is_met else " That is too little: a save will fail.")

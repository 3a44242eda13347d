"""The training loop: take a batch, train on it, and now and then read, validate, save."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.data.host_batches import find_batches
from myxtts.data.sampler import Kind, count_micro_batches
from myxtts.errors import MachineError, ValidationMemoryError
from myxtts.monitoring.clock import Cause
from myxtts.monitoring.memory import Phase
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import Batches
from myxtts.pipeline.recipe import Target, choose_preparation, reads_prompts
from myxtts.training.model import check_batch, check_placement
from myxtts.training.peers import Peers
from myxtts.training.run_log import RunLog
from myxtts.training.saver import CheckpointSaver
from myxtts.training.schedule import Schedule
from myxtts.training.step import UpdateMaker
from myxtts.training.stopping import StopNow

RESULT = "the step's result"


class RoundResult(NamedTuple):
    """What a whole round has shown."""

    loss: float
    is_best: bool
    """Whether it is better than that of all rounds before."""


class ValidationRound:
    """Adds up the batches of one round after another. While a round is under way the model holds its averaged weights, if it
    has any.
    """

    def __init__(self, updates: UpdateMaker, saver: CheckpointSaver, schedule: Schedule, log: RunLog, peers: Peers):
        self._updates = updates
        self._trained = saver.trained
        self._data = saver.data
        self._progress = saver.progress
        self._schedule = schedule
        self._log = log
        self._peers = peers
        self._sums: list[tf.Tensor] = []
        """Of the batches of the round under way, still on the device."""
        self._averaged = ExitStack()

    @property
    def is_open(self) -> bool:
        """Whether a round is under way."""
        return bool(self._sums)

    def is_due(self) -> bool:
        """Whether a round comes after the update done last."""
        return self._data.validation_batches > 0 and self._schedule.validates_after(self._progress.step)

    def add(self, batch: Batch, *, is_new: bool) -> None:
        """Evaluates a batch of the round.

        Raises `ValidationMemoryError` where the round cannot be made; the error says that the run is saved, which is the caller's to
        do.
        """
        if not self.is_open:
            self._begin(batch)
        traces = self._trained.step.count_traces()
        with self._log.ledger.spend(Cause.VALIDATION) as span:
            span.is_first = is_new
            self._sums.append(self._updates.evaluate(batch.tensors, batch.info.facts, self._choose_phase()))
            if self._trained.step.count_traces() != traces:
                span.cause = Cause.TRACE
            if is_new:
                check_placement(RESULT, self._sums[-1], self._trained.device)
        self._log.clock.leave_out()

    def take_result(self) -> RoundResult | None:
        """What the round has shown, which is noted in the progress; None while batches of it are missing."""
        if len(self._sums) < self._data.validation_batches:
            return None
        sums = np.asarray(tf.add_n(self._sums)).tolist()
        self.abandon()
        return self._rank(self._peers.sum_numbers(f"validation after {self._progress.step} updates", sums))

    def abandon(self) -> None:
        """Forgets the round under way, if there is one, and gives the model its own weights again."""
        self._sums.clear()
        self._averaged.close()

    def _begin(self, batch: Batch) -> None:
        average = self._trained.step.average
        try:
            if average is not None:
                self._averaged.enter_context(average.in_place())
        except tf.errors.ResourceExhaustedError as error:
            raise ValidationMemoryError(
                f"Out of memory before the validation after {batch.info.facts.updates} updates: there is no room for the weights beside "
                "their average. The run is saved. Make room on the device or raise --model-gpu-memory, and start it again."
            ) from error
        if self._peers.is_chief:
            self._log.listen(self._progress.step, batch, self._data.validation)

    def _choose_phase(self) -> str:
        return self._trained.step.objective.choose_phase(self._progress.step - 1)

    def _rank(self, sums: list[float]) -> RoundResult:
        progress, objective, phase = self._progress, self._trained.step.objective, self._choose_phase()
        scalars = objective.name_results(dict(zip(objective.sum_names, sums, strict=True)), phase)
        loss = scalars.pop("loss")
        is_ranked = objective.is_ranked(phase)
        # A first loss that is not a number would be the best for ever.
        is_best = is_ranked and loss < (math.inf if progress.best_loss is None else progress.best_loss)
        if is_ranked:
            progress.best_loss = loss if is_best else progress.best_loss
            progress.rounds_without_better = 0 if is_best else progress.rounds_without_better + 1
        progress.is_validated = True
        self._log.log_validation(step=progress.step, loss=loss, scalars=scalars, is_best=is_best)
        self._log.end_phase(progress.step, Phase.VALIDATION)
        return RoundResult(loss, is_best)


@dataclass(frozen=True)
class Ending:
    """Why a loop ended."""

    reason: str
    is_finished: bool
    """False when the run is to be resumed."""
    signal: Signals | None = None
    """That asked for the end."""
    is_early: bool = False
    """Whether nothing got better any more."""


class TrainingLoop:
    """Trains until all updates are done, a signal asks for an end, or nothing gets better any more.

    Call `run` under the model device's scope, in the thread the model was built in.

    Args:
        open_batches: opens the batches from where the run stands; the loop closes them.
    """

    def __init__(
        self,
        open_batches: Callable[[], Batches],
        updates: UpdateMaker,
        saver: CheckpointSaver,
        schedule: Schedule,
        log: RunLog,
        peers: Peers,
    ):
        self._open_batches = open_batches
        self._updates = updates
        self._saver = saver
        self._step = saver.trained.step
        self._device = saver.trained.device
        self._progress = saver.progress
        self._schedule = schedule
        self._log = log
        self._peers = peers
        self._source: Batches
        self._held: Batch | None = None
        self._results: list[tf.Tensor] = []
        """Of the updates since the last reading, still on the device."""
        self._seen_shapes: set[tuple[Any, ...]] = set()
        self._seen_buckets: set[int] = set()
        """Of the training."""
        self._is_result_due = False
        """Whether a batch of the step under way has a shape that no result was looked at for."""
        self._train_loss: float | None = None
        """Of the updates between the last two readings."""
        self._has_traced = False
        """Whether the update under way has."""
        self._epoch = 0
        self._validation = ValidationRound(updates, saver, schedule, log, peers)

    def run(self) -> Ending:
        """Trains. Whatever ends it, nothing that was reached and could be saved is lost."""
        # Before the first batch: a run killed between its last checkpoint and its end must not train on.
        if (ending := self._find_ending()) is not None:
            return ending
        with ExitStack() as opened:
            try:
                self._peers.stop.check()
                self._source = opened.enter_context(closing(self._open_batches()))
                self._log.begin_loop()
                ending = self._run_batches()
            except StopNow:
                if self._peers.size > 1:
                    # The others wait for a batch, and are to hear why it does not come.
                    raise
            except ValidationMemoryError:
                # What was trained until a validation that cannot be made is kept.
                self._validation.abandon()
                self._save_unless_saved()
                raise
            finally:
                self._validation.abandon()
            self._save_unless_saved()
        ending = ending or self._find_ending()
        assert ending is not None, "a signal has come"
        return ending

    def _run_batches(self) -> Ending:
        while True:
            batch = self._peers.take(self._source, self._log.ledger)
            facts = batch.info.facts
            if facts.kind is Kind.TRAIN:
                self._train(batch)
            else:
                self._validate(batch)
            self._hold(batch)
            # Only between updates, where a checkpoint can be taken.
            is_between = facts.kind is not Kind.TRAIN or facts.is_last_of_step
            if is_between and (ending := self._find_ending()) is not None:
                return ending

    def _hold(self, batch: Batch) -> None:
        """Keeps a batch until the step after its own is under way: a GPU may still be reading it."""
        if self._held is not None:
            self._source.release()
        self._held = batch

    def _train(self, batch: Batch) -> None:
        facts = batch.info.facts
        is_new = self._check_inputs(batch)
        self._is_result_due |= is_new
        for failure in batch.info.replaced:
            self._saver.journal.record(failure)
        step = self._step
        traces, retraces = step.count_traces(), step.count_retraces()
        with self._log.ledger.spend(Cause.STEP) as span:
            span.is_first = is_new
            result = self._updates.add(batch.tensors, facts)
            has_traced = step.count_traces() != traces
            if has_traced:
                span.cause = Cause.TRACE
                self._log.clock.leave_out()
                self._has_traced = True
        # A bucket has one shape where shapes are fixed. Each further one costs what that would have saved.
        is_retrace = (is_new and facts.bucket_number in self._seen_buckets) or step.count_retraces() != retraces
        self._seen_buckets.add(facts.bucket_number)
        self._log.count_batch(facts, batch.info.memory, has_traced=has_traced, is_retrace=is_retrace)
        with self._log.ledger.spend(Cause.DATA_STALL):
            self._source.advance()
        if result is not None:
            self._finish_update(result, facts.epoch)

    def _finish_update(self, result: tf.Tensor, epoch: int) -> None:
        self._log.clock.end_step()
        if self._is_result_due:
            check_placement(RESULT, result, self._device)
            self._is_result_due = False
        self._results.append(result)
        progress = self._progress
        progress.step += 1
        self._epoch = epoch
        progress.is_validated = not self._validation.is_due()
        self._log.end_phase(progress.step, Phase.TRAINING, has_traced=self._has_traced)
        self._has_traced = False
        if progress.step % self._schedule.training.log_interval == 0:
            self._read_results()
        if progress.is_validated and self._is_checkpoint_due():
            self._save()

    def _read_results(self) -> None:
        """Fetches the results of the updates since the last reading, and looks at them."""
        if not self._results:
            return
        step = self._step
        rows = np.asarray(tf.stack(self._results))
        self._results.clear()
        first = self._progress.step - len(rows)
        named = [step.name_results(row) for row in rows]
        for number, values in enumerate(named, start=first):
            if not values["is_applied"] and not values["is_overflow"]:
                raise explain_not_finite(number, values["loss"], self._saver, self._log.folder)
        self._progress.skipped += sum(1 for values in named if values["is_overflow"])
        sums = {name: sum(values[name] for values in named) for name in step.objective.sum_names}
        scalars = step.objective.name_results(sums, step.objective.choose_phase(self._progress.step - 1))
        self._train_loss = scalars.pop("loss")
        scalars["gradient_norm"] = named[-1]["gradient_norm"]
        if step.loss_scale is not None:
            scalars["loss_scale"] = float(step.loss_scale.scale.numpy())
            scalars["skipped_updates"] = float(self._progress.skipped)
        self._log.log_steps(
            step=self._progress.step,
            epoch=self._epoch,
            losses=[values["loss"] for values in named],
            learning_rate=self._schedule.choose_rate(self._progress.step - 1),
            scalars=scalars,
            pipeline=replace(self._source.read_facts(), trainers=self._peers.list_waits()),
        )

    def _validate(self, batch: Batch) -> None:
        is_new = self._check_inputs(batch)
        if not self._validation.is_open:
            self._read_results()
        self._validation.add(batch, is_new=is_new)
        with self._log.ledger.spend(Cause.VALIDATION):
            self._source.advance()
        if (result := self._validation.take_result()) is not None:
            is_kept = result.is_best and self._schedule.saves_best
            if is_kept or self._is_checkpoint_due() or self._progress.step == self._schedule.end_step:
                self._save(val_loss=result.loss)

    def _find_ending(self) -> Ending | None:
        """Why the loop ends here, between two updates; None where it goes on."""
        progress, patience = self._progress, self._schedule.training.early_stopping
        if patience and not self._validation.is_open and progress.rounds_without_better >= patience:
            return Ending(f"no better validation loss in {patience} rounds", is_finished=True, is_early=True)
        if progress.step >= self._schedule.end_step and progress.is_validated:
            return Ending("all updates are done", is_finished=True)
        if self._peers.is_stopping:
            signal = self._peers.stop.signal or Signals.SIGTERM
            return Ending(f"stopped by {signal.name}", is_finished=False, signal=signal)
        return None

    def _is_checkpoint_due(self) -> bool:
        return self._progress.step % self._schedule.checkpoint_interval == 0

    def _save_unless_saved(self) -> None:
        self._read_results()
        if self._saver.saved_step != self._progress.step and self._progress.step > 0:
            self._save()

    def _save(self, val_loss: float | None = None) -> None:
        # First: what is not finite must not be saved as if it were.
        self._read_results()
        objective, losses = self._step.objective, {"train_loss": self._train_loss, "val_loss": val_loss}
        is_ranked = objective.is_ranked(objective.choose_phase(self._progress.step - 1))
        metrics = {name: loss for name, loss in losses.items() if loss is not None and is_ranked}
        with self._log.ledger.spend(Cause.CHECKPOINT):
            self._peers.join_failures(self._progress.step, self._saver.journal)
            saved = self._saver.save(metrics)
        self._log.clock.leave_out()
        self._log.end_phase(self._progress.step, Phase.CHECKPOINT)
        if saved is not None:
            text = f"{saved.path.name}, {saved.size_bytes / 1e6:.1f} MB"
            self._log.note(self._progress.step, "checkpoint", text)

    def _check_inputs(self, batch: Batch) -> bool:
        """Whether the batch has a shape that no batch had before. If so, it is made sure that it is on the model device."""
        shape = (batch.info.facts.kind, *(tuple(tensor.shape) for tensor in batch.tensors.values()))
        if shape in self._seen_shapes:
            return False
        check_batch(batch.tensors, self._device)
        self._seen_shapes.add(shape)
        return True


def explain_not_finite(step: int, loss: float, saver: CheckpointSaver, folder: Path) -> MachineError:
    """Writes down which clips an update was made of, for looking at them, and gives the error that says so."""
    data, settings = saver.data, saver.config.data
    target = Target(saver.run.stage)
    sharing = choose_preparation(saver.config, target, (), speakers=data.speakers).sharing
    batches = find_batches(data, Kind.TRAIN, settings, reads_prompts(settings, target), sharing)
    batch = batches.plan_step(step, saver.journal)
    clips = [data.train.audio[int(clip)] for clip in batch.clips]
    prompts = None if batch.prompts is None else [data.train.audio[int(clip)] for clip in batch.prompts]
    path = folder / f"not-finite-step-{step:08d}.json"
    content = {"step": step, "epoch": batch.epoch, "seed": data.sampler.seed, "clips": clips, "prompts": prompts}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    count = count_micro_batches(data.sampler, step)
    has_start = bool(saver.trained.prefix) and saver.saved_step is not None
    other = f", or from here with --init-from {folder} and another --checkpoint-dir" if has_start else ""
    return MachineError(
        f"The loss ({loss}) or a gradient of step {step} is not finite; that update was not made, and nothing was saved since. "
        f"Its {len(clips)} clips, in {count} batches, and their voice prompts are listed in {path}: look at them. The run would "
        "come to the same step again. Start another one with a lower --lr, --clip-norm 1, or float32 instead of "
        f"--mixed-precision: anew with --reset-training{other}."
    )

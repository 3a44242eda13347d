"""A validation round: its batches, the sample to listen to, and whether the loss is the best so far."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.monitoring.memory_watch import Phase
from myxtts.monitoring.time_ledger import Cause
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import Batches
from myxtts.pipeline.order import RunOrder
from myxtts.training.errors import ValidationMemoryError
from myxtts.training.model import CheckpointSaver
from myxtts.training.placement import check_result
from myxtts.training.run_log import RunLog
from myxtts.training.step import UpdateMaker
from myxtts.training.workers import SingleWorker


class RoundResult(NamedTuple):
    """What a whole round has shown."""

    loss: float
    is_best: bool
    """Whether it is better than that of all rounds before."""


class ValidationRound:
    """Adds up the batches of one round after another. While a round is under way the model holds its averaged weights, if it
    has any.
    """

    def __init__(
        self,
        source: Batches,
        updates: UpdateMaker,
        saver: CheckpointSaver,
        order: RunOrder,
        log: RunLog,
        workers: SingleWorker,
    ):
        self._source = source
        self._updates = updates
        self._trained = saver.trained
        self._corpus = saver.data.validation
        self._progress = saver.progress
        self._order = order
        self._log = log
        self._workers = workers
        self._sums: list[tf.Tensor] = []
        """Of the batches of the round under way, still on the device."""
        self._averaged = ExitStack()

    @property
    def is_open(self) -> bool:
        """Whether a round is under way."""
        return bool(self._sums)

    def is_due(self) -> bool:
        """Whether a round comes after the update done last."""
        order, step = self._order, self._progress.step
        return bool(order.validation_batches) and (step % order.validation_interval == 0 or step == order.end_step)

    def add(self, batch: Batch, *, is_new: bool) -> RoundResult | None:
        """The round's result with its last batch, None before. What it shows is noted in the progress.

        Raises `ValidationMemoryError` where the round cannot be made. The weights are their own again then, and the caller is to
        save them: the error says that the run is saved.
        """
        try:
            phase = self._evaluate(batch, is_new)
        except ValidationMemoryError:
            self.abandon()
            raise
        if not self._order.is_last_of_round(batch.info.facts.number):
            return None
        sums = np.asarray(tf.add_n(self._sums)).tolist()
        self.abandon()
        sums = self._workers.sum_numbers(f"validation after {batch.info.facts.updates} updates", sums)
        return self._rank(sums, phase)

    def abandon(self) -> None:
        """Forgets the round under way, if there is one, and gives the model its own weights again."""
        self._sums.clear()
        self._averaged.close()

    def _evaluate(self, batch: Batch, is_new: bool) -> str:
        """Adds a batch to the round. Gives the phase of training it was evaluated for."""
        if not self.is_open:
            self._begin(batch)
        phase = self._trained.step.objective.choose_phase(batch.info.facts.updates - 1)
        with self._log.ledger.spend(Cause.VALIDATION) as span:
            span.is_first = is_new
            self._sums.append(self._updates.evaluate(batch.tensors, batch.info.facts, phase))
            if is_new:
                check_result(self._sums[-1], self._trained.device)
            self._source.advance()
        self._log.clock.leave_out()
        return phase

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
        if self._workers.is_chief:
            self._log.listen(self._progress.step, batch, self._corpus)

    def _rank(self, sums: list[float], phase: str) -> RoundResult:
        progress, objective = self._progress, self._trained.step.objective
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

"""From batches to updates: micro-batches are added up, and cut into smaller parts when memory is short."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import tensorflow as tf

from myxtts.models.layers import measure
from myxtts.pipeline.batch import BatchFacts
from myxtts.training.errors import GradientMemoryError, UpdateMemoryError, ValidationMemoryError
from myxtts.training.objectives import Tensors
from myxtts.training.step import Gradients, TrainStep, Turn

_log = logging.getLogger(__name__)

PARTS_OF_WORKER = 256
"""Sets the dropout keys of a worker's rows apart from those of other workers."""
WITHOUT_ROWS = frozenset({"totals_2"})
"""Tensors of a batch that have no row per clip."""


class UpdateMaker:
    """Adds up the gradients of a step's micro-batches and applies them with its last one.

    Out of memory while gradients are computed has changed nothing: the batch is done again in twice as many parts, and all
    that follow too. Their sum is the same up to rounding, apart from dropout masks.

    Args:
        step: the compiled step.
        choose_rate: the learning rate of a step.
        accumulation: micro-batches of most steps.
        retries: whether to go on after running out of memory.
        sum_workers: adds up the gradients of all workers; None where this process trains alone. With others, nobody goes on after
            running out of memory: all would have to cut their batches alike.
        worker: which one this is.
    """

    def __init__(
        self,
        step: TrainStep,
        choose_rate: Callable[[int], float],
        *,
        accumulation: int,
        retries: bool = True,
        sum_workers: Callable[[Gradients], Gradients] | None = None,
        worker: int = 0,
    ):
        self._step = step
        self._choose_rate = choose_rate
        self._accumulates = accumulation > 1
        self._sum_workers = sum_workers
        self._first_part = worker * PARTS_OF_WORKER
        self._retries = retries and sum_workers is None
        self._can_retry = not retries and sum_workers is None
        """Whether it would go on if it was told so."""
        self._sum: Gradients | None = None
        self.parts = 1
        """Parts each micro-batch is cut into."""
        self._validation_parts = 1

    def add(self, batch: Tensors, facts: BatchFacts) -> tf.Tensor | None:
        """The result of the step's update (see `TrainStep.apply`), or None while micro-batches are missing."""
        if facts.micro_batch == 0:
            self._sum = None
            self._begin(batch, facts)
        self._sum = self._compute(batch, facts)
        if not facts.is_last_of_step:
            return None
        computed, self._sum = self._sum, None
        try:
            if self._sum_workers is not None:
                computed = self._sum_workers(computed)
            return self._step.apply(computed, self._choose_rate(facts.updates))
        except tf.errors.ResourceExhaustedError as error:
            raise _explain_half_updated(facts.updates) from error

    def evaluate(self, batch: Tensors, facts: BatchFacts, phase: str) -> tf.Tensor:
        """The objective's sums of a validation batch; where memory is short, in parts that add up to the same.

        They are counted apart from the parts of training: a validation changes nothing that comes after it.
        """
        while True:
            try:
                parts = [self._step.evaluate(part, phase) for part in split_rows(batch, self._validation_parts)]
                return tf.add_n(parts)
            except tf.errors.ResourceExhaustedError as error:
                self._shrink_validation(batch, facts, error)

    def _begin(self, batch: Tensors, facts: BatchFacts) -> None:
        try:
            self._step.objective.begin_step(facts.updates, batch)
        except tf.errors.ResourceExhaustedError as error:
            raise _explain_half_updated(facts.updates) from error

    def _compute(self, batch: Tensors, facts: BatchFacts) -> Gradients:
        while True:
            try:
                return self._compute_in_parts(batch, facts)
            except tf.errors.ResourceExhaustedError as error:
                self._shrink(batch, facts, error)

    def _compute_in_parts(self, batch: Tensors, facts: BatchFacts) -> Gradients:
        turn = Turn(facts.updates, facts.micro_batch, facts.micro_batches)
        carried = self._sum
        if carried is None and (self._accumulates or self.parts > 1):
            carried = self._step.make_zero_gradients(facts.updates)
        for number, part in enumerate(split_rows(batch, self.parts)):
            carried = self._step.compute(part, turn, carried, self._first_part + number)
        assert carried is not None
        return carried

    def _shrink(self, batch: Tensors, facts: BatchFacts, error: tf.errors.ResourceExhaustedError) -> None:
        rows = measure(batch["weights_B"])[0]
        what = (
            f"Out of memory in step {facts.updates} (micro-batch {facts.micro_batch + 1} of {facts.micro_batches}, "
            f"{_describe_rows(facts, rows, self.parts)})."
        )
        if not self._retries or self.parts >= rows:
            raise GradientMemoryError(
                f"{what} Nothing was changed by it. A new run fits with a smaller --batch-size and a larger --grad-accum, for "
                f"example half and twice; this one can go on with --gradient-checkpointing"
                f"{' or --on-oom retry' if self._can_retry else ''}."
            ) from error
        self.parts *= 2
        _log.warning(
            "%s Going on with batches cut into %d parts: the same clips in each update, equal up to rounding from here on.",
            what,
            self.parts,
        )

    def _shrink_validation(self, batch: Tensors, facts: BatchFacts, error: tf.errors.ResourceExhaustedError) -> None:
        rows = measure(batch["weights_B"])[0]
        what = (
            f"Out of memory in the validation after {facts.updates} updates (batch {facts.number}, "
            f"{_describe_rows(facts, rows, self._validation_parts)})."
        )
        if not self._retries or self._validation_parts >= rows:
            raise ValidationMemoryError(
                f"{what} Nothing was changed by it. Make room on the device or raise --model-gpu-memory, and start the run again: "
                "it goes on with this validation. With another --validation-interval it goes on without it."
                f"{' With --on-oom retry the batch is cut into parts.' if self._can_retry else ''}"
            ) from error
        self._validation_parts *= 2
        _log.warning(
            "%s It is evaluated in %d parts, here and from here on: the same loss up to rounding, and no other training.",
            what,
            self._validation_parts,
        )


def _describe_rows(facts: BatchFacts, rows: int, parts: int) -> str:
    cut = f", in {parts} parts" if parts > 1 else ""
    return f"{facts.clips} clips padded to {facts.padded_samples // max(1, rows)} samples each{cut}"


def _explain_half_updated(step: int) -> UpdateMemoryError:
    return UpdateMemoryError(
        f"Out of memory inside the update of step {step}: some weights are updated and some are not, so nothing of this step "
        "is kept. Make room on the device or raise --model-gpu-memory."
    )


def split_rows(batch: Tensors, parts: int) -> Iterator[Tensors]:
    """A batch cut into up to `parts` pieces of rows."""
    if parts == 1:
        yield batch
        return
    rows = measure(batch["weights_B"])[0]
    size = -(-rows // parts)
    for first in range(0, rows, size):
        yield take_rows(batch, first, size)


def take_rows(batch: Tensors, first: int, size: int) -> Tensors:
    """Some rows of a batch."""
    return {name: tensor if name in WITHOUT_ROWS else tensor[first : first + size] for name, tensor in batch.items()}

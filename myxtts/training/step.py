"""The compiled step, one for all modes: gradients without side effects, then the update that uses them.

Two functions, because a step that runs out of memory half way would leave a half-updated model behind. What fails in
the first has changed nothing, and can be tried again in smaller parts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.errors import GradientMemoryError, UpdateMemoryError, ValidationMemoryError
from myxtts.models.attention import make_dropout_key
from myxtts.models.layers import measure, reading
from myxtts.pipeline.batch import BatchFacts, TensorSpecs
from myxtts.training.objectives import Objective, Tensors
from myxtts.training.optimizer import (
    BETAS,
    AdamW,
    LossScale,
    Rates,
    WeightAverage,
    list_decayed_paths,
    list_trained_variables,
    measure_half_square,
)

_log = logging.getLogger(__name__)

PART_STRIDE = 4096
"""Sets the dropout keys of a micro-batch's parts apart from those of other micro-batches."""

PARTS_OF_REPLICA = 256
"""Sets the dropout keys of a replica's rows apart from those of other replicas."""
PACK_BYTES = 32 << 20
"""Gradients are sent in packs of about this size: one message for each would be slow, and one for all would not overlap."""
WITHOUT_ROWS = frozenset({"totals_2"})
"""Tensors of a batch that have no row per clip."""
COMPILED_LATER = {"_apply_gradients": "the update", "_measure": "the validation of a batch shape"}
"""What is compiled when it first comes, by the work's name; gradients are compiled ahead, see `UpdateMaker.compile_ahead`."""
UPDATE_NAMES = ("gradient_norm", "is_applied", "is_overflow")


class Gradients(NamedTuple):
    """What a step has computed so far, summed over its micro-batches."""

    gradients: tuple[tf.Tensor, ...]
    """The model's, then its rival's."""
    extras: tuple[tf.Tensor, ...]
    loss: tf.Tensor
    sums: tf.Tensor


class MicroStep(NamedTuple):
    """Where a batch stands in the run."""

    step: int
    micro_batch: int
    micro_batches: int


@dataclass(frozen=True)
class StepSettings:
    """How updates are made."""

    seed: int
    weight_decay: float = 0.0
    betas: tuple[float, float] = BETAS
    """Of the optimizer."""
    clip_norm: float = 0.0
    """0 is no limit."""
    ema_decay: float = 0.0
    """0 is no average."""
    uses_dropout: bool = True
    uses_loss_scale: bool = False
    uses_xla: bool = False
    """As `devices.plan.choose_xla` decides."""
    packed_elements: int = 0
    """Of the variables that are updated at a time, see `AdamW`."""


class TrainStep:
    """Computes gradients, adds them up and applies them. Build it under the model device's scope, in the thread that
    calls it, and call it under the same scope.

    Built under a strategy's scope as well, every replica computes on rows of its own, and all apply the sums over all of them.
    What is computed and not yet applied stays where it is: one value for each replica.
    """

    def __init__(self, objective: Objective, settings: StepSettings):
        self.objective = objective
        self.uses_xla = settings.uses_xla
        self._settings = settings
        self._strategy = tf.distribute.get_strategy()
        self.replicas = self._strategy.num_replicas_in_sync
        """Devices that share every batch, here and on other machines."""
        self.optimizer = _make_optimizer(objective.trained, settings)
        self._rival_optimizer = None if objective.rival is None else _make_optimizer(objective.rival, settings)
        self.average = WeightAverage(self.optimizer.packs, settings.ema_decay) if settings.ema_decay else None
        self.loss_scale = LossScale() if settings.uses_loss_scale else None
        model = objective.model
        # What is computed again for the backward pass has gradients of variables only.
        narrows = settings.packed_elements and not getattr(model, "checkpointing", False)
        self._dtype = tf.as_dtype(model.compute_dtype) if narrows else tf.float32
        self._narrowed: Any = None
        self._is_settled = False
        self._functions: dict[tuple[Any, ...], Any] = {}
        """By what they do and the shapes they do it with. One for each, so that a function traced twice is a fault."""
        self.traced: dict[str, Any] = {}
        """What each work was traced as last, by its name: `_compute_gradients`, `_add_gradients`, `_apply_gradients`, `_measure`."""
        self.xla_functions = 0
        """Of them, those that TensorFlow has taken for XLA."""

    def compute(self, batch: Tensors, place: MicroStep, before: Gradients | None = None, part: int = 0) -> Gradients:
        """Gradients of a batch, added to those `before` it. Changes nothing."""
        if not self._is_settled and self._settings.packed_elements:
            self._call(self._settle, {})
        self._is_settled = True
        phase = self.objective.choose_phase(place.step)
        parts_R = part + PARTS_OF_REPLICA * np.arange(self.replicas)
        # Made here: inside the step it would be some launches for a number of 64 bits.
        keys_R = make_dropout_key(self._settings.seed, place.step, place.micro_batch + PART_STRIDE * parts_R)
        share = tf.constant(1.0 / place.micro_batches)
        if self._narrowed is None:
            # Once for all micro-batches of an update, which holds them as long as each of them would.
            self._narrowed = () if self._dtype == tf.float32 else self._call(self._narrow, {})
        narrowed = self._narrowed
        if before is None:
            return Gradients(*self._call(self._compute_gradients, batch, keys_R, share, narrowed, phase=phase))
        return Gradients(*self._call(self._add_gradients, batch, keys_R, share, narrowed, before, phase=phase))

    def apply(
        self, gradients: Gradients, learning_rate: float, sum_workers: Callable[[Gradients], Gradients] | None = None
    ) -> tf.Tensor:
        """The update. Returns, as one tensor still on the device: loss, the objective's sums, and `UPDATE_NAMES`.

        Gradients that are not finite are not applied; the last two numbers tell.
        """
        self._narrowed = None
        summed = Gradients(*self._sum_replicas(gradients))
        if sum_workers is not None:
            summed = sum_workers(Gradients(*tf.nest.map_structure(self._read_first, summed)))
        rates_2 = tf.constant(self.optimizer.list_rates(learning_rate))
        return self._read_first(self._call(self._apply_gradients, {}, summed, rates_2))

    def evaluate(self, batch: Tensors, phase: str) -> tf.Tensor:
        """The objective's sums of a batch, without dropout, still on the device."""
        # A validation may be of averages in the weights' place, and needs the room.
        self._narrowed = None
        return self._read_first(self._sum_replicas(self._call(self._measure, batch, phase=phase)))

    def forget_weights(self) -> None:
        """To be called when weights were set by others: what was made of the old ones is made again before the next gradients."""
        self._narrowed, self._is_settled = None, False

    def make_zero_gradients(self, step: int) -> Gradients:
        """The gradients of nothing, for a step's to be added to."""
        phase = self.objective.choose_phase(step)
        if self.replicas == 1:
            return self._make_zeros({}, phase=phase)
        return Gradients(*self._call(self._make_zeros, {}, phase=phase))

    def name_results(self, values: Any) -> dict[str, float]:
        """What `apply` returned, by name."""
        names = ("loss", *self.objective.sum_names, *UPDATE_NAMES)
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    def count_traces(self) -> int:
        """How often anything was traced."""
        return sum(function.experimental_get_tracing_count() for function in self._functions.values())

    def count_retraces(self) -> int:
        """Traces of what had been traced before: 0 unless something is wrong."""
        return self.count_traces() - len(self._functions)

    def list_state(self) -> Iterator[tuple[str, Any]]:
        """Every variable beyond the model's weights, by name, for checkpoints; the rival's weights among them."""
        owners = {
            "optimizer": self.optimizer,
            "average": self.average,
            "loss_scale": self.loss_scale,
            "rival_optimizer": self._rival_optimizer,
        }
        for owner, part in owners.items():
            if part is not None:
                yield from ((f"{owner}/{name}", variable) for name, variable in part.list_state())
        if self._rival_optimizer is not None:
            rival = self._rival_optimizer.variables
            yield from ((f"rival/{name}", variable.value) for name, variable in rival.items())

    @property
    def _optimizers(self) -> tuple[AdamW, ...]:
        """The model's, and its rival's if it has one."""
        return (self.optimizer,) if self._rival_optimizer is None else (self.optimizer, self._rival_optimizer)

    def _call(self, work: Callable[..., Any], batch: Tensors, *others: Any, **static: str) -> Any:
        """`work(batch, ...)` compiled, by a function that belongs to these shapes."""
        extras = [len(other.extras) for other in others if isinstance(other, Gradients)]
        key = (work.__name__, *static.values(), *extras, *(tuple(tensor.shape) for tensor in batch.values()))
        function = self._functions.get(key)
        if function is None:
            # XLA would copy what is cut out of packs: of an update only the arithmetic is compiled.
            plain = (self._add_up, self._make_zeros, self._narrow, self._settle, self._apply_gradients)
            uses_xla = self.uses_xla and work not in plain
            one = partial(self._run_replicas, work, uses_xla) if self.replicas > 1 else work
            # Without AutoGraph: nothing here needs it, and it would take most of the time of tracing.
            function = tf.function(one, jit_compile=(uses_xla and self.replicas == 1) or None, autograph=False)
            # Traced here and not by its first call: TensorFlow takes a call that traces for a mistake, and warns.
            traced = self.traced[work.__name__] = function.get_concrete_function(batch, *others, **static)
            self.xla_functions += self.uses_xla and _has_xla(traced)
            self._functions[key] = function
            if self.uses_xla and (later := COMPILED_LATER.get(work.__name__)):
                _log.info("XLA compiles %s, which may take minutes the first time ...", later)
                begun = time.perf_counter()
                result = function(batch, *others, **static)
                _log.info("XLA compiled %s in %.1f s.", later, time.perf_counter() - begun)
                return result
        return function(batch, *others, **static)

    def _run_replicas(
        self, work: Callable[..., Any], uses_xla: bool, batch: Tensors, *others: Any, **static: str
    ) -> Any:
        """`work` as every replica of this process does it, with rows of its own: a value for each of them."""
        pieces = list(split_rows(batch, self.replicas)) if batch else [batch] * self.replicas

        def run(*others: Any) -> Any:
            number = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
            # XLA compiles for one device: what replicas say to each other stays outside.
            one = tf.function(work, jit_compile=True, autograph=False) if uses_xla else work
            if work in (self._compute_gradients, self._add_gradients):
                others = (others[0][number : number + 1], *others[1:])
            if number < len(pieces):
                return one(pieces[number], *others, **static)
            # There are fewer rows than replicas, and this one adds nothing.
            before = [other for other in others if isinstance(other, Gradients)]
            return before[0] if before else tf.nest.map_structure(tf.zeros_like, one(pieces[0], *others, **static))

        return self._strategy.run(run, args=others)

    def _sum_replicas(self, values: Any) -> Any:
        """The sums over all replicas, on each of them."""
        return values if self.replicas == 1 else self._call(self._add_up, {}, values)

    def _make_zeros(self, _: Tensors, *, phase: str) -> Gradients:
        zeros = (tf.zeros(pack.shape) for optimizer in self._optimizers for pack in optimizer.packs)
        extras = tuple(tf.zeros(shape) for shape in self.objective.list_extra_shapes(phase))
        return Gradients(tuple(zeros), extras, tf.zeros([]), tf.zeros([len(self.objective.sum_names)]))

    def _add_up(self, _: Tensors, values: Any) -> Any:
        context = tf.distribute.get_replica_context()
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES)
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.nest.flatten(values), options)
        return tf.nest.pack_sequence_as(values, summed)

    def _read_first(self, value: Any) -> tf.Tensor:
        """What all replicas have alike, as the first of this process has it."""
        return self._strategy.experimental_local_results(value)[0]

    def _settle(self, _: Tensors) -> None:
        """Lets go of what holds weights twice since they were loaded."""
        for optimizer in self._optimizers:
            optimizer.settle()

    def _narrow(self, _: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """The weights in 16 bits, in the order of the variables: by one kernel for each pack."""
        narrowed: dict[str, tf.Tensor] = {}
        for pack in self.optimizer.packs:
            joined = tf.cast(pack.join([each.value for each in pack.variables.values()]), self._dtype)
            narrowed |= zip(pack.variables, pack.cut(joined), strict=True)
        return tuple(narrowed[name] for name in self.optimizer.variables)

    def _compute_gradients(
        self,
        batch: Mapping[str, tf.Tensor],
        key: tf.Tensor,
        share: tf.Tensor,
        narrowed: tuple[tf.Tensor, ...] = (),
        *,
        phase: str,
    ) -> Gradients:
        targets = [[variable.value for variable in each.variables.values()] for each in self._optimizers]
        given = {id(each): value for each, value in zip(self.optimizer.variables.values(), narrowed, strict=False)}
        with ExitStack() as recording, reading(given):
            # One for each side: what the one is moved by must not reach the other.
            tapes = [_record(recording, watched) for watched in targets]
            tapes[0].watch(narrowed)
            losses = self.objective.compute(
                batch, phase=phase, share=share, key=key if self._settings.uses_dropout else None
            )
            scale = 1.0 if self.loss_scale is None else self.loss_scale.read()
            aims = [aim * scale for aim in losses.aims]
        gradients: list[tf.Tensor] = []
        for optimizer, tape, aim, watched in zip(self._optimizers, tapes, aims, targets, strict=True):
            own = tape.gradient(aim, [watched, list(narrowed) if tape is tapes[0] else []])
            sums = map(_sum_dtypes, watched, *(each for each in own if each))
            gradients += optimizer.join(list(sums))
        return Gradients(tuple(gradients), losses.extras, losses.loss, losses.sums)

    def _add_gradients(
        self,
        batch: Mapping[str, tf.Tensor],
        key: tf.Tensor,
        share: tf.Tensor,
        narrowed: tuple[tf.Tensor, ...],
        before: Gradients,
        *,
        phase: str,
    ) -> Gradients:
        # In one function with the backward pass, so that each gradient is added as soon as it is there.
        now = self._compute_gradients(batch, key, share, narrowed, phase=phase)
        return Gradients(*tf.nest.map_structure(tf.add, before, now))

    def _apply_gradients(self, _: Mapping[str, tf.Tensor], computed: Gradients, rates_2: tf.Tensor) -> tf.Tensor:
        numbers, is_finite, rates = self._wrap(self._judge)(computed, rates_2)
        for optimizer, side, rate in zip(self._optimizers, self._split_sides(computed.gradients), rates, strict=True):
            optimizer.update(side, rate, self._wrap)
        if computed.extras:
            self._wrap(self._finish)(is_finite, computed.extras)
        if self.average is not None:
            self._wrap(self.average.update)(rates[0].is_applied)
        return numbers

    def _wrap(self, work: Callable[..., Any]) -> Any:
        """The same, compiled by XLA where that is used."""
        return tf.function(work, jit_compile=True, autograph=False) if self.uses_xla else work

    def _judge(self, computed: Gradients, rates_2: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[Rates]]:
        """What an update returns, whether it is applied, and its numbers for the model and its rival.

        One that is not applied runs like any other and changes nothing: the device need not wait for the host to choose.
        """
        unscaled = 1.0 if self.loss_scale is None else 1.0 / self.loss_scale.read()
        halves = [measure_half_square(side) for side in self._split_sides(computed.gradients)]
        is_finite = tf.math.is_finite(tf.add_n([*halves, computed.loss]))
        norms = [tf.sqrt(2 * half) * unscaled for half in halves]
        longest = self._settings.clip_norm
        factors = [(longest / tf.maximum(norm, longest) if longest else tf.constant(1.0)) * unscaled for norm in norms]
        rates = [each.begin(rates_2, factor, is_finite) for each, factor in zip(self._optimizers, factors, strict=True)]
        is_overflow = tf.constant(0.0)
        if self.loss_scale is not None:
            is_overflow = tf.cast(~is_finite & self.loss_scale.can_shrink(), tf.float32)
            self.loss_scale.note(is_finite)
        told = [computed.loss, computed.sums, norms[0], rates[0].is_applied, is_overflow]
        return tf.concat([tf.reshape(each, [-1]) for each in told], 0), is_finite, rates

    def _finish(self, is_finite: tf.Tensor, extras: tuple[tf.Tensor, ...]) -> None:
        def finish() -> tf.Tensor:
            self.objective.finish_update(extras)
            return tf.constant(1)

        tf.cond(is_finite, finish, lambda: tf.constant(0))

    def _measure(self, batch: Mapping[str, tf.Tensor], *, phase: str) -> tf.Tensor:
        return self.objective.compute(batch, phase=phase, share=tf.constant(1.0), key=None).sums

    def _split_sides(self, gradients: tuple[tf.Tensor, ...]) -> list[tuple[tf.Tensor, ...]]:
        """The model's gradients and its rival's."""
        own = len(self.optimizer.packs)
        return [gradients] if self._rival_optimizer is None else [gradients[:own], gradients[own:]]


def _has_xla(traced: Any) -> bool:
    """Whether TensorFlow has taken a function, or one that it calls, for XLA."""
    functions = (traced.function_def, *traced.graph.as_graph_def().library.function)
    return any(each.attr["_XlaMustCompile"].b for each in functions)


def _make_optimizer(model: Any, settings: StepSettings) -> AdamW:
    return AdamW(
        list_trained_variables(model),
        list_decayed_paths(model),
        settings.weight_decay,
        settings.betas,
        settings.packed_elements,
    )


def _sum_dtypes(variable: Any, *gradients: tf.Tensor | None) -> tf.Tensor:
    """The gradient of a variable that is read in several dtypes, or not at all."""
    found = [tf.cast(gradient, tf.float32) for gradient in gradients if gradient is not None]
    return tf.add_n(found) if found else tf.zeros(variable.shape)


def _record(recording: ExitStack, targets: list[Any]) -> tf.GradientTape:
    tape = recording.enter_context(tf.GradientTape(watch_accessed_variables=False))
    tape.watch(targets)
    return tape


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
        self._accumulation = accumulation
        self._sum_workers = sum_workers
        self._first_part = worker * PARTS_OF_REPLICA
        self._retries = retries and sum_workers is None
        self._could_retry = not retries and sum_workers is None
        self._sum: Gradients | None = None
        self.parts = 1
        """Parts each micro-batch is cut into."""
        self._validation_parts = 1

    def add(self, batch: Tensors, facts: BatchFacts) -> tf.Tensor | None:
        """The result of the step's update (see `TrainStep.apply`), or None while micro-batches are missing."""
        if facts.micro_batch == 0:
            self._sum = None
            with _names_half_updates(facts.updates):
                self._step.objective.begin_step(facts.updates, batch)
        self._sum = self._compute(batch, facts)
        if not facts.is_last_of_step:
            return None
        computed, self._sum = self._sum, None
        with _names_half_updates(facts.updates):
            return self._step.apply(computed, self._choose_rate(facts.updates), self._sum_workers)

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

    def _compute(self, batch: Tensors, facts: BatchFacts) -> Gradients:
        while True:
            try:
                place = MicroStep(facts.updates, facts.micro_batch, facts.micro_batches)
                return self._compute_in_parts(batch, place)
            except tf.errors.ResourceExhaustedError as error:
                self._shrink(batch, facts, error)

    def compile_ahead(self, shapes: Sequence[TensorSpecs], updates: int, note: Callable[[int], None]) -> None:
        """Has XLA compile the gradients of batches of these shapes, in each phase that is to come, before the first of them comes, and says
        how far it is.

        Args:
            note: told the number of each shape before it is compiled, which on a GPU may take many minutes.
        """
        begun = time.perf_counter()
        rounds = list(product(self._step.objective.list_phases(updates), shapes))
        for number, (step, specs) in enumerate(rounds, 1):
            started = time.perf_counter()
            note(number)
            _log.info("XLA compiles the step for %s (shape %d of %d) ...", _name_shape(specs), number, len(rounds))
            # Whatever comes out is dropped: computing gradients changes nothing.
            nothing = {name: tf.zeros(shape, dtype) for name, (shape, dtype) in specs.items()}
            try:
                self._compute_in_parts(nothing, MicroStep(step, 0, self._accumulation))
            except tf.errors.ResourceExhaustedError:
                _log.info(
                    "A batch of %s needs more memory than there is now: its own turn will tell.", _name_shape(specs)
                )
                continue
            ended = time.perf_counter()
            left = len(rounds) - number
            _log.info(
                "XLA compiled the step for %s (shape %d of %d) in %.1f s; %d left%s.",
                _name_shape(specs), number, len(rounds), ended - started, left,
                f", about {left * (ended - begun) / number:.0f} s" if left else "",
            )  # fmt: skip

    def _compute_in_parts(self, batch: Tensors, place: MicroStep) -> Gradients:
        carried = self._sum
        if carried is None and (self._accumulation > 1 or self.parts > 1):
            carried = self._step.make_zero_gradients(place.step)
        for number, part in enumerate(split_rows(batch, self.parts)):
            carried = self._step.compute(part, place, carried, self._first_part + number)
        assert carried is not None
        return carried

    def _shrink(self, batch: Tensors, facts: BatchFacts, error: tf.errors.ResourceExhaustedError) -> None:
        rows = measure(batch["weights_B"])[0]
        what = (
            f"Out of memory in step {facts.updates} (micro-batch {facts.micro_batch + 1} of {facts.micro_batches}, "
            f"{_describe_rows(facts, rows, self.parts)})."
        )
        if not self._retries or self.parts * self._step.replicas >= rows:
            raise GradientMemoryError(
                f"{what} Nothing was changed by it. A new run fits with a smaller --batch-size and a larger --grad-accum, for "
                f"example half and twice; this one can go on with --gradient-checkpointing"
                f"{' or --on-oom retry' if self._could_retry else ''}."
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
        if not self._retries or self._validation_parts * self._step.replicas >= rows:
            raise ValidationMemoryError(
                f"{what} Nothing was changed by it. Make room on the device or raise --model-gpu-memory, and start the run again: "
                "it goes on with this validation. With another --validation-interval it goes on without it."
                f"{' With --on-oom retry the batch is cut into parts.' if self._could_retry else ''}"
            ) from error
        self._validation_parts *= 2
        _log.warning(
            "%s It is evaluated in %d parts, here and from here on: the same loss up to rounding, and no other training.",
            what,
            self._validation_parts,
        )


def _name_shape(specs: TensorSpecs) -> str:
    rows, frames = specs["weights_B"][0][0], specs["mel_BFM"][0][1]
    length = f"{specs['codes_BM'][0][1]} codes" if "codes_BM" in specs else f"{frames} frames"
    return f"{rows} clips of up to {length}"


def _describe_rows(facts: BatchFacts, rows: int, parts: int) -> str:
    cut = f", in {parts} parts" if parts > 1 else ""
    return f"{facts.clips} clips padded to {facts.padded_samples // max(1, rows)} samples each{cut}"


@contextmanager
def _names_half_updates(step: int) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise UpdateMemoryError(
            f"Out of memory inside the update of step {step}: some weights are updated and some are not, so nothing of this step "
            "is kept. Make room on the device or raise --model-gpu-memory."
        ) from error


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
    """Some rows of a batch. Prompts that rows share stay whole."""
    whole = WITHOUT_ROWS | ({"mel_BFM"} if "voices_B" in batch else set())
    return {name: tensor if name in whole else tensor[first : first + size] for name, tensor in batch.items()}

"""AdamW with the reference's parameter groups, its state under the names of the weights; the average of weights; the loss scale.

A pack of variables is updated by one fused kernel of TensorFlow: written out as single operations the same update reads and
writes every weight some twenty times, which on a CPU costs as much as a small model's backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.models.weights import Named, find_variable

BETAS = 0.9, 0.96
"""Share of the mean of gradients, and of their squares, that stays in each update: the reference's for the GPT."""
EPSILON = 1e-8
LAST_CORRECTION = 1 << 14
"""Updates after which nothing is left of the start, to the last bit, for betas of up to 0.999."""


def list_trained_variables(model: Named) -> dict[str, Any]:
    """The trainable variables of a model by their path in it, in the order of its checkpoint."""
    found = {weight.variable: find_variable(model, weight.variable) for weight in model.list_weights()}
    return {path: variable for path, variable in found.items() if variable.trainable}


def list_decayed_paths(model: Named) -> frozenset[str]:
    """Paths of the variables that weight decay applies to: no biases, norms or embeddings."""
    return frozenset(weight.variable for weight in model.list_weights() if weight.decays)


PACKED_ELEMENTS = 1 << 26
"""Of a pack on a GPU: 256 MiB, which is what an update may need beside the model and its state."""
ALIGNED_ELEMENTS = 64
"""What a variable's part of a pack begins at a multiple of: TensorFlow then cuts a pack without copying."""


class Pack:
    """Variables that are updated as one vector, so that a GPU is asked for one kernel and not for one each; a single one as it is.

    Between updates the vector is no second copy: the variables are parts of it, but for the few whose size is not aligned. Those that
    decay come first, those that are not aligned lie together where the two kinds meet.
    """

    def __init__(self, variables: Mapping[str, Any], decayed: frozenset[str]):
        sizes = {name: math.prod(variable.shape) for name, variable in variables.items()}
        self.is_single = len(sizes) == 1

        def rank(name: str) -> int:
            is_odd = sizes[name] % ALIGNED_ELEMENTS > 0
            return int(is_odd) if name in decayed else 3 - is_odd

        self.variables = {name: variables[name] for name in sorted(sizes, key=rank)}
        self._sizes = [sizes[name] for name in self.variables]
        self._decayed = len(decayed & set(sizes))
        odd = [size for size in self._sizes if size % ALIGNED_ELEMENTS]
        first = sum(rank(name) == 0 for name in sizes)
        self._odd = slice(first, first + len(odd))
        self._filling = -sum(odd) % ALIGNED_ELEMENTS
        if self.is_single:
            (only,) = self.variables.values()
            self.weights, self.shape = only.value, tuple(only.shape)
        else:
            self.shape = (sum(self._sizes) + self._filling,)
            self.weights = tf.Variable(self.join([each.value for each in self.variables.values()]), trainable=False)
            self.hand_out(self.weights)

    def join(self, tensors: Sequence[tf.Tensor], left: tf.Tensor | None = None) -> tf.Tensor:
        """One tensor of what belongs to each variable, to those that decay times what is left of them."""
        if self.is_single:
            return tensors[0] if left is None or not self._decayed else tensors[0] * left
        pieces = [tf.reshape(tensor, [-1]) for tensor in tensors]
        pieces.insert(self._odd.stop, tf.zeros([self._filling], pieces[0].dtype))
        if left is not None and self._decayed:
            pieces[: self._decayed] = [tf.concat(pieces[: self._decayed], 0) * left]
        return tf.concat(pieces, 0)

    def cut(self, joined: tf.Tensor) -> list[tf.Tensor]:
        """What `join` was given."""
        if self.is_single:
            return [joined]
        odd = [*self._sizes[self._odd], self._filling]
        sizes = [*self._sizes]
        sizes[self._odd] = [sum(odd)]
        parts = tf.split(joined, sizes)
        parts[self._odd.start : self._odd.start + 1] = tf.split(parts[self._odd.start], odd)[:-1]
        return [tf.reshape(part, each.shape) for part, each in zip(parts, self.variables.values(), strict=True)]

    def collect(self, left: tf.Tensor | None = None) -> None:
        """Takes the values that the variables have now, as `join` does."""
        if not self.is_single or (left is not None and self._decayed):
            self.weights.assign(self.join([each.value for each in self.variables.values()], left))

    def hand_out(self, kept: Any) -> list[Any]:
        """Gives each variable its part of `kept`, which is like `weights`. Never by XLA: it would copy what TensorFlow points at."""
        return [
            variable.value.assign(part)
            for variable, part in zip(self.variables.values(), self.cut(tf.convert_to_tensor(kept)), strict=True)
        ]

    def make_zeros(self) -> Any:
        """A variable to keep something of each element in."""
        return tf.Variable(tf.zeros(self.shape, tf.float32), trainable=False)

    def list_parts(self, kept: Any) -> Iterator[tuple[str, Any]]:
        """Such a variable as one for each of the variables, by name."""
        for number, (name, variable) in enumerate(self.variables.items()):
            first = sum(self._sizes[:number]) + (self._filling if number >= self._odd.stop else 0)
            yield name, kept if self.is_single else PackPart(kept, first, variable.shape)


class PackPart:
    """Some elements of a variable, to be read and set as if they were a variable of their own."""

    def __init__(self, whole: Any, first: int, shape: tuple[int, ...]):
        self._whole = whole
        self._place = slice(first, first + math.prod(shape))
        self.shape = tf.TensorShape(shape)
        self.dtype, self.device = whole.dtype, whole.device

    @property
    def values(self) -> tuple[PackPart, ...]:
        """It as each device has it."""
        copies = getattr(self._whole, "values", (self._whole,))
        return tuple(PackPart(copy, self._place.start, tuple(self.shape)) for copy in copies)

    def assign(self, value: Any) -> None:
        """Sets them. Not in place: TensorFlow copies such a variable ever after, whenever it is read."""
        whole, place = self._whole, self._place
        whole.assign(tf.concat([whole[: place.start], tf.reshape(value, [-1]), whole[place.stop :]], 0))

    def numpy(self) -> Any:
        """Their values."""
        return self.__tf_tensor__().numpy()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.reshape(self._whole[self._place], self.shape)


def make_packs(variables: Mapping[str, Any], decayed: frozenset[str], elements: int) -> tuple[Pack, ...]:
    """Packs of up to `elements`, or of one variable."""
    packs: list[list[str]] = []
    room = 0
    for name, variable in variables.items():
        size = math.prod(variable.shape)
        if size > room:
            packs.append([])
            room = elements
        packs[-1].append(name)
        room -= size
    return tuple(Pack({name: variables[name] for name in names}, decayed & set(names)) for names in packs)


class Rates(NamedTuple):
    """The numbers of one update."""

    learning_rate: tf.Tensor
    left: tf.Tensor
    """What weights that decay are multiplied by."""
    factor: tf.Tensor | None
    """What gradients are multiplied by; where it is 0 they may be anything. None for 1."""
    betas: list[tf.Tensor]
    powers: list[tf.Tensor]
    epsilon: tf.Tensor
    is_applied: tf.Tensor
    """1, or 0."""


class AdamW:
    """Moving averages of gradients for some variables, and the update they give.

    Its state lives where it is made: the caller opens the device scope.

    Args:
        variables: what is trained, by name.
        decayed: names of those that shrink by `weight_decay` times the learning rate in each update.
        weight_decay: applied to the weight itself, not through the gradient.
        betas: how long gradients, and their squares, are remembered.
        elements: to update at a time, `PACKED_ELEMENTS` for a GPU. 0: one variable at a time, which is faster where nothing is saved by
            launching less.
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        decayed: frozenset[str],
        weight_decay: float,
        betas: tuple[float, float] = BETAS,
        elements: int = 0,
    ):
        self.variables = dict(variables)
        self.packs = make_packs(self.variables, decayed if weight_decay else frozenset(), elements)
        self._betas, self._decay = betas, weight_decay
        self._means = [pack.make_zeros() for pack in self.packs]
        self._squares = [pack.make_zeros() for pack in self.packs]
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    def join(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Gradients of the variables, in their order, as they are applied: one tensor for each pack."""
        named = dict(zip(self.variables, gradients, strict=True))
        return [pack.join([named[name] for name in pack.variables]) for pack in self.packs]

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: float) -> None:
        """One update by what `join` gave."""
        rates_2 = tf.constant(self.list_rates(learning_rate))
        self.update(gradients, self.begin(rates_2, tf.constant(1.0), tf.constant(True))._replace(factor=None))

    def list_rates(self, learning_rate: float) -> list[float]:
        """What `begin` takes: the learning rate, and what weights that decay are multiplied by."""
        return [learning_rate, 1 - learning_rate * self._decay]

    def begin(self, rates_2: tf.Tensor, factor: tf.Tensor, is_applied: tf.Tensor) -> Rates:
        """The numbers of the next update; if it is not applied, of one that changes nothing."""
        applied = tf.concat([rates_2, tf.reshape(factor, [1]), [*self._betas, 1.0]], 0)
        rate, left, factor, *betas, share = tf.unstack(tf.where(is_applied, applied, [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]))
        number = self.updates.assign_add(tf.cast(is_applied, tf.int64))
        *powers, epsilon = tf.unstack(tf.gather(self._list_corrections(), tf.minimum(number, LAST_CORRECTION)))
        return Rates(rate, left, factor, betas, powers, epsilon, share)

    def _list_corrections(self) -> Any:
        """By the number of an update: what is left of the averages' start at zero, and epsilon. The kernel adds that before they are
        corrected for it, the reference after it."""
        numbers = np.maximum(np.arange(LAST_CORRECTION + 1.0), 1)
        powers = [beta**numbers for beta in self._betas]
        return np.stack([*powers, EPSILON * np.sqrt(1 - powers[1])], 1).astype(np.float32)

    def update(
        self, gradients: Sequence[tf.Tensor], rates: Rates, wrap: Callable[..., Any] = lambda work: work
    ) -> None:
        """Updates one pack after another: no more memory is needed than for one.

        Args:
            gradients: by pack.
            wrap: what makes a function of the arithmetic, such as a compiled one.
        """
        done: list[Any] = []
        for number, pack in enumerate(self.packs):
            with tf.control_dependencies(done):
                wrap(partial(self.update_pack, number))(gradients[number], rates)
                done = [] if pack.is_single else pack.hand_out(pack.weights)

    def update_pack(self, number: int, gradient: tf.Tensor, rates: Rates) -> None:
        """Makes new weights of a pack, which its variables do not have yet."""
        pack = self.packs[number]
        pack.collect(rates.left)
        tf.raw_ops.ResourceApplyAdam(
            var=pack.weights.handle,
            m=self._means[number].handle,
            v=self._squares[number].handle,
            beta1_power=rates.powers[0],
            beta2_power=rates.powers[1],
            lr=rates.learning_rate,
            beta1=rates.betas[0],
            beta2=rates.betas[1],
            epsilon=rates.epsilon,
            grad=gradient if rates.factor is None else tf.math.multiply_no_nan(gradient, rates.factor),
        )

    def settle(self) -> None:
        """Lets go of what holds weights twice since they were loaded."""
        for pack in self.packs:
            if not pack.is_single:
                pack.collect()
                pack.hand_out(pack.weights)

    def list_state(self) -> Iterator[tuple[str, Any]]:
        """Every variable of its own by name, for checkpoints."""
        yield "updates", self.updates
        for pack, mean, square in zip(self.packs, self._means, self._squares, strict=True):
            yield from ((f"mean/{name}", part) for name, part in pack.list_parts(mean))
            yield from ((f"square/{name}", part) for name, part in pack.list_parts(square))


def measure_half_square(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Half of the squared length of all gradients taken as one vector."""
    return tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])


class WeightAverage:
    """Averages of the variables in some packs. They live where they are made, and start as copies."""

    def __init__(self, packs: Sequence[Pack], decay: float):
        self._packs = packs
        self._decay = decay
        self._averages = [tf.Variable(tf.convert_to_tensor(pack.weights), trainable=False) for pack in packs]

    def update(self, is_applied: tf.Tensor) -> None:
        """Moves every average towards its weight if it is 1."""
        share = (1 - self._decay) * is_applied
        for pack, average in zip(self._packs, self._averages, strict=True):
            average.assign_sub(share * (average - pack.weights))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The variables hold their averages within, and their own values again afterwards."""
        for pack in self._packs:
            pack.collect()
        own = [tf.identity(pack.weights) if pack.is_single else pack.weights for pack in self._packs]
        try:
            # Within: out of memory half way must not leave a model that is neither.
            for pack, average in zip(self._packs, self._averages, strict=True):
                pack.hand_out(average)
            yield
        finally:
            for pack, value in zip(self._packs, own, strict=True):
                pack.hand_out(value)

    def list_state(self) -> Iterator[tuple[str, Any]]:
        for pack, average in zip(self._packs, self._averages, strict=True):
            yield from pack.list_parts(average)


FIRST_SCALE = 2.0**15
LEAST_SCALE = 1.0
CALM_UPDATES = 2000
"""Updates without an overflow before the scale is doubled."""


class LossScale:
    """A scale that adapts. Its state lives where it is made."""

    def __init__(self) -> None:
        self.scale = tf.Variable(FIRST_SCALE, trainable=False, name="loss_scale")
        self._calm = tf.Variable(0, dtype=tf.int64, trainable=False, name="calm_updates")

    def read(self) -> tf.Tensor:
        """What the loss is multiplied by."""
        return tf.convert_to_tensor(self.scale)

    def can_shrink(self) -> tf.Tensor:
        """Whether an overflow may still be the scale's doing, and not the model's."""
        return self.scale > LEAST_SCALE

    def note(self, is_finite: tf.Tensor) -> None:
        """What gradients were."""
        calm = self._calm + 1
        grown = tf.where(calm >= CALM_UPDATES, self.scale * 2, self.scale)
        self.scale.assign(tf.where(is_finite, grown, tf.maximum(self.scale / 2, LEAST_SCALE)))
        self._calm.assign(tf.where(is_finite & (calm < CALM_UPDATES), calm, 0))

    def list_state(self) -> Iterator[tuple[str, Any]]:
        yield "scale", self.scale
        yield "calm_updates", self._calm

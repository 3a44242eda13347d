"""AdamW with the reference's parameter groups, its state under the names of the weights; the average of weights; the loss scale.

Each variable is updated by one fused kernel of TensorFlow: written out as single operations the same update reads and
writes every weight some twenty times, which on a CPU costs as much as a small model's backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from myxtts.models.weights import Named, find_variable

BETAS = 0.9, 0.96
"""Share of the mean of gradients, and of their squares, that stays in each update: the reference's for the GPT."""
EPSILON = 1e-8


def list_trained_variables(model: Named) -> dict[str, Any]:
    """The trainable variables of a model by their path in it, in the order of its checkpoint."""
    found = {weight.variable: find_variable(model, weight.variable) for weight in model.list_weights()}
    return {path: variable for path, variable in found.items() if variable.trainable}


def list_decayed_paths(model: Named) -> frozenset[str]:
    """Paths of the variables that weight decay applies to: no biases, norms or embeddings."""
    return frozenset(weight.variable for weight in model.list_weights() if weight.decays)


SMALL = 1 << 14
"""Elements of a gradient that is cheaper to copy than to ask a GPU for one more kernel: those of biases and norms."""


def measure_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The length of all gradients taken as one vector."""
    small = [tf.reshape(gradient, [-1]) for gradient in gradients if math.prod(gradient.shape) <= SMALL]
    large = [gradient for gradient in gradients if math.prod(gradient.shape) > SMALL]
    halves = [tf.nn.l2_loss(part) for part in (*large, tf.concat([*small, [0.0]], 0))]
    return tf.sqrt(2 * tf.add_n(halves))


class AdamW:
    """Moving averages of gradients for some variables, and the update they give.

    Its state lives where it is made: the caller opens the device scope.

    Args:
        variables: what is trained, by name.
        decayed: names of those that shrink by `weight_decay` times the learning rate in each update.
        weight_decay: applied to the weight itself, not through the gradient.
        betas: how long gradients, and their squares, are remembered.
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        decayed: frozenset[str],
        weight_decay: float,
        betas: tuple[float, float] = BETAS,
    ):
        self.variables = dict(variables)
        self._betas = betas
        self._decay = {name: weight_decay if name in decayed else 0.0 for name in self.variables}
        self._means = {name: _make_zeros(variable) for name, variable in self.variables.items()}
        self._squares = {name: _make_zeros(variable) for name, variable in self.variables.items()}
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """One update. Gradients are in the order of `variables`."""
        number = tf.cast(self.updates.assign_add(1), tf.float32)
        powers = tf.pow(self._betas[0], number), tf.pow(self._betas[1], number)
        # The kernel adds epsilon before the averages are corrected for their start at zero, the reference after it.
        epsilon = EPSILON * tf.sqrt(1 - powers[1])
        for (name, variable), gradient in zip(self.variables.items(), gradients, strict=True):
            target = variable.value
            if self._decay[name]:
                target.assign_sub(learning_rate * self._decay[name] * target)
            tf.raw_ops.ResourceApplyAdam(
                var=target.handle,
                m=self._means[name].handle,
                v=self._squares[name].handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=learning_rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                epsilon=epsilon,
                grad=gradient,
            )

    def list_state(self) -> Iterator[tuple[str, Any]]:
        """Every variable of its own by name, for checkpoints."""
        yield "updates", self.updates
        for name in self.variables:
            yield f"mean/{name}", self._means[name]
            yield f"square/{name}", self._squares[name]


def _make_zeros(variable: Any) -> Any:
    return tf.Variable(tf.zeros(variable.shape, tf.float32), trainable=False)


class WeightAverage:
    """Averages of some variables. They live where they are made, and start as copies."""

    def __init__(self, variables: Mapping[str, Any], decay: float):
        self._variables = dict(variables)
        self._decay = decay
        self._averages = {
            name: tf.Variable(tf.convert_to_tensor(variable.value), trainable=False)
            for name, variable in self._variables.items()
        }

    def update(self) -> None:
        """Moves every average towards its variable."""
        for name, average in self._averages.items():
            average.assign_sub((1 - self._decay) * (average - self._variables[name].value))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The variables hold their averages within, and their own values again afterwards."""
        own = {name: tf.identity(variable.value) for name, variable in self._variables.items()}
        try:
            # Within: out of memory half way must not leave a model that is neither.
            for name, average in self._averages.items():
                self._variables[name].value.assign(average)
            yield
        finally:
            for name, value in own.items():
                self._variables[name].value.assign(value)

    def list_state(self) -> Iterator[tuple[str, Any]]:
        yield from self._averages.items()


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

    def note_success(self) -> None:
        """Gradients were finite."""
        calm = self._calm.assign_add(1)
        is_time = calm >= CALM_UPDATES
        self.scale.assign(tf.where(is_time, self.scale * 2, self.scale))
        self._calm.assign(tf.where(is_time, tf.zeros_like(calm), calm))

    def note_overflow(self) -> None:
        """Gradients were not finite."""
        self.scale.assign(tf.maximum(self.scale / 2, LEAST_SCALE))
        self._calm.assign(0)

    def list_state(self) -> Iterator[tuple[str, Any]]:
        yield "scale", self.scale
        yield "calm_updates", self._calm

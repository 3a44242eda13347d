"""A moving average of the weights: smoother than the weights themselves, and often better to speak with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class WeightAverage:
    """Averages of some variables. They live where they are made, and start as copies.

    Args:
        variables: what is averaged, by name.
        decay: share of the average that stays in each update.
    """

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

"""A compiled function with a trace for each shape, which counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class ShapedFunction:
    """Calls a function of tensors as a graph, traced once for every combination of their shapes.

    Unlike a bare `tf.function` it does not warn of many traces: every shape there is, is traced on purpose.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = tf.function(function, autograph=False)
        self._traces: dict[tuple[Any, ...], Any] = {}

    @property
    def traces(self) -> int:
        return len(self._traces)

    def __call__(self, *tensors: Any) -> Any:
        key = tuple(tuple(tensor.shape) for tensor in tensors)
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._function.get_concrete_function(*tensors)
        return trace(*tensors)

"""One core for a device: graphs that run in the thread that calls them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf


def run_calls_in_one_thread() -> AbstractContextManager[Any]:
    """A scope in which a graph runs in the thread that calls it. Otherwise one device takes up to 1.6 cores.

    A graph that calls another holds a thread of the inter-op pool while it waits, so that pool must be larger than two.
    """
    scope: AbstractContextManager[Any] = tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR")
    return scope

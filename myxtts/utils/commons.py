"""Where work is placed, and how the log looks. The only owner of `tf.device`.

TensorFlow is imported inside the functions that need it: logging is set up before it is known whether any is needed.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def get_device_context(device: str | None = None) -> AbstractContextManager[Any]:
    """A scope that places work on `device`, else on the first GPU, else on the CPU. Initialises TensorFlow.

    The caller of a step opens it: a scope inside a `tf.function` does not place the function's results. Raises
    `DevicePlanError` for a device that is not there.
    """
    tf = _load_tensorflow()
    if device is None:
        return tf.device(find_default_device())  # type: ignore[no-any-return]
    from myxtts.devices.runtime import require_device

    require_device(device)
    return tf.device(device)  # type: ignore[no-any-return]


def ensure_gpu_placement(tensor: Any) -> Any:
    """The tensor on the first GPU, or on the CPU where there is none; the same object if it is already there."""
    tf = _load_tensorflow()
    device = find_default_device()
    if tensor.device.endswith(device.removeprefix("/")):
        return tensor
    with get_device_context(device):
        return tf.identity(tensor)


def find_default_device() -> str:
    """The first GPU this process sees, else /CPU:0. Initialises TensorFlow."""
    from myxtts.devices.runtime import list_logical_devices

    return next((name for name in list_logical_devices() if name.startswith("/GPU")), "/CPU:0")


def _load_tensorflow() -> Any:
    # The runtime module first: it sets the environment before TensorFlow reads it.
    import myxtts.devices.runtime  # noqa: F401, I001
    import tensorflow as tf

    return tf


# All that steers a terminal, and what turns the direction of a text against its letters. Line ends and tabs are text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """A text in which what would steer a terminal is written as Python writes it: `\\x1b` for Escape."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class PlainFormatter(logging.Formatter):
    """Names from files cannot steer the terminal that a log is shown in."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


class _LevelFormatter(PlainFormatter):
    """Plain lines for decisions and milestones; only what needs attention is marked."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname.capitalize()}: {text}"


def setup_logging(level: int = logging.INFO) -> logging.Logger:
    """The package's logger, writing to standard error. Calling it again only changes the level."""
    logger = logging.getLogger("myxtts")
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_LevelFormatter("%(message)s"))
        logger.addHandler(handler)
        # A root handler that somebody else installed (absl does) would print every line twice.
        logger.propagate = False
    return logger

"""A worker process that kills itself, without TensorFlow."""

from __future__ import annotations

import os
import signal


def make_suicide():
    return lambda item: os.kill(os.getpid(), signal.SIGKILL)

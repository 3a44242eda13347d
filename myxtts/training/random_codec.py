"""A codec of random weights, for measuring: it costs what a trained one does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints import write_model_directory
from myxtts.config import XTTSConfig
from myxtts.models.build import build_dvae
from myxtts.models.names import to_checkpoint
from myxtts.models.sizes import MEL_CHANNELS
from myxtts.training.starting_point import MEL_STATISTICS, Codec, read_codec
from myxtts.utils.commons import get_device_context


def write_random_codec(config: XTTSConfig, folder: Path) -> Codec:
    """A codec of a configuration's size, written to a folder. Needs TensorFlow, on the host alone."""
    # On the host: the device that prepares loads it from the folder, as it does in a run.
    with get_device_context("/CPU:0"):
        weights = to_checkpoint(build_dvae(config.model, seed=0))
    write_model_directory(folder, config=config, model={MEL_STATISTICS: make_even_norms()}, dvae=weights)
    return read_codec(folder)


def make_even_norms() -> NDArray[np.float32]:
    """Mel statistics that change nothing."""
    return np.ones(MEL_CHANNELS, np.float32)

"""Curves, mel pictures and audio for TensorBoard. The only module of this room that imports TensorFlow."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.monitoring.clock import measure_goodput
from myxtts.monitoring.metrics import TrainRow, ValidationRow
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)


# Dark blue over teal to yellow: brightness rises all the way, so it reads in grey and to the colour-blind.
_RAMP = np.array(
    [[46, 16, 82], [54, 66, 132], [38, 112, 142], [36, 154, 134], [92, 194, 98], [182, 220, 56], [252, 234, 60]],
    dtype=np.float64,
)
UNKNOWN_GREY = 128


def paint_mel(
    mel_FM: NDArray[np.floating], scale: int = 4, lowest: float | None = None, highest: float | None = None
) -> NDArray[np.uint8]:
    """A mel as an RGB picture [H, W, 3], low bands at the bottom, every value `scale` pixels high and wide.

    Args:
        lowest: the value drawn darkest; by default the smallest there is. Give both to make pictures comparable.
        highest: the value drawn brightest.
    """
    values_MF = np.flipud(np.asarray(mel_FM, dtype=np.float64).T)
    is_known = np.isfinite(values_MF)
    known = values_MF[is_known]
    low = lowest if lowest is not None else float(known.min(initial=np.inf))
    high = highest if highest is not None else float(known.max(initial=-np.inf))
    span = high - low if np.isfinite(high - low) and high > low else 1.0
    shares_MF = np.clip((np.where(is_known, values_MF, 0.0) - (low if np.isfinite(low) else 0.0)) / span, 0.0, 1.0)
    stops = np.linspace(0.0, 1.0, len(_RAMP))
    channels = [np.interp(shares_MF, stops, _RAMP[:, channel]) for channel in range(3)]
    picture = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    picture[~is_known] = UNKNOWN_GREY
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)


class TensorBoardWriter:
    """Writes to a folder that `tensorboard --logdir` reads.

    A resumed run writes on into the same folder: TensorBoard drops what it has of a curve after a step that comes again.
    """

    def __init__(self, folder: Path):
        import tensorflow as tf

        self._summary: Any = tf.summary
        self._writer: Any = tf.summary.create_file_writer(str(folder))

    def write_train_row(self, row: TrainRow) -> None:
        """The curves of a stretch of steps. What is unknown leaves a gap."""
        curves = {
            "train/loss": row.loss,
            "train/learning_rate": row.learning_rate,
            "speed/step_seconds": row.step_s,
            "speed/clips_per_second": row.clips_per_s,
            "speed/audio_seconds_per_second": row.audio_seconds_per_s,
            "speed/goodput": measure_goodput(row.spent),
        }
        curves |= {f"train/{name}": value for name, value in row.scalars.items()}
        if row.flow is not None:
            curves |= {f"readiness/{handoff.name}": handoff.readiness for handoff in row.flow.handoffs}
        known = {use.device.strip("/"): use.used_bytes for use in row.memory if use.used_bytes is not None}
        curves |= {f"memory_mb/{device}": used / 2**20 for device, used in known.items()}
        self.write_scalars(curves, row.step)

    def write_validation_row(self, row: ValidationRow) -> None:
        curves = {f"validation/{name}": value for name, value in row.scalars.items()}
        self.write_scalars({"validation/loss": row.loss} | curves, row.step)

    def write_scalars(self, values: Mapping[str, float | None], step: int) -> None:
        with self._writing():
            for name, value in values.items():
                if value is not None:
                    self._summary.scalar(name, value, step=step)

    def write_mel(self, name: str, mel_FM: NDArray[np.floating], step: int) -> None:
        """A mel as a picture."""
        with self._writing():
            self._summary.image(name, paint_mel(mel_FM)[np.newaxis], step=step)

    def write_audio(self, name: str, samples: NDArray[np.float32], sample_rate_hz: int, step: int) -> None:
        """One channel of audio from -1 to 1."""
        samples_BTC = np.asarray(samples, np.float32)[np.newaxis, :, np.newaxis]
        with self._writing():
            self._summary.audio(name, samples_BTC, sample_rate_hz, step=step)

    def close(self) -> None:
        self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # On the CPU: the model device has better things to do than to encode pictures.
        with get_device_context("/CPU:0"), self._writer.as_default():
            yield
        self._writer.flush()


def open_tensorboard(folder: Path) -> TensorBoardWriter | None:
    """A writer, or None, with one line that says why, where the `tensorboard` package is missing.

    Initialises TensorFlow: call it after the device plan is in force.
    """
    if importlib.util.find_spec("tensorboard") is None:
        # TensorFlow no longer brings it along, and without it the first curve would end the run.
        _log.warning(
            "TensorBoard is not installed, so nothing is written for it (pip install tensorboard); metrics.jsonl has all figures."
        )
        return None
    return TensorBoardWriter(folder)

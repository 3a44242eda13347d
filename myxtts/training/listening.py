"""Something to listen to at every validation: the first validation clip as the model would say it.

A GPT is led by the clip's true codes and says the next one each time, so this is what it has learnt of sound, not yet speech
of its own; a codec's clip goes through its codes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.mel_vocoder import MelVocoder
from myxtts.models.dvae import DVAE
from myxtts.monitoring.tensorboard_writer import TensorBoardWriter
from myxtts.training.objectives import GPTObjective, Tensors
from myxtts.training.updates import take_rows
from myxtts.utils.commons import get_device_context

SAMPLES_FOLDER = "samples"

ChooseCodes = Callable[[Tensors], Any]
"""A batch of one row -> its codes."""


class Listener:
    """Makes sound of a batch's first row, on the host.

    Args:
        choose_codes: what is said.
        dvae: makes mels of codes; on the host.
        mel_norms: the codec's.
        folder: of the run.
    """

    def __init__(self, choose_codes: ChooseCodes, dvae: DVAE, mel_norms: NDArray[np.float32], folder: Path):
        self._choose_codes = tf.function(choose_codes, autograph=False)
        self._dvae = dvae
        self._vocoder = MelVocoder(dvae, mel_norms)
        self._folder = folder / SAMPLES_FOLDER

    def hear(self, step: int, batch: Tensors, board: TensorBoardWriter | None) -> Path:
        """Writes the first row's sound as a wav, and its mel and sound for TensorBoard."""
        codes_M = np.asarray(self._choose_codes(take_rows(batch, 0, 1)), np.int32)
        with get_device_context("/CPU:0"):
            samples = self._vocoder.start(None, 1.0).render(codes_M, None, is_last=True)
            mel_FM = self._dvae.decode(tf.constant(np.minimum(codes_M, self._dvae.size.codes - 1)[None]))[0]
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"step-{step:08d}.wav"
        soundfile.write(path, np.clip(samples, -1, 1), self._vocoder.rate_hz, subtype="PCM_16")
        if board is not None:
            board.write_mel("validation/mel", np.asarray(mel_FM), step)
            board.write_audio("validation/first_clip", samples, self._vocoder.rate_hz, step)
        return path


def predict_codes(objective: GPTObjective) -> ChooseCodes:
    """The codes a GPT says when it is led by the true ones."""

    def choose(row: Tensors) -> Any:
        logits_1LV, length = objective.predict(row)
        return tf.argmax(logits_1LV[0, :length], -1, output_type=tf.int32)

    return choose


def encode_row(dvae: DVAE) -> ChooseCodes:
    """The codes of a mel."""

    def choose(row: Tensors) -> Any:
        return dvae.encode(row["mel_BFM"])[0]

    return choose

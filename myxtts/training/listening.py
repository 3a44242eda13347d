"""Something to listen to at every validation: the first validation clip as the model would say it.

A GPT is led by the clip's true codes and says the next one each time, so this is what it has learnt of sound, not yet speech
of its own; a codec's clip goes through its codes. A decoder says the clip from what the GPT makes of its true codes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.mel_vocoder import MelVocoder
from myxtts.models.dvae import DVAE
from myxtts.models.speech_losses import compute_speech_mel
from myxtts.models.speech_units import SAMPLES_PER_FRAME, SPEECH_RATE_HZ, count_frames
from myxtts.monitoring.listening_page import SAMPLES_FOLDER
from myxtts.monitoring.tensorboard_writer import TensorBoardWriter
from myxtts.training.decoder_objective import DecoderObjective
from myxtts.training.objectives import GPTObjective, Tensors
from myxtts.training.updates import take_rows
from myxtts.utils.commons import get_device_context

ChooseCodes = Callable[[Tensors], Any]
"""A batch of one row -> its codes."""


class Sound(NamedTuple):
    """What is heard of a clip, on the host."""

    samples: NDArray[np.float32]
    rate_hz: int
    mel_FM: NDArray[np.float32]


Render = Callable[[Tensors], Sound]
"""A batch of one row -> its sound."""


class Listener:
    """Makes sound of a batch's first row.

    Args:
        render: what is heard.
        folder: of the run.
    """

    def __init__(self, render: Render, folder: Path):
        self._render = render
        self._folder = folder / SAMPLES_FOLDER

    def hear(self, step: int, batch: Tensors, board: TensorBoardWriter | None) -> Path:
        """Writes the first row's sound as a wav, and its mel and sound for TensorBoard."""
        sound = self._render(take_rows(batch, 0, 1))
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"step-{step:08d}.wav"
        soundfile.write(path, np.clip(sound.samples, -1, 1), sound.rate_hz, subtype="PCM_16")
        if board is not None:
            board.write_mel("validation/mel", sound.mel_FM, step)
            board.write_audio("validation/first_clip", sound.samples, sound.rate_hz, step)
        return path


def render_codes(choose_codes: ChooseCodes, dvae: DVAE, mel_norms: NDArray[np.float32]) -> Render:
    """The sound of codes, without a waveform decoder.

    Args:
        choose_codes: what is said.
        dvae: makes mels of codes; on the host.
        mel_norms: the codec's.
    """
    compiled = tf.function(choose_codes, autograph=False)
    vocoder = MelVocoder(dvae, mel_norms)

    def render(row: Tensors) -> Sound:
        codes_M = np.asarray(compiled(row), np.int32)
        with get_device_context("/CPU:0"):
            samples = vocoder.start(None, 1.0).render(codes_M, None, is_last=True)
            mel_FM = dvae.decode(tf.constant(np.minimum(codes_M, dvae.size.codes - 1)[None]))[0]
        return Sound(samples, vocoder.rate_hz, np.asarray(mel_FM))

    return render


def render_speech(objective: DecoderObjective) -> Render:
    """The sound of a waveform decoder."""
    compiled = tf.function(objective.say, autograph=False)

    def render(row: Tensors) -> Sound:
        samples = compiled(row).numpy()[0, : count_frames(int(row["code_lengths_B"][0])) * SAMPLES_PER_FRAME]
        with get_device_context("/CPU:0"):
            mel_1FM = compute_speech_mel(tf.constant(samples[None]))
        return Sound(samples, SPEECH_RATE_HZ, mel_1FM.numpy()[0])

    return render


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

"""Something to listen to at every validation and at the end: the first validation clip as the model would say it, and a sentence.

A GPT says the clip's text on its own, and once more led by the clip's true codes: what it has learnt of sound is heard there long
before it speaks. A codec's clip goes through its codes. A decoder says the clip from what the GPT makes of its true codes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.data.corpus import Corpus
from myxtts.data.sampler import SpeakerPrompts
from myxtts.errors import MyXTTSError
from myxtts.inference.generation import CodeGenerator, Row
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.inference.vocoders import MelVocoder
from myxtts.inference.voices import Voice
from myxtts.models.discriminators import compute_speech_mel
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.sizes import SAMPLES_PER_FRAME, SPEECH_RATE_HZ, count_frames
from myxtts.monitoring.tensorboard import TensorBoardWriter
from myxtts.reports.pages import LISTENING_PAGE, SAMPLES_FOLDER, name_sample, write_listening_page
from myxtts.training.objectives import DecoderObjective, GPTObjective, Tensors, make_prompts
from myxtts.training.step import take_rows
from myxtts.units import FRAMES_PER_CODE, SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from myxtts.utils.commons import get_device_context

LONGEST_CODES = 10 * SAMPLE_RATE_HZ // SAMPLES_PER_CODE
"""Of what a GPT says on its own, 10 s: one that has not learnt to stop would go on as long as it can, at every validation."""
LONGEST_RATIO = 2
"""The same in lengths of the clip itself."""
SPOKEN_KEY = (0, 0)
"""Of the draws, the same at every validation: only the model makes the difference."""

ChooseCodes = Callable[[Tensors], NDArray[np.int32]]
"""A batch of one row -> its codes."""


class Sound(NamedTuple):
    """What is heard of a clip, on the host."""

    samples: NDArray[np.float32]
    rate_hz: int
    mel_FM: NDArray[np.float32]


Render = Callable[[Tensors], Sound]
"""A batch of one row -> its sound."""


class Listener:
    """Makes sound of a batch's first row."""

    def __init__(self, render: Render, folder: Path, *, speak: Render | None = None):
        self._render, self._speak = render, speak
        self._folder = folder / SAMPLES_FOLDER

    def hear(self, step: int, batch: Tensors, board: TensorBoardWriter | None) -> list[Path]:
        """Writes what is heard of the first row as wavs, and mels and sounds for TensorBoard."""
        row = take_rows(batch, 0, 1)
        self._folder.mkdir(exist_ok=True)
        paths = [self._write(step, self._render(row), board, is_free=False)]
        if self._speak is not None:
            paths.append(self._write(step, self._speak(row), board, is_free=True))
        return paths

    def _write(self, step: int, sound: Sound, board: TensorBoardWriter | None, *, is_free: bool) -> Path:
        path = self._folder / name_sample(step, is_free=is_free)
        soundfile.write(path, np.clip(sound.samples, -1, 1), sound.rate_hz, subtype="PCM_16")
        if board is not None:
            mel_name, name = ("spoken_mel", "spoken") if is_free else ("mel", "first_clip")
            board.write_mel(f"validation/{mel_name}", sound.mel_FM, step)
            board.write_audio(f"validation/{name}", sound.samples, sound.rate_hz, step)
        return path


def render_codes(choose_codes: ChooseCodes, vocoder: MelVocoder) -> Render:
    """The sound of the codes that are chosen for a row, without a waveform decoder; start and stop tokens have none."""

    def render(row: Tensors) -> Sound:
        codes_M = choose_codes(row)
        codes_M = codes_M[codes_M < vocoder.codes]
        if not len(codes_M):
            # A model that stops at once. A file without a sample is none to a player.
            silence_FM = np.tile(vocoder.silent_frame_B, (FRAMES_PER_CODE, 1))
            return Sound(np.zeros(SAMPLES_PER_CODE, np.float32), vocoder.rate_hz, silence_FM)
        with get_device_context("/CPU:0"):
            samples = vocoder.start(None, 1.0).render(codes_M, None, is_last=True)
            mel_FM = vocoder.decode_mel(tf.constant(codes_M[None]))[0]
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

    def predict(row: Tensors) -> Any:
        logits_1LV, length = objective.predict(row)
        return tf.argmax(logits_1LV[0, :length], -1, output_type=tf.int32)

    return _compile(predict)


def speak_codes(gpt: GPT, usual_penalty: float) -> ChooseCodes:
    """The codes a GPT says on its own, as it will when it is used: all it gets are the row's text and voice prompt."""
    generator = CodeGenerator(gpt, usual_penalty=usual_penalty)
    make_prompt = tf.function(lambda row: tf.cast(make_prompts(gpt, row)[0], tf.float32), autograph=False)

    def choose(row: Tensors) -> NDArray[np.int32]:
        ids = row["text_BT"][0].numpy()[: int(row["text_lengths_B"][0])].tolist()
        voice = Voice(make_prompt(row).numpy(), np.zeros(0, np.float32))
        most = min(LONGEST_CODES, LONGEST_RATIO * int(row["code_lengths_B"][0]))
        return generator.generate([Row(tuple(ids), voice, SPOKEN_KEY)], SpeechSettings(max_codes=most))[0].codes_M

    return choose


def encode_row(dvae: DVAE) -> ChooseCodes:
    """The codes of a mel."""
    return _compile(lambda row: dvae.encode(row["mel_BFM"])[0])


def _compile(choose: Callable[[Tensors], Any]) -> ChooseCodes:
    compiled = tf.function(choose, autograph=False)
    return lambda row: np.asarray(compiled(row), np.int32)


_log = logging.getLogger(__name__)

SPOKEN_NAME = "spoken.wav"


UNSEEN_TEXTS = {
    "en": "The letter came on a quiet morning. Nobody knew what it would say.",
    "fa": "نامه صبح آرامی رسید. هیچ‌کس نمی‌دانست در آن چه نوشته شده است.",
}
"""For a model that could speak before the run: it need not know its sentences by heart."""


class Spoken(NamedTuple):
    """Something that was said."""

    path: Path
    text: str
    how: str
    """Makes the sound, in words."""
    reference: Path
    """The clip whose voice it is."""


def speak_at_end(folder: Path, corpus: Corpus, *, could_speak: bool) -> Spoken | None:
    """Lets a run's best checkpoint say the first text it was trained on, or, where it `could_speak` before, what it never heard, and
    puts that on its page. None, with a warning, where it cannot.

    On the host: the device may be full of what has just been trained.
    """
    language = corpus.language[0]
    text = UNSEEN_TEXTS.get(language, corpus.text[0]) if could_speak else corpus.text[0]
    voice = int(SpeakerPrompts(corpus.speaker, seed=0, is_fixed=True).choose(0, np.zeros(1, np.int32))[0])
    path, reference = folder / SPOKEN_NAME, corpus.find_file(voice)
    try:
        with get_device_context("/CPU:0"):
            synthesizer = load_synthesizer(folder, verify_checksums=False, engine="float32")
            speech = synthesizer.speak(text, synthesizer.clone_voice([reference]), language)
        soundfile.write(path, np.clip(speech.samples, -1, 1), synthesizer.rate_hz, subtype="PCM_16")
        write_listening_page(folder, folder / LISTENING_PAGE, (path, text))
    except (MyXTTSError, OSError, MemoryError, soundfile.LibsndfileError, tf.errors.OpError) as error:
        # The run is over and whole on the disk: this is not worth a failure.
        _log.warning("Nothing was said at the end: %s", error)
        return None
    return Spoken(path, text, synthesizer.vocoder.how, reference)

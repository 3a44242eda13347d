"""What a finished run has learnt, said aloud: a sentence of its corpus, in the voice of another clip."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import tensorflow as tf

from myxtts.data.corpus import Corpus
from myxtts.data.prompts import SpeakerPrompts
from myxtts.errors import MyXTTSError
from myxtts.inference.loading import load_synthesizer
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)

SPOKEN_NAME = "spoken.wav"


class Spoken(NamedTuple):
    """Something that was said."""

    path: Path
    text: str
    how: str
    """Makes the sound, in words."""


def speak_at_end(folder: Path, corpus: Corpus) -> Spoken | None:
    """Lets a run's best checkpoint say the first text it was trained on. None, with a warning, where it cannot.

    On the host: the device may be full of what has just been trained.
    """
    text = corpus.text[0]
    voice = int(SpeakerPrompts(corpus.speaker, seed=0, is_fixed=True).choose(0, np.zeros(1, np.int32))[0])
    path = folder / SPOKEN_NAME
    try:
        with get_device_context("/CPU:0"):
            synthesizer = load_synthesizer(folder, verify_checksums=False)
            speech = synthesizer.speak(text, synthesizer.clone_voice([corpus.find_file(voice)]), corpus.language[0])
        soundfile.write(path, np.clip(speech.samples, -1, 1), synthesizer.rate_hz, subtype="PCM_16")
    except (MyXTTSError, OSError, MemoryError, soundfile.LibsndfileError, tf.errors.OpError) as error:
        # The run is over and whole on the disk: this is not worth a failure.
        _log.warning("Nothing was said at the end: %s", error)
        return None
    return Spoken(path, text, synthesizer.vocoder.how)

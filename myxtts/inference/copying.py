"""A recording through a model's codes and back: what the codec alone makes of it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.mels import compute_dvae_mel
from myxtts.audio.units import SAMPLES_PER_CODE
from myxtts.inference.errors import UnableToSpeakError
from myxtts.inference.mel_vocoder import MelVocoder
from myxtts.models.xtts import XTTS


class SpeechCopier:
    """Copies recordings with a model's DVAE. Raises `UnableToSpeakError` for a model that has none."""

    def __init__(self, xtts: XTTS):
        if xtts.dvae is None:
            raise UnableToSpeakError(
                "Copying a recording takes the model's DVAE, but there is none. Import one (--dvae)."
            )
        self._dvae, self._mel_norms = xtts.dvae, xtts.mel_norms.numpy()
        self._vocoder = MelVocoder(self._dvae, self._mel_norms)

    def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int32]:
        """The codes of a recording at 22.05 kHz."""
        count = len(samples)
        mel, _ = compute_dvae_mel(tf.constant(samples[None]), tf.constant([count]), self._mel_norms)
        codes_1M: NDArray[np.int32] = self._dvae.encode(mel).numpy().astype(np.int32)
        return codes_1M[0, : -(-count // SAMPLES_PER_CODE)]

    def copy(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """A recording at 22.05 kHz after it went through the model's codes and back, at the same rate and length.

        What is lost here no GPT can bring back: listen to it first when speech is bad.
        """
        return self._vocoder.start(None, 1.0).render(self.encode(samples), is_last=True)[: len(samples)]

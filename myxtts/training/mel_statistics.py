"""The mel statistics of a corpus, for a codec that is trained from scratch.

Log mels are divided by one number per band, so that all bands weigh alike in the codec's error. The reference's numbers
belong to its corpus; here they are the mean size of each band's log mel.
"""

from __future__ import annotations

import logging

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.filterbanks import DVAE_MEL
from myxtts.audio.mels import compute_dvae_mel
from myxtts.data.clip_loading import find_clip_file, load_clip
from myxtts.data.corpus import Corpus
from myxtts.data.errors import NothingToTrainOnError
from myxtts.hashing import hash_words

_log = logging.getLogger(__name__)

MOST_CLIPS = 1000
"""More change the third digit."""
_PICK = 211
"""Sets these hashes apart from others with the same seed."""


def measure_mel_norms(corpus: Corpus, seed: int) -> NDArray[np.float32]:
    """The mean size of the log mel in each band, over all clips or a thousand of them."""
    bands = DVAE_MEL.bands
    ones = np.ones(bands, np.float32)
    total, frames = np.zeros(bands), 0
    for clip in _pick_clips(len(corpus), seed):
        samples = int(corpus.samples[clip])
        wav_1S = np.zeros((1, samples), np.float32)
        if load_clip(find_clip_file(corpus, clip), wav_1S[0]) is not None:
            continue
        mel_1FM, _ = compute_dvae_mel(tf.constant(wav_1S), tf.constant([samples]), ones)
        own_FM = mel_1FM.numpy()[0, : samples // DVAE_MEL.hop_samples]
        total += np.abs(own_FM).sum(axis=0, dtype=np.float64)
        frames += len(own_FM)
    if frames == 0:
        raise NothingToTrainOnError(f"{corpus.root}: none of the clips looked at for the mel statistics could be read.")
    _log.info("Mel statistics are taken from %d frames of the corpus.", frames)
    return (total / frames).astype(np.float32)


def _pick_clips(count: int, seed: int) -> list[int]:
    if count <= MOST_CLIPS:
        return list(range(count))
    order = np.argsort(hash_words(seed, _PICK, np.arange(count)), kind="stable")
    picked: list[int] = np.sort(order[:MOST_CLIPS]).tolist()
    return picked

"""Which clip each voice prompt is cut from, and which part of it.

A prompt that is a part of the clip itself says which clip it is. A model that starts from nothing learns a small corpus by
heart that way and never reads the text: it then says whatever clip the prompt reminds it of.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.draws import Purpose, draw_integers
from myxtts.audio.slices import Slices, choose_evaluation_slices, draw_slices
from myxtts.data.corpus import Corpus, NameColumn

Clips = NDArray[np.int32]


def choose_prompt_slices(
    corpus: Corpus, clips: Clips, prompts: Clips, *, seed: int, epoch: int, for_validation: bool
) -> Slices:
    """The parts of prompts that clips hear.

    Args:
        prompts: the clip that each one's prompt is cut from; itself, where it hears a part of itself.
        for_validation: the parts are always the same, instead of drawn anew in each epoch.
    """
    # Of another clip no more than the row has room for, whatever the bucket.
    samples = np.minimum(corpus.samples[clips], corpus.samples[prompts])
    if for_validation:
        return choose_evaluation_slices(samples)
    return draw_slices(samples, seed=seed, epoch=epoch, sample_ids=clips)


class SpeakerPrompts:
    """For each clip another one of the same speaker, or itself where the speaker has no other.

    Args:
        speakers: of a corpus.
        seed: of the run.
        is_fixed: always the same other clip, instead of one drawn anew in each epoch.
    """

    def __init__(self, speakers: NameColumn, *, seed: int, is_fixed: bool = False):
        self._seed = seed
        self._is_fixed = is_fixed
        codes = speakers.codes
        self._by_speaker = np.argsort(codes, kind="stable").astype(np.int32)
        sizes = np.bincount(codes, minlength=len(speakers.names))
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self._size, self._first = sizes[codes], firsts[codes]
        self._rank = np.empty(len(codes), np.int64)
        self._rank[self._by_speaker] = np.arange(len(codes))
        self._rank -= self._first

    def choose(self, epoch: int, clips: Clips) -> Clips:
        """The clips whose parts are the prompts of these."""
        others = np.maximum(self._size[clips] - 1, 1)
        steps = np.ones(len(clips), np.int64)
        if not self._is_fixed:
            steps = draw_integers(self._seed, epoch, clips, Purpose.PROMPT_CLIP, 1, others[:, None])[:, 0]
        chosen: Clips = self._by_speaker[self._first[clips] + (self._rank[clips] + steps) % self._size[clips]]
        return chosen

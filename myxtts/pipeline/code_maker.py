"""The frozen DVAE's codes of clips: made on the device of the caller's scope, or found in a cache.

Shapes: B rows, S samples, F mel frames, M mel bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.mels import TAIL_CODES, compute_dvae_mel
from myxtts.audio.units import FRAMES_PER_CODE, SAMPLES_PER_CODE
from myxtts.data.code_cache import DTYPE, ClipIds, CodeCache
from myxtts.models.dvae import DVAE
from myxtts.pipeline.shaped_function import ShapedFunction

Codes = NDArray[np.integer[Any]]
"""Of one clip, as many as it has."""

WIDTH_STEP_CODES = 16
"""A clip's mel is as wide as its codes and the silence behind them, rounded up to this, whatever its bucket. In another
width the last bits of a convolution change, and between two codes almost equally near a last bit decides."""


class CodeMaker:
    """Makes codes, and keeps those of clips that stay as they are.

    Args:
        dvae: built and loaded on the device of the scope in which this is used.
        mel_norms: the codec's.
    """

    def __init__(self, dvae: DVAE, mel_norms: NDArray[np.float32]):
        assert dvae.size.codes <= np.iinfo(DTYPE).max, dvae.size.codes
        self.cache: CodeCache | None = None
        """Of codes; None makes them every time."""
        self._dvae = dvae
        self._mel_norms = mel_norms
        self._compute_mel = ShapedFunction(self._trace_mel)
        self._encode = ShapedFunction(self._trace_encode)

    def find_known(self, clip_ids: ClipIds, rows: Sequence[int]) -> dict[int, Codes]:
        """The codes that the cache has of some rows, by row."""
        assert self.cache is not None
        found = zip(rows, self.cache.get_many(clip_ids[list(rows)]), strict=True)
        return {row: codes for row, codes in found if codes is not None}

    def start(self, wav_BS: Any, lengths_B: Any, samples: Mapping[int, tuple[int, int]]) -> dict[int, Any]:
        """Starts to make the codes of some rows; `finish` waits for them.

        Args:
            samples: of each row to be made, by its number: its place in `wav_BS`, and its length.
        """
        mel_BFM = self._compute_mel(wav_BS, lengths_B)
        return {
            row: self._encode(mel_BFM[place, : choose_code_width(length) * FRAMES_PER_CODE])
            for row, (place, length) in samples.items()
        }

    def finish(self, started: Mapping[int, Any], counts_B: NDArray[np.int32]) -> dict[int, Codes]:
        """The codes of rows that were started, cut to their clips' own."""
        return {row: codes.numpy()[: counts_B[row]] for row, codes in started.items()}

    def keep(self, clip_ids: ClipIds, codes: Mapping[int, Codes]) -> None:
        """Puts codes by row into the cache."""
        assert self.cache is not None
        if codes:
            self.cache.put_many(clip_ids[list(codes)], list(codes.values()))

    def warm_up(self, shapes: Iterable[tuple[int, int]], widths: Iterable[int]) -> None:
        """Traces everything for groups of these rows and samples, and clips of these widths."""
        for shape in shapes:
            self._compute_mel(tf.zeros(shape), tf.zeros(shape[:1], tf.int32))
        for width in widths:
            self._encode(tf.zeros((width * FRAMES_PER_CODE, len(self._mel_norms))))

    def count_traces(self) -> int:
        """How often something was traced."""
        return self._compute_mel.traces + self._encode.traces

    def _trace_mel(self, wav_BS: Any, lengths_B: Any) -> Any:
        mel_BFM, _ = compute_dvae_mel(wav_BS, lengths_B, self._mel_norms)
        # The last frame is one of silence, and a clip's width may reach that much beyond its bucket's.
        more = (WIDTH_STEP_CODES - 1) * FRAMES_PER_CODE
        return tf.concat([mel_BFM, tf.repeat(mel_BFM[:, -1:], more, axis=1)], axis=1)

    def _trace_encode(self, mel_FM: Any) -> Any:
        return tf.cast(self._dvae.encode(mel_FM[None])[0], tf.int32)


def choose_code_width(samples: int) -> int:
    """Codes that a clip of so many samples is encoded with: its own and silence."""
    codes = -(-samples // SAMPLES_PER_CODE) + TAIL_CODES
    return -(-codes // WIDTH_STEP_CODES) * WIDTH_STEP_CODES

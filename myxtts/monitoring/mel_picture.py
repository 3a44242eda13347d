"""Mels as pictures: numbers to colours, without a plotting library.

Shapes: F frames, M mel bands, H and W height and width in pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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

"""Voice prompts cut out of a batch of clips.

Shapes: B clips, S samples.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from myxtts.audio.tiles import mark_positions, read_size
from myxtts.audio.units import MAX_SLICE_SAMPLES


def cut_slices(wav_BS: Any, starts_B: Any, lengths_B: Any, samples: int = MAX_SLICE_SAMPLES) -> Any:
    """(B, samples): each row's slice, with zeros behind it. A slice must lie inside its clip and be at most `samples` long."""
    positions = tf.cast(starts_B, tf.int32)[:, None] + tf.range(samples)[None, :]
    inside = tf.minimum(positions, read_size(wav_BS, 1) - 1)
    return tf.where(mark_positions(lengths_B, samples), tf.gather(wav_BS, inside, batch_dims=1), 0.0)

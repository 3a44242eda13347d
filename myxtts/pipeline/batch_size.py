"""How large a prepared batch is, known from its shape alone."""

from __future__ import annotations

from collections.abc import Sequence

from myxtts.audio.filterbanks import CONDITIONING_MEL
from myxtts.audio.units import HOP_SAMPLES, SAMPLES_PER_CODE
from myxtts.data.buckets import Bucket
from myxtts.models.speech_units import SEGMENT_SAMPLES
from myxtts.pipeline.order import Kind
from myxtts.pipeline.preparation_settings import PreparationSettings, Target
from myxtts.pipeline.preparation_task import MOST_NOTE_BYTES
from myxtts.pipeline.ring import ALIGNMENT

_NUMBER_BYTES = 4
_ROW_BYTES = 256
"""Lengths, weights and the like of a row, and some failures of clips that stood in it."""
_BATCH_BYTES = 16 * ALIGNMENT


def measure_batch_bytes(settings: PreparationSettings, bucket: Bucket) -> int:
    """Bytes of a batch on the model device."""
    samples = settings.measure_samples(bucket.samples, Kind.TRAIN)
    if settings.target is Target.CODEC:
        numbers = CONDITIONING_MEL.bands * (samples // HOP_SAMPLES)
    else:
        frames = CONDITIONING_MEL.count_frames(settings.prompt_samples)
        numbers = CONDITIONING_MEL.bands * frames + samples // SAMPLES_PER_CODE + bucket.tokens
    if settings.target is Target.DECODER:
        numbers += SEGMENT_SAMPLES
    return bucket.rows * (numbers * _NUMBER_BYTES + _ROW_BYTES) + _BATCH_BYTES


def measure_slot_bytes(settings: PreparationSettings, buckets: Sequence[Bucket]) -> int:
    """Bytes of a slot that holds a batch of any of these shapes, and what its producer has to say."""
    return max(measure_batch_bytes(settings, bucket) for bucket in buckets) + MOST_NOTE_BYTES

"""A prepared batch: its tensors, and one record of all that is known about it besides, which travels with it everywhere.

On its way it is on the device that prepares, or on the host, in a slot of shared memory (`Batch.pack`), and on the device that
trains (`batches.place_batch`). Times are of `time.perf_counter`, which on Linux counts the same in every process of the machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from myxtts.audio.filterbanks import CONDITIONING_MEL
from myxtts.data.buckets import Bucket
from myxtts.data.sampler import Failure, Kind
from myxtts.models.sizes import SEGMENT_SAMPLES
from myxtts.pipeline.recipe import PreparationSettings, Target
from myxtts.pipeline.threads import WorkFacts
from myxtts.units import HOP_SAMPLES, SAMPLES_PER_CODE

INFO = "info_U"
"""The array of a slot that holds a batch's record."""
MOST_NOTE_BYTES = 1 << 15
"""Of a batch. What does not fit goes with the next one."""

_NUMBER_BYTES = 4
_ROW_BYTES = 220
"""Some failures of clips that stood in a row."""
_BATCH_BYTES = 2048
"""Its record, and the gaps between arrays."""


class BatchFacts(NamedTuple):
    """Where a batch belongs and how much is in it."""

    number: int
    """Its place in the stream."""
    kind: Kind
    updates: int
    """Updates done before it: its step's number, or after how many updates it validates."""
    micro_batch: int
    micro_batches: int
    """Of its step."""
    epoch: int
    bucket_number: int
    clips: int
    """Rows that hold a clip."""
    samples: int
    """Of all its clips, padding left out."""
    padded_samples: int

    @property
    def is_last_of_step(self) -> bool:
        """Whether an update is due after it; every validation batch is a step of its own."""
        return self.micro_batch + 1 == self.micro_batches


class Span(NamedTuple):
    """From one moment to another."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


class BatchSpans(NamedTuple):
    """When a batch was worked on."""

    read: Span
    """Waiting for its clips, beyond what was read ahead."""
    prepare: Span
    transfer: Span = Span(0.0, 0.0)
    """Nothing before it is on the model device."""


class BatchMemory(NamedTuple):
    """Memory of the process that made a batch, at that moment, so that a leak shows where it is; None is unknown."""

    pid: int
    host_bytes: int | None
    device_bytes: int | None
    """In TensorFlow's pool on the device that prepares."""


@dataclass(frozen=True)
class BatchMeters:
    """The cost of one batch, or of several."""

    batches: int = 0
    read_s: float = 0.0
    """Waiting for its clips, beyond what was read ahead."""
    prepare_s: float = 0.0
    cache_hits: int = 0
    """Clips whose codes were found."""
    cache_misses: int = 0
    traces: int = 0
    """Functions traced. Each shape is traced once; what comes after warm-up is a retrace."""

    def __add__(self, other: BatchMeters) -> BatchMeters:
        return BatchMeters(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: BatchMeters) -> BatchMeters:
        return BatchMeters(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def list_work(self) -> list[WorkFacts]:
        """What of it was reading, and what preparing."""
        return [WorkFacts("read", self.batches, self.read_s), WorkFacts("prepare", self.batches, self.prepare_s)]


@dataclass(frozen=True)
class BatchInfo:
    """All that is known about a batch besides its tensors."""

    facts: BatchFacts
    clip_numbers: tuple[int, ...]
    """By row; `EMPTY_ROW` where there is none."""
    replaced: tuple[Failure, ...]
    """Clips of its rows that failed and were replaced, for the journal of the run."""
    totals: tuple[float, ...]
    """What its losses are divided by, as among the tensors."""
    spans: BatchSpans
    memory: BatchMemory
    cache_hits: int = 0
    cache_misses: int = 0
    traces: int = 0
    notes: tuple[Any, ...] = ()
    """What its producer has to say: see `factory.NoteTaker`."""

    @property
    def meters(self) -> BatchMeters:
        """What making it has cost."""
        read_s, prepare_s = self.spans.read.seconds, self.spans.prepare.seconds
        return BatchMeters(1, read_s, prepare_s, self.cache_hits, self.cache_misses, self.traces)


@dataclass(frozen=True, eq=False)
class Batch:
    """A prepared batch."""

    tensors: dict[str, Any]
    """By name: tensors on a device, or NumPy arrays on the host."""
    info: BatchInfo

    def pack(self) -> dict[str, NDArray[Any]]:
        """A batch on the host as the arrays of a slot."""
        # Not pydantic's own JSON: the name of a file may hold half characters, which that refuses.
        record = json.dumps(_get_adapter().dump_python(self.info, mode="json"))
        return {**self.tensors, INFO: np.frombuffer(record.encode(), np.uint8)}

    @classmethod
    def unpack(cls, arrays: Mapping[str, NDArray[Any]]) -> Batch:
        """The batch in a slot. Its arrays go on showing the slot's memory; its record does not."""
        info = _get_adapter().validate_python(json.loads(arrays[INFO].tobytes()))
        return cls({name: array for name, array in arrays.items() if name != INFO}, info)


@cache
def _get_adapter() -> TypeAdapter[BatchInfo]:
    return TypeAdapter(BatchInfo)


TensorSpecs = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each tensor of a batch."""


def specify_batch(settings: PreparationSettings, bucket: Bucket) -> TensorSpecs:
    """The tensors of a batch to train on, in their order, known from its shape alone."""
    rows, samples = bucket.rows, settings.measure_samples(bucket.samples, Kind.TRAIN)
    number_B, real_B = ((rows,), "int32"), ((rows,), "float32")
    is_codec = settings.target is Target.CODEC
    frames = samples // HOP_SAMPLES if is_codec else CONDITIONING_MEL.count_frames(settings.prompt_samples)
    mels = min(rows, settings.voices or rows)
    specs: dict[str, tuple[tuple[int, ...], str]] = {"mel_BFM": ((mels, frames, CONDITIONING_MEL.bands), "float32")}
    if is_codec:
        specs["frame_lengths_B"] = number_B
    else:
        specs |= {
            "text_BT": ((rows, bucket.tokens), "int32"),
            "text_lengths_B": number_B,
            "codes_BM": ((rows, samples // SAMPLES_PER_CODE), "int32"),
            "code_lengths_B": number_B,
            "spans_B2": ((rows, 2), "int32"),
        }
    if settings.voices:
        specs["voices_B"] = number_B
    specs |= {"weights_B": real_B, "totals_2": ((2,), "float32")}
    if settings.target is Target.DECODER:
        speech = ((rows, SEGMENT_SAMPLES), "float32")
        specs |= {"speech_BS": speech, "segment_starts_B": number_B, "segment_frames_B": number_B}
    return specs


def measure_batch_bytes(settings: PreparationSettings, bucket: Bucket) -> int:
    """Bytes of a batch on the model device, and of what goes with it."""
    numbers = sum(math.prod(shape) for shape, _ in specify_batch(settings, bucket).values())
    return numbers * _NUMBER_BYTES + bucket.rows * _ROW_BYTES + _BATCH_BYTES


def measure_slot_bytes(settings: PreparationSettings, buckets: Sequence[Bucket]) -> int:
    """Bytes of a slot that holds a batch of any of these shapes, and what its producer has to say."""
    # Those of validation share no prompts.
    settings = replace(settings, voices=0)
    return max(measure_batch_bytes(settings, bucket) for bucket in buckets) + MOST_NOTE_BYTES

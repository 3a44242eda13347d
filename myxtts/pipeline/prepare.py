"""From a host batch to what the model trains on, on the device of the caller's scope. No threads, no scope of its own.

What is prepared for a clip is a function of that clip and of what was drawn for it, to the last bit on a CPU: its
neighbours, its bucket, the rows prepared at a time and a cache in between never change it.

Shapes: B rows or clips, S samples, F mel frames, M codes (of a mel: bands), T text tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.augment import SPEED_STEPS, AugmentDraws, Purpose, Slices, draw_augmentation, draw_integers
from myxtts.audio.filterbanks import CONDITIONING_MEL
from myxtts.audio.mels import compute_dvae_mel, compute_slice_mel, make_silent_frame
from myxtts.audio.on_device import augment_wav, cut_slices, mask_mel, resample_batch
from myxtts.data.code_cache import ClipIds, CodeCache
from myxtts.data.corpus import Corpus
from myxtts.data.host_batches import HostBatch
from myxtts.data.sampler import Kind, Position
from myxtts.devices.runtime import is_on_cpu
from myxtts.models.dvae import DVAE
from myxtts.models.sizes import (
    SAMPLES_PER_FRAME,
    SEGMENT_FRAMES,
    SEGMENT_SAMPLES,
    SPEECH_RATE_HZ,
    STOP_CODES,
    count_frames,
)
from myxtts.pipeline.codes import CACHED_ROWS, CodeMaker, ShapedFunction, choose_code_width
from myxtts.pipeline.recipe import PreparationSettings, Target
from myxtts.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLE_RATE_HZ, SAMPLES_PER_CODE

Lengths = NDArray[np.int32]
Prepared = dict[str, Any]
"""By name: tensors on the device, and NumPy arrays of what was never there."""

MOST_KEPT_BYTES = 1 << 28
"""Of the mels of shared prompts. Others are made every time."""
STOP_TEXT_TOKENS = 1
"""Stop tokens a text is trained on after its last token."""


@dataclass(frozen=True, eq=False)
class ClipSpans:
    """Lengths of clips and where their prompts lie, in samples of what the model hears."""

    samples_B: Lengths
    starts_B: Lengths
    prompts_B: Lengths
    """Length of each prompt."""

    @property
    def codes_B(self) -> Lengths:
        return -(-self.samples_B // SAMPLES_PER_CODE)

    @property
    def frames_B(self) -> Lengths:
        """Mel frames, those of the clip's last code included but none beyond it."""
        frames = np.minimum(1 + self.samples_B // HOP_SAMPLES, FRAMES_PER_CODE * self.codes_B)
        return frames.astype(np.int32)

    @property
    def spans_B2(self) -> Lengths:
        """First and last sample (exclusive) of each prompt."""
        return np.stack([self.starts_B, self.starts_B + self.prompts_B], axis=1)


def measure_spans(samples_B: Lengths, slices: Slices, prompt_samples: int, draws: AugmentDraws | None) -> ClipSpans:
    """The spans of clips after augmentation; a prompt is cut to the longest that is allowed."""
    spans = [samples_B, slices.starts, slices.lengths]
    if draws is not None:
        steps = draws.speed_steps.astype(np.int64)
        # As `on_device.change_speed` makes them. Prompts are rounded down, so that they still lie inside their clips.
        longer = [span.astype(np.int64) * SPEED_STEPS for span in spans]
        spans = [(longer[0] + steps - 1) // steps, longer[1] // steps, longer[2] // steps]
    samples, starts, lengths = (span.astype(np.int32) for span in spans)
    return ClipSpans(samples, starts, np.minimum(lengths, np.int32(prompt_samples)))


def count_totals(
    settings: PreparationSettings, corpus: Corpus, clips_B: NDArray[np.int32], spans: ClipSpans
) -> NDArray[np.float32]:
    """What the two losses of a global batch with these clips are divided by."""
    totals: list[Any]
    match settings.target:
        case Target.CODEC:
            totals = [np.sum(spans.frames_B)] * 2
        case Target.GPT:
            audio = np.sum(spans.codes_B + STOP_CODES)
            if settings.blank_prompt:
                # As the loss blanks them.
                bounds_B2 = spans.spans_B2 // SAMPLES_PER_CODE
                audio -= np.sum(bounds_B2[:, 1] - bounds_B2[:, 0])
            totals = [np.sum(corpus.tokens[clips_B] + STOP_TEXT_TOKENS), audio]
        case Target.DECODER:
            totals = [len(clips_B)] * 2
    return np.array(totals, np.float32)


class Segments(NamedTuple):
    """One segment of each clip, on the grid of the decoder's frames."""

    starts_B: Lengths
    """First frame."""
    frames_B: Lengths
    """Frames that belong to the clip; those behind a short clip's end are filling."""


def choose_segments(kind: Kind, codes_B: Lengths, *, seed: int, epoch: int, clips_B: NDArray[np.int32]) -> Segments:
    """Segments of clips with so many codes: in training another one in every epoch, in validation the middle."""
    frames_B = np.array([count_frames(int(codes)) for codes in codes_B], np.int64)
    last_B = np.maximum(frames_B - SEGMENT_FRAMES, 0)
    if kind is Kind.VALIDATION:
        starts_B = last_B // 2
    else:
        starts_B = draw_integers(seed, epoch, clips_B, Purpose.SEGMENT_START, 0, last_B[:, None])[:, 0]
    own_B = np.minimum(frames_B - starts_B, SEGMENT_FRAMES)
    return Segments(starts_B.astype(np.int32), own_B.astype(np.int32))


class RowGroup(NamedTuple):
    rows: tuple[int, ...]
    padded: NDArray[np.intp]
    """The same, its last one repeated up to the size of the group."""

    def take(self, array: NDArray[Any]) -> NDArray[Any]:
        """The rows of an array, as many as the group's size. The array itself when these are all of it."""
        is_whole = len(self.padded) == len(array) and len(self.rows) == len(array)
        return array if is_whole else array[self.padded]


def group_rows(rows: Sequence[int], size: int) -> Iterator[RowGroup]:
    """Groups of `size` rows each; the last one may hold fewer."""
    for first in range(0, len(rows), size):
        own = tuple(rows[first : first + size])
        yield RowGroup(own, np.array(own + own[-1:] * (size - len(own)), np.intp))


@dataclass(frozen=True, eq=False)
class _Rows:
    """A batch and what is known about its rows."""

    host: HostBatch
    spans: ClipSpans
    draws: AugmentDraws | None
    kind: Kind

    def take_draws(self, group: RowGroup) -> tuple[Any, ...]:
        draws = () if self.draws is None else (getattr(self.draws, field.name) for field in fields(self.draws))
        return tuple(tf.constant(group.take(each)) for each in draws)


class Preparer:
    """Prepares batches on the device of the caller's scope, where the DVAE's variables are too.

    Args:
        seed: of the augmentation's draws.
        dvae: makes the codes; None to train it.
    """

    def __init__(self, settings: PreparationSettings, *, seed: int, dvae: DVAE | None):
        assert (dvae is None) == (settings.target is Target.CODEC), "codes are made by a DVAE, unless it is trained"
        self.settings = settings
        self._measure_samples = cache(settings.measure_samples)
        self._seed = seed
        self._mel_norms = np.array(settings.mel_norms, np.float32)
        self._codes = None if dvae is None else CodeMaker(dvae, self._mel_norms)
        self._at_once = not is_on_cpu()
        self._compute_codec_mel = ShapedFunction(self._trace_codec_mel)
        self._compute_prompt_mel = ShapedFunction(self._trace_prompt_mel)
        self._augment = ShapedFunction(self._trace_augment)
        self._cut_speech = ShapedFunction(self._trace_speech)
        self.kept_prompts: dict[int, NDArray[np.float32]] = {}
        """Mels of shared prompts by the number of their clip, in training."""

    def prepare(
        self, host: HostBatch, kind: Kind, totals_2: NDArray[np.float32], clip_ids: ClipIds | None = None
    ) -> Prepared:
        """The arrays of a batch.

        Args:
            totals_2: of its global batch.
            clip_ids: of its clips by row, needed with a cache.
        """
        rows = self._measure(host, kind)
        is_shared = host.voices_B is not None
        mels = self._find_prompts(host) if is_shared else self._join_groups(rows, self._compute_mel)
        arrays: Prepared = {"mel_BFM": mels}
        if self._codes is None:
            arrays["frame_lengths_B"] = rows.spans.frames_B
        else:
            arrays |= {
                "text_BT": host.text_BL,
                "text_lengths_B": host.text_lengths_B,
                "codes_BM": self._make_codes(rows, clip_ids, self._codes),
                "code_lengths_B": rows.spans.codes_B,
                "spans_B2": rows.spans.spans_B2,
            }
        if is_shared:
            arrays["voices_B"] = host.voices_B
        arrays |= {"weights_B": host.weights_B, "totals_2": totals_2}
        return arrays | self._prepare_speech(rows)

    def draw(self, kind: Kind, epoch: int, clips_B: NDArray[np.int32]) -> AugmentDraws | None:
        """What augmentation does to clips in an epoch; None when nothing."""
        augment = self.settings.augment
        if augment is None or kind is Kind.VALIDATION:
            return None
        return draw_augmentation(augment, seed=self._seed, epoch=epoch, sample_ids=clips_B)

    def warm_up(self, shapes: Iterable[tuple[int, int]], code_widths: Sequence[int] = ()) -> None:
        """Traces everything for batches of these shapes, so that no later batch has to, and calls it once.

        Args:
            shapes: rows and samples.
            code_widths: of the clips there are, from `choose_code_width`.
        """
        encoded: set[tuple[int, int]] = set()
        if self.settings.voices:
            self._hear_beginning(np.zeros(self.settings.prompt_samples, np.float32))
        for rows, samples in shapes:
            for kind in (Kind.TRAIN, Kind.VALIDATION) if self.settings.augment else (Kind.VALIDATION,):
                batch = self._measure(_make_silence(rows, samples), kind)
                self._join_groups(batch, self._compute_mel)
                self._prepare_speech(batch)
                encoded.add((self._choose_encoded(rows), self._measure_samples(samples, kind)))
        if self._codes is not None:
            self._codes.warm_up(encoded, code_widths)

    def measure_code_seconds(self, rows: int, samples: int) -> float:
        """Seconds that the codes of a clip take to make, tried with a batch of this shape."""
        assert self._codes is not None
        wav_BS, lengths_B = tf.zeros((rows, samples)), tf.fill((rows,), samples)
        clips = {row: (row, samples) for row in range(rows)}
        counts_B = np.zeros(rows, np.int32)
        self._codes.warm_up([(rows, samples)], [choose_code_width(samples)])
        started = time.perf_counter()
        self._codes.finish(self._codes.start(wav_BS, lengths_B, clips), counts_B)
        return (time.perf_counter() - started) / rows

    def use_cache(self, cache: CodeCache) -> None:
        """Looks codes up in a cache, and keeps them there. Of no use where clips sound different every time."""
        assert self._codes is not None
        assert not self.settings.changes_waves, "what changes every time cannot be kept"
        self._codes.cache = cache

    def count_traces(self) -> int:
        """How often something was traced: constant once everything is warm."""
        functions = (self._compute_codec_mel, self._compute_prompt_mel, self._augment, self._cut_speech)
        own = sum(function.traces for function in functions)
        return own + (0 if self._codes is None else self._codes.count_traces())

    def _measure(self, host: HostBatch, kind: Kind) -> _Rows:
        draws = self.draw(kind, host.epoch, host.clips_B)
        slices = Slices(host.slice_starts_B, host.slice_lengths_B)
        spans = measure_spans(host.wav_lengths_B, slices, self.settings.prompt_samples, draws)
        return _Rows(host, spans, draws, kind)

    def _make_codes(self, rows: _Rows, clip_ids: ClipIds | None, maker: CodeMaker) -> NDArray[np.int32]:
        """Codes of every clip, found or made, and zeros behind its own."""
        host, spans = rows.host, rows.spans
        clips = np.flatnonzero(host.weights_B).tolist()
        known = maker.find_known(clip_ids, clips)
        started: dict[int, Any] = {}
        missing = [row for row in clips if row not in known]
        for group in group_rows(missing, self._choose_encoded(host.rows)):
            places = {row: (place, int(spans.samples_B[row])) for place, row in enumerate(group.rows)}
            started |= maker.start(*self._load(rows, group), places)
        made = maker.finish(started, spans.codes_B)
        maker.keep(clip_ids, made)
        width = self._measure_samples(host.wav_BS.shape[1], rows.kind) // SAMPLES_PER_CODE
        codes_BM = np.zeros((host.rows, width), np.int32)
        for row, own in (known | made).items():
            codes_BM[row, : len(own)] = own
        return codes_BM

    def _prepare_speech(self, rows: _Rows) -> Prepared:
        """What a decoder's batch has besides a GPT's: how a segment of each clip sounds, and where it lies."""
        if self.settings.target is not Target.DECODER:
            return {}
        clips_B, epoch = rows.host.clips_B, rows.host.epoch
        segments = choose_segments(rows.kind, rows.spans.codes_B, seed=self._seed, epoch=epoch, clips_B=clips_B)

        def cut(rows: _Rows, group: RowGroup) -> Any:
            places = (tf.constant(group.take(each) * SAMPLES_PER_FRAME) for each in segments)
            return self._cut_speech(*self._load(rows, group), *places)

        return {
            "speech_BS": self._join_groups(rows, cut),
            "segment_starts_B": segments.starts_B,
            "segment_frames_B": segments.frames_B,
        }

    def _find_prompts(self, host: HostBatch) -> NDArray[np.float32]:
        """The mels of a batch's shared prompts, kept or made. They never change: nothing is drawn for them."""
        assert host.prompts_P is not None
        assert host.prompt_BS is not None
        mels: list[NDArray[np.float32]] = []
        for clip, wav_S in zip(host.prompts_P.tolist(), host.prompt_BS, strict=True):
            mel = self.kept_prompts.get(clip)
            if mel is None:
                mel = self._hear_beginning(wav_S)
                if len(self.kept_prompts) < MOST_KEPT_BYTES // mel.nbytes:
                    self.kept_prompts[clip] = mel
            mels.append(mel)
        return np.concatenate(mels)

    def _hear_beginning(self, wav_S: NDArray[np.float32]) -> NDArray[np.float32]:
        most = self.settings.prompt_samples
        mel_1FM = self._compute_prompt_mel(tf.constant(wav_S[None]), tf.constant([0]), tf.constant([most]))
        heard: NDArray[np.float32] = mel_1FM.numpy()
        return heard

    def _compute_mel(self, rows: _Rows, group: RowGroup) -> Any:
        if self._codes is None:
            return self._compute_codec_mel(*self._load(rows, group))
        wav_BS, _ = self._load(rows, group, of_prompts=True)
        starts_B, prompts_B = (tf.constant(group.take(each)) for each in (rows.spans.starts_B, rows.spans.prompts_B))
        return self._compute_prompt_mel(wav_BS, starts_B, prompts_B, *rows.take_draws(group))

    def _load(self, rows: _Rows, group: RowGroup, *, of_prompts: bool = False) -> tuple[Any, Any]:
        """Clips and their lengths on the device, augmented.

        Args:
            of_prompts: the clips that prompts are cut from. What is done to a clip is done to its prompt.
        """
        prompts_BS = rows.host.prompt_BS if of_prompts else None
        # `tf.constant` copies. The reader uses the memory of a batch again, so nothing may go on showing it.
        wav_BS = tf.constant(group.take(rows.host.wav_BS if prompts_BS is None else prompts_BS))
        lengths_B = tf.constant(group.take(rows.host.wav_lengths_B))
        if rows.draws is None or not self.settings.changes_waves:
            return wav_BS, lengths_B
        augmented: tuple[Any, Any] = self._augment(wav_BS, lengths_B, *rows.take_draws(group))
        return augmented

    def _join_groups(self, rows: _Rows, compute: Callable[[_Rows, RowGroup], Any]) -> Any:
        """What is computed of all rows, so many at a time as is allowed."""
        size = rows.host.rows
        parts = [compute(rows, group) for group in group_rows(range(size), self._choose_group(size))]
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)[:size]

    def _choose_group(self, rows: int) -> int:
        return min(rows, self.settings.rows_at_a_time or rows)

    def _choose_encoded(self, rows: int) -> int:
        is_cached = self._codes is not None and self._codes.cache is not None
        return min(self._choose_group(rows), CACHED_ROWS) if is_cached else self._choose_group(rows)

    def _trace_augment(self, wav_BS: Any, lengths_B: Any, *draws: Any) -> Any:
        assert self.settings.augment is not None
        return augment_wav(wav_BS, lengths_B, self.settings.augment, AugmentDraws(*draws))

    def _trace_speech(self, wav_BS: Any, lengths_B: Any, starts_B: Any, samples_B: Any) -> Any:
        speech_BS, _ = resample_batch(wav_BS, lengths_B, SAMPLE_RATE_HZ, SPEECH_RATE_HZ)
        return cut_slices(speech_BS, starts_B, samples_B, SEGMENT_SAMPLES)

    def _trace_codec_mel(self, wav_BS: Any, lengths_B: Any) -> Any:
        mel_BFM, _ = compute_dvae_mel(wav_BS, lengths_B, self._mel_norms, at_once=self._at_once)
        return mel_BFM[:, : wav_BS.shape[1] // HOP_SAMPLES]

    def _trace_prompt_mel(self, wav_BS: Any, starts_B: Any, prompts_B: Any, *draws: Any) -> Any:
        prompts_BS = cut_slices(wav_BS, starts_B, prompts_B, self.settings.prompt_samples)
        mel_BFM = compute_slice_mel(prompts_BS, self._mel_norms, at_once=self._at_once)
        if not draws:
            return mel_BFM
        assert self.settings.augment is not None
        frames_B = tf.minimum(1 + prompts_B // CONDITIONING_MEL.hop_samples, mel_BFM.shape[1])
        silence = make_silent_frame(self._mel_norms)
        return mask_mel(mel_BFM, frames_B, self.settings.augment, AugmentDraws(*draws), silence)


def _make_silence(rows: int, samples: int) -> HostBatch:
    """A batch of silent clips, for tracing."""
    zeros = np.zeros(rows, np.int32)
    return HostBatch(
        position=Position(0),
        epoch=0,
        bucket_number=0,
        first_row=0,
        micro_batches=1,
        step_clips=zeros,
        clips_B=zeros,
        weights_B=np.zeros(rows, np.float32),
        wav_BS=np.zeros((rows, samples), np.float32),
        wav_lengths_B=zeros,
        text_BL=np.zeros((rows, 1), np.int32),
        text_lengths_B=zeros,
        slice_starts_B=zeros,
        slice_lengths_B=zeros,
    )

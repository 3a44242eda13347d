"""Who takes part in `myxtts bench data`, apart from TensorFlow: stages, the plain loop, our reader, bare processes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.audio.reading import inspect_clip, read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.batch_maker import BatchMaker
from myxtts.data.corpus import Corpus
from myxtts.data.drops import DropReport
from myxtts.data.errors import WorkerError
from myxtts.data.loading import LoadingEngine
from myxtts.data.positions import Position, follow_position
from myxtts.data.reader import BatchReader
from myxtts.data.replacements import ReplacementJournal
from myxtts.data.sampler import IndexSampler
from myxtts.data.text_ids import TextIds
from myxtts.data.throughput import Piece, Rate, count_pieces, warm_up
from myxtts.data.workers import Task, Work, WorkerProcess
from myxtts.files import read_bytes
from myxtts.text.tokenizer import Tokenizer

_DECODED_CLIPS = 64
"""Kept decoded for the stages behind decoding."""

WARM_SECONDS = 0.3


@dataclass(frozen=True, eq=False)
class Material:
    """What is read."""

    corpus: Corpus
    ids: TextIds
    sampler: IndexSampler
    vocabulary: Path

    def iterate_batches(self) -> Iterator[list[int]]:
        """Clip numbers, micro-batch by micro-batch, without end."""
        for step in itertools.count():
            for micro_batch in self.sampler.make_batch(step).micro_batches:
                yield [clip for clip in micro_batch.clips.tolist() if clip >= 0]

    def iterate_clips(self) -> Iterator[int]:
        """Clip numbers in the order of the run, without end."""
        return itertools.chain.from_iterable(self.iterate_batches())


def measure_stages(material: Material, seconds: float) -> Mapping[str, Rate | None]:
    """What each stage does on one thread with nothing else to do; None where the corpus does not need it."""
    corpus = material.corpus
    clips = list(itertools.islice(material.iterate_clips(), _DECODED_CLIPS))
    rates_hz = {clip: inspect_clip(corpus.find_file(clip)).rate_hz for clip in clips}
    decoded = {clip: read_clip(corpus.find_file(clip), rates_hz[clip]) for clip in clips}
    foreign = [clip for clip in clips if rates_hz[clip] != SAMPLE_RATE_HZ]
    tokenizer = Tokenizer(material.vocabulary)

    def time_clips(work: Callable[[int], Any], chosen: Sequence[int] = clips) -> Rate:
        def work_on_clips() -> Iterator[Piece]:
            for clip in itertools.cycle(chosen):
                work(clip)
                yield Piece(1, int(corpus.samples[clip]))

        return count_pieces(work_on_clips(), seconds)

    return {
        "read bytes": time_clips(lambda clip: read_bytes(corpus.find_file(clip), int(corpus.size_bytes[clip]))),
        "decode": time_clips(lambda clip: read_clip(corpus.find_file(clip), rates_hz[clip])),
        "resample": time_clips(lambda clip: resample_clip(decoded[clip], rates_hz[clip], SAMPLE_RATE_HZ), foreign)
        if foreign
        else None,
        "tokenise": time_clips(lambda clip: tokenizer.encode(corpus.text[clip], corpus.language[clip])),
        "assemble": count_pieces(_assemble(material), seconds),
    }


def _assemble(material: Material) -> Iterator[Piece]:
    """Make the first batches again and again from samples that are in memory."""
    maker = BatchMaker(material.corpus, material.ids, material.sampler)
    batch = material.sampler.make_batch(0)
    clips = batch.micro_batches[0].clips
    wavs = {clip: read_clip(material.corpus.find_file(clip)) for clip in clips.tolist() if clip >= 0}
    while True:
        wav_BS = np.zeros((len(clips), batch.micro_batches[0].bucket.samples), np.float32)
        for row, clip in enumerate(clips.tolist()):
            if clip >= 0:
                wav_BS[row, : len(wavs[clip])] = wavs[clip]
        maker.make_batch(batch, Position(0), wav_BS)
        yield Piece(len(wavs), sum(map(len, wavs.values())))


@contextmanager
def open_plain_loop(material: Material) -> Iterator[Iterator[Piece]]:
    """What one would write first: read, tokenise and pad, one clip after the other."""
    corpus, tokenizer = material.corpus, Tokenizer(material.vocabulary)

    def loop() -> Iterator[Piece]:
        for clips in material.iterate_batches():
            wavs = [read_clip(corpus.find_file(clip)) for clip in clips]
            texts = [tokenizer.encode(corpus.text[clip], corpus.language[clip]) for clip in clips]
            wav_BS = np.zeros((len(clips), max(map(len, wavs))), np.float32)
            text_BL = np.zeros((len(clips), max(map(len, texts))), np.int32)
            for row, (wav, text) in enumerate(zip(wavs, texts, strict=True)):
                wav_BS[row, : len(wav)] = wav
                text_BL[row, : len(text)] = text
            yield Piece(len(clips), sum(map(len, wavs)))

    pieces = loop()
    warm_up(pieces, WARM_SECONDS)
    yield pieces


@contextmanager
def open_reader(material: Material, make_engine: Callable[[], LoadingEngine], depth: int) -> Iterator[Iterator[Piece]]:
    """Our reader, as a run uses it."""
    maker = BatchMaker(material.corpus, material.ids, material.sampler)
    report = DropReport(lines=len(material.corpus), kept_seconds=material.corpus.total_seconds)

    def loop(reader: BatchReader) -> Iterator[Piece]:
        position = Position(0)
        while True:
            batch = reader.read(position)
            yield Piece(int(np.count_nonzero(batch.weights_B)), int(batch.wav_lengths_B.sum()))
            position = follow_position(material.sampler, position)

    with (
        make_engine() as engine,
        BatchReader(maker, engine, depth=depth, report=report, journal=ReplacementJournal()) as reader,
    ):
        pieces = loop(reader)
        # What was read ahead while nobody asked for it is no achievement.
        warm_up(pieces, WARM_SECONDS, least=depth)
        yield pieces


@contextmanager
def open_pinned_processes(material: Material, count: int, seconds: float) -> Iterator[Iterator[Piece]]:
    """Processes that only decode, each on a core of its own: what the machine itself gains from them.

    A piece is what all of them do in `seconds`, at the same time.
    """
    cores = sorted(os.sched_getaffinity(0))
    paths = [
        str(material.corpus.find_file(clip)) for clip in itertools.islice(material.iterate_clips(), _DECODED_CLIPS)
    ]
    workers = [
        WorkerProcess(
            Task("myxtts.data.throughput_loops:make_decode_loop", {"core": cores[n % len(cores)], "paths": paths})
        )
        for n in range(count)
    ]

    def run(seconds: float) -> Piece:
        for worker in workers:
            worker.give([seconds])
        results = [_await_result(worker) for worker in workers]
        return Piece(sum(clips for clips, _ in results), sum(samples for _, samples in results))

    def loop() -> Iterator[Piece]:
        while True:
            yield run(seconds)

    try:
        run(WARM_SECONDS)
        yield loop()
    finally:
        for worker in workers:
            worker.stop()


def _await_result(worker: WorkerProcess) -> tuple[int, int]:
    while not worker.is_closed:
        for ((clips, samples),) in worker.receive():
            return clips, samples
    raise WorkerError(f"A process that was to be measured died of signal {worker.find_death_signal()}.")


def make_decode_loop(core: int, paths: list[str]) -> Work:
    """The work of a pinned process: takes seconds, gives the clips and samples decoded in them."""
    os.sched_setaffinity(0, [core])
    order = itertools.cycle(paths)

    def decode(seconds: float) -> tuple[int, int]:
        clips = samples = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            samples += len(read_clip(next(order)))
            clips += 1
        return clips, samples

    return decode

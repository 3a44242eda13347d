"""Small corpora that are ready to be read, and readers of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.data.buckets import plan_buckets
from myxtts.data.corpus import Corpus
from myxtts.data.drops import DropReport
from myxtts.data.host_batches import BatchReader, CorpusBatches, HostBatch
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.data.loaders import LoadingEngine, ProcessEngine
from myxtts.data.sampler import IndexSampler, Position, ReplacementJournal, count_micro_batches
from myxtts.data.scan import ClipLimits, scan_corpus
from myxtts.data.texts import make_vocabulary
from tests.support.shared_files import ASSETS, find_shared

VOCABULARY = ASSETS / "tiny_vocab.json"
SLOT_SAMPLES = 1 << 22
DEPTH = 6


def scan_small(path: Path, index_folder: Path, vocabulary: Path = VOCABULARY) -> Corpus:
    """A corpus scanned with a small vocabulary."""
    limits = ClipLimits(max_tokens=402)
    return scan_corpus(path, limits=limits, vocabulary=vocabulary, processes=0, index_folder=index_folder).corpus


def scan_demo(folder: Path) -> Corpus:
    """The demo corpus, which has two languages, with a vocabulary made for it."""
    corpus = scan_corpus(demo_corpus_path(), processes=0, index_folder=folder).corpus
    vocabulary = make_vocabulary(corpus, folder / "vocab.json", most_tokens=300).path
    return scan_small(demo_corpus_path(), folder, vocabulary)


def copy_corpus(folder: Path, *, wavs: int = 0, flacs: int = 0) -> Path:
    """A folder with real recordings: LJSpeech as wav, kathleen as flac."""
    (folder / "wavs").mkdir(parents=True)
    lines: list[str] = []
    for name, count in (("ljspeech_mini", wavs), ("kathleen", flacs)):
        if count:
            source = find_shared("data", name)
            chosen = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()[:count]
            lines += chosen
            for line in chosen:
                (file,) = (source / "wavs").glob(f"{line.partition('|')[0]}.*")
                shutil.copy2(file, folder / "wavs")
    (folder / "metadata.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def make_sampler(corpus: Corpus, *, batch_size: int = 4, accumulation: int = 1, seed: int = 3) -> IndexSampler:
    plan = plan_buckets(corpus.samples, corpus.tokens, batch_size=batch_size)
    return IndexSampler(plan, seed=seed, accumulation=accumulation)


def make_engine(kind: str, depth: int = DEPTH) -> LoadingEngine:
    """`here`, `2 workers` or `tensorflow`."""
    if kind == "here":
        return LoadingEngine()
    if kind == "tensorflow":
        from myxtts.data.loading_tf import NativeEngine

        return NativeEngine(2, depth)
    return ProcessEngine(int(kind.split()[0]), depth, SLOT_SAMPLES)


class CountingEngine(LoadingEngine):
    """Knows the files that were asked for, how many loads are under way, and the most that ever were."""

    def __init__(self) -> None:
        self.files: list[Any] = []
        self.under_way = self.most = self.started = 0

    def start(self, files: Sequence[Any], samples: int) -> Any:
        self.files += [file for file in files if file is not None]
        self.under_way += 1
        self.started += 1
        self.most = max(self.most, self.under_way)
        return super().start(files, samples)

    def take(self, load: Any) -> Any:
        self.under_way -= 1
        return super().take(load)


@contextmanager
def open_reader(
    corpus: Corpus,
    kind: str | LoadingEngine = "here",
    *,
    sampler: IndexSampler | None = None,
    journal: ReplacementJournal | None = None,
    depth: int = DEPTH,
    end_step: int | None = None,
    **options: Any,
) -> Iterator[BatchReader]:
    """A reader with an engine, which it closes."""
    batches = CorpusBatches(corpus, sampler or make_sampler(corpus), **options)
    report = DropReport(lines=len(corpus), kept_seconds=corpus.total_seconds)
    with (
        make_engine(kind, depth) if isinstance(kind, str) else kind as engine,
        BatchReader(batches, engine, depth=depth, report=report, journal=journal, end_step=end_step) as reader,
    ):
        yield reader


def read_steps(reader: BatchReader, first_step: int, end_step: int) -> Iterator[HostBatch]:
    """All batches from one step to another, which is left out."""
    for step in range(first_step, end_step):
        for micro_batch in range(count_micro_batches(reader._batches.sampler, step)):
            yield reader.read(Position(step, micro_batch))


def freeze(batch: HostBatch) -> list[Any]:
    """Everything a batch holds, comparable, and independent of memory that is used again."""
    values = [getattr(batch, field.name) for field in fields(batch)]
    return [(v.dtype.name, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values]


def freeze_all(batches: Sequence[HostBatch] | Iterator[HostBatch]) -> list[list[Any]]:
    return [freeze(batch) for batch in batches]


def shape_of(batch: HostBatch) -> tuple[int, int, int]:
    """Rows, samples and text tokens."""
    return (*batch.wav_BS.shape, batch.text_BL.shape[1])

"""Makes any batch of the run by its number: reads it and prepares it. The same in every mode, in whatever process.

A producer process has more to tell than its batches: lines of its log and clips that failed. They are carried with a batch
(`NoteTaker`): its own standard error is read only when it dies, and a run must not hide in which way it prepares.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.code_cache import ClipIds, CodeCache
from myxtts.data.drops import DropReport
from myxtts.data.host_batches import HostBatch, HostSource
from myxtts.data.run_data import RunData, load_run_data
from myxtts.data.sampler import Kind, choose_prompt_slices
from myxtts.devices.plan import Process
from myxtts.devices.runtime import Execution, apply_execution, apply_plan, read_execution, read_pool_bytes
from myxtts.errors import CorpusError, WorkFailedError
from myxtts.pipeline.batch import MOST_NOTE_BYTES, Batch, BatchFacts, BatchInfo, BatchMemory, BatchSpans, Span
from myxtts.pipeline.codes import choose_code_width, identify_clips, load_codec, make_code_key, open_cache
from myxtts.pipeline.prepare import Preparer, count_totals, measure_spans
from myxtts.pipeline.producer import ProducerTask, Report
from myxtts.pipeline.recipe import RECIPE_NAME, BatchRecipe, Target, read_recipe
from myxtts.pipeline.ring import Arrays
from myxtts.processes import read_private_bytes
from myxtts.utils.commons import get_device_context, setup_logging

_LONGEST_LINE = 2000
_LOOKED_FOR = 5
"""Clips, before a process prepares: where none of them is there, the corpus is not."""


class BatchFactory:
    """Makes batches on the data device of a recipe's plan. For one thread at a time.

    Args:
        report: is told what is being done.
        notes: what a process that prepares for another one has to say goes with its batches.
    """

    def __init__(
        self,
        data: RunData,
        recipe: BatchRecipe,
        report: Report = lambda doing: None,
        notes: NoteTaker | None = None,
    ):
        self._data = data
        self._recipe = recipe
        self._report = report
        self._notes = notes
        self._corpora = {Kind.TRAIN: data.train, Kind.VALIDATION: data.validation}
        self._device = recipe.plan.data.device
        self._counts = (0, 0, 0)
        """Codes found, codes made and functions traced so far."""
        self._cache: CodeCache | None = None
        self._clip_ids: dict[Kind, ClipIds] = {}
        with get_device_context(self._device):
            codec = None if recipe.codec_folder is None else load_codec(recipe.codec_folder)
            self.preparer = Preparer(recipe.preparation, seed=data.sampler.seed, dvae=codec and codec.dvae)
        norms = np.array(recipe.preparation.mel_norms, np.float32)
        self._key = codec and make_code_key(codec.weights, norms, self._device, read_execution())
        sharing = recipe.preparation.sharing
        self._host = HostSource(
            data,
            recipe.make_order(data),
            recipe.config.data,
            recipe.failures,
            reads_prompts=recipe.reads_prompts,
            sharing=sharing and sharing._replace(kept=self.preparer.kept_prompts),
            share=recipe.share,
        )

    def warm_up(self) -> None:
        """Chooses and opens the cache, and traces everything there is to trace, so that no batch has to."""
        with get_device_context(self._device):
            if self._key is not None:
                self._cache = open_cache(self._data, self._recipe, self._key)
            if self._cache is not None:
                self._clip_ids = identify_clips(self._data)
                self.preparer.use_cache(self._cache)
                if self._recipe.preparation.target is Target.GPT:
                    for kind, ids in self._clip_ids.items():
                        self._host.skip(kind, partial(self._cache.has, ids))
            if self._recipe.config.data.pad_to_fixed_length:
                shapes = [(bucket.rows, bucket.samples) for bucket in self._recipe.list_buckets(self._data)]
                lengths = np.unique(np.concatenate([corpus.samples for corpus in self._corpora.values()]))
                self.preparer.warm_up(shapes, sorted(set(map(choose_code_width, lengths.tolist()))))
        self._counts = (0, 0, self.preparer.count_traces())

    def make(self, number: int, upcoming: Sequence[int] | None = None) -> Batch:
        """The batch with a number of the stream, what is known about it, and what it cost.

        Args:
            upcoming: the numbers that will be made after it, in order; by default all that follow.
        """
        started = time.perf_counter()
        with self._naming_part("read", number):
            place, host = self._host.read(number, upcoming)
        read = time.perf_counter()
        with self._naming_part("prepare", number), get_device_context(self._device):
            ids = None if self._cache is None else self._clip_ids[place.kind][np.maximum(host.clips_B, 0)]
            tensors = self.preparer.prepare(host, place.kind, self._count_totals(place.kind, host), ids)
        prepared = time.perf_counter()
        hits, misses = (self._cache.hits, self._cache.misses) if self._cache else (0, 0)
        before, self._counts = self._counts, (hits, misses, self.preparer.count_traces())
        hits, misses, traces = (now - then for now, then in zip(self._counts, before, strict=True))
        info = BatchInfo(
            facts=BatchFacts(
                number=number,
                kind=place.kind,
                updates=place.updates,
                micro_batch=place.position.micro_batch,
                micro_batches=host.micro_batches,
                epoch=host.epoch,
                bucket_number=host.bucket_number,
                clips=int(np.count_nonzero(host.weights_B)),
                samples=int(host.wav_lengths_B.sum()),
                padded_samples=host.wav_BS.size,
            ),
            clip_numbers=tuple(host.clips_B.tolist()),
            replaced=host.replaced,
            totals=tuple(tensors["totals_2"].tolist()),
            spans=BatchSpans(Span(started, read), Span(read, prepared)),
            memory=BatchMemory(os.getpid(), read_private_bytes(os.getpid()), read_pool_bytes(self._device)),
            cache_hits=hits,
            cache_misses=misses,
            traces=traces,
        )
        return Batch(tensors, info)

    def finish(self, batch: Batch, *, on_host: bool) -> Batch:
        """The batch, really made, with its arrays where they are or on the host.

        Where a device works asynchronously, `make` has only told it what to do: its errors and its time show here.
        """
        tensors = {}
        with self._naming_part("prepare", batch.info.facts.number):
            for name, array in batch.tensors.items():
                is_away = not isinstance(array, np.ndarray)
                if is_away and not on_host:
                    array[tuple(slice(1) for _ in array.shape)].numpy()
                tensors[name] = array.numpy() if is_away and on_host else array
        spans = batch.info.spans
        prepare = spans.prepare._replace(ended_s=time.perf_counter())
        return Batch(tensors, replace(batch.info, spans=spans._replace(prepare=prepare)))

    def prepare(self, position: int, upcoming: Sequence[int] | None = None) -> Arrays:
        """The batch with a number of the stream as the arrays of a slot."""
        batch = self.finish(self.make(position, upcoming), on_host=True)
        notes = () if self._notes is None else self._notes.take()
        return replace(batch, info=replace(batch.info, notes=notes)).pack()

    def replace_batch(self, position: int) -> list[str]:
        return self._host.replace_batch(position, "the producer died twice at its batch")

    def close(self) -> None:
        """Ends reading; no process, thread or memory of it is left."""
        self._host.close()
        if self._cache is not None:
            self._cache.save()

    def _count_totals(self, kind: Kind, host: HostBatch) -> NDArray[np.float32]:
        corpus, clips, epoch = self._corpora[kind], host.step_clips, host.epoch
        # Of clips that hear themselves: no target lies under a prompt that is cut from another clip.
        slices = choose_prompt_slices(
            corpus, clips, clips, seed=self._data.sampler.seed, epoch=epoch, for_validation=kind is Kind.VALIDATION
        )
        draws = self.preparer.draw(kind, epoch, clips)
        settings = self._recipe.preparation
        spans = measure_spans(corpus.samples[clips].astype(np.int32), slices, settings.prompt_samples, draws)
        return count_totals(settings, corpus, clips, spans)

    @contextmanager
    def _naming_part(self, part: str, number: int) -> Iterator[None]:
        """Whatever fails within carries the name of this part of the work."""
        self._report(part)
        try:
            yield
        except Exception as error:
            raise WorkFailedError(
                f"Stage {part!r} failed at batch {number}: {type(error).__name__}: {error}"
            ) from error


def make_task(settings: Mapping[str, Any], report: Report) -> ProducerTask:
    """The task of a producer process; from here on it sees only its part of the plan.

    Args:
        settings: `folder` holds the run's data and recipe, `execution` says how operations are run, `preparation_batch` is how many
            rows are prepared at a time.
    """
    folder = Path(settings["folder"])
    recipe = read_recipe(folder / RECIPE_NAME)
    preparation = replace(recipe.preparation, rows_at_a_time=settings["preparation_batch"])
    execution = Execution(**settings["execution"])
    return open_task(folder, replace(recipe, preparation=preparation), execution, Process.PRODUCER, report)


def open_task(
    folder: Path,
    recipe: BatchRecipe,
    execution: Execution,
    process: Process = Process.TRAINER,
    report: Report = lambda doing: None,
) -> BatchFactory:
    """The task of a process that prepares; from here on it sees only its part of the recipe's plan."""
    setup_logging()
    apply_execution(execution)
    data = load_run_data(folder)
    for corpus in (data.train, data.validation):
        some = [corpus.find_file(clip) for clip in range(min(len(corpus), _LOOKED_FOR))]
        # Clip by clip they would be replaced, as if each were damaged.
        if some and not any(path.exists() for path in some):
            raise CorpusError(
                f"{some[0]} is not on {socket.gethostname()}, which is to prepare it. Every machine must find the corpus at the "
                "same path: share it, or copy it there."
            )
    notes = NoteTaker(data.report)
    logging.getLogger("myxtts").addHandler(notes)
    apply_plan(recipe.plan, process)
    return BatchFactory(data, recipe, report, notes)


class NoteTaker(logging.Handler):
    """Collects what this process's code logs, and what is added to a drop report. `batches.NoteReader` reads it."""

    def __init__(self, report: DropReport):
        super().__init__(logging.INFO)
        self._notes: deque[tuple[Any, ...]] = deque()
        self._report = report
        self._reported = len(report.replaced)

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(("log", record.levelno, record.name, record.getMessage()[:_LONGEST_LINE]))

    def take(self) -> tuple[Any, ...]:
        """What was noted since the last call, as far as it fits."""
        for drop in self._report.replaced[self._reported :]:
            self._notes.append(("drop", drop.reason, drop.file, drop.where, drop.detail[:_LONGEST_LINE]))
        self._reported = len(self._report.replaced)
        taken: list[Any] = []
        room = MOST_NOTE_BYTES
        while self._notes:
            room -= len(json.dumps(self._notes[0])) + 2
            if room < 0:
                break
            taken.append(self._notes.popleft())
        return tuple(taken)

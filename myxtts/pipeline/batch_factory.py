"""Makes any batch of the run by its number: reads it and prepares it. The same in every mode."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from myxtts.data.code_cache import ClipIds, CodeCache
from myxtts.data.prompts import choose_prompt_slices
from myxtts.data.run_data import RunData
from myxtts.devices.runtime import read_pool_bytes
from myxtts.errors import StageFailedError
from myxtts.pipeline.batch_facts import CLIPS, FACTS, REPLACED, dump_failures
from myxtts.pipeline.batch_memory import MEMORY, dump_memory, read_batch_memory
from myxtts.pipeline.batch_meters import METERS, BatchMeters
from myxtts.pipeline.batch_spans import SPANS, Span, dump_spans, parse_spans
from myxtts.pipeline.code_cache import CacheChoice
from myxtts.pipeline.code_maker import choose_code_width
from myxtts.pipeline.codec_loading import load_codec
from myxtts.pipeline.host_source import HostItem, HostSource
from myxtts.pipeline.order import Kind
from myxtts.pipeline.preparation import Prepared, Preparer
from myxtts.pipeline.preparation_settings import reads_prompts
from myxtts.pipeline.producer import ReportStage
from myxtts.pipeline.production import Production
from myxtts.pipeline.targets import StepTotals, count_totals, measure_spans
from myxtts.utils.commons import get_device_context


class BatchFactory:
    """Makes batches on a device. For one thread at a time.

    Args:
        data: the clips and their order.
        production: what batches are made of.
        device: logical name of the device that prepares.
        report_stage: is told what is being done.
    """

    def __init__(
        self, data: RunData, production: Production, device: str, report_stage: ReportStage = lambda stage: None
    ):
        self._corpora = {Kind.TRAIN: data.train, Kind.VALIDATION: data.validation}
        self._seed = data.sampler.seed
        buckets = production.share.shrink_all(data.sampler.plan.buckets)
        self._shapes = [(bucket.rows, bucket.samples) for bucket in buckets]
        self._device = device
        self._report_stage = report_stage
        self._has_fixed_shapes = production.config.data.pad_to_fixed_length
        self._total = BatchMeters()
        self._cache: CodeCache | None = None
        self._clip_ids: dict[Kind, ClipIds] = {}
        with get_device_context(device):
            codec = None if production.codec_folder is None else load_codec(production.codec_folder)
            self.preparer = Preparer(production.preparation, seed=self._seed, dvae=codec and codec.dvae)
        self._cache_choice = codec and CacheChoice(data, production, codec, device)
        self._host = HostSource(
            data,
            production.make_order(data),
            production.config.data,
            production.failures,
            reads_prompts=reads_prompts(production.config.data, production.preparation.target),
            share=production.share,
        )

    def warm_up(self) -> None:
        """Chooses and opens the cache, and traces everything there is to trace, so that no batch has to."""
        with get_device_context(self._device):
            self._open_cache()
            if self._has_fixed_shapes:
                self.preparer.warm_up(self._shapes, self._list_code_widths())
        self._total = BatchMeters(traces=self.preparer.count_traces())

    def make(self, number: int) -> Prepared:
        """The batch with a number of the stream, what is known about it, and what it cost."""
        started = time.perf_counter()
        with self._naming_stage("read", number):
            item = self._host.read(number)
        read = time.perf_counter()
        with self._naming_stage("prepare", number):
            arrays = self._prepare(item)
        prepared = time.perf_counter()
        meters = self._measure(read - started, prepared - read)
        return {
            **arrays,
            FACTS: item.facts.dump(),
            REPLACED: dump_failures(item.replaced),
            CLIPS: item.host.clips_B,
            METERS: meters.dump(),
            SPANS: dump_spans(Span(started, read), Span(read, prepared)),
            MEMORY: dump_memory(read_batch_memory(read_pool_bytes(self._device))),
        }

    def settle(self, prepared: Prepared) -> None:
        """Waits until a batch is really made. Where a device works asynchronously, errors of this stage show here."""
        with self._naming_stage("prepare", int(prepared[FACTS][0])):
            for array in prepared.values():
                if not isinstance(array, np.ndarray):
                    array[tuple(slice(1) for _ in array.shape)].numpy()
        _end_preparation(prepared)

    def fetch(self, prepared: Prepared) -> Prepared:
        """A batch with all its arrays on the host."""
        with self._naming_stage("prepare", int(prepared[FACTS][0])):
            fetched = {
                name: array if isinstance(array, np.ndarray) else array.numpy() for name, array in prepared.items()
            }
        _end_preparation(fetched)
        return fetched

    def replace_batch(self, number: int, detail: str) -> list[str]:
        """Uses the clips of a batch no more there, and returns their names."""
        return self._host.replace_batch(number, detail)

    def close(self) -> None:
        """Ends reading; no process, thread or memory of it is left."""
        self._host.close()
        if self._cache is not None:
            self._cache.save()

    def _open_cache(self) -> None:
        if self._cache_choice is None or self._cache is not None:
            return
        self._cache = self._cache_choice.open()
        if self._cache is not None:
            self._clip_ids = self._cache_choice.identify_clips()
            self.preparer.use_cache(self._cache)

    def _measure(self, read_s: float, prepare_s: float) -> BatchMeters:
        """The cost of the batch just made."""
        hits, misses = (self._cache.hits, self._cache.misses) if self._cache else (0, 0)
        total = BatchMeters(0, 0.0, 0.0, hits, misses, self.preparer.count_traces())
        cost, self._total = total - self._total, total
        return replace(cost, batches=1, read_s=read_s, prepare_s=prepare_s)

    def _prepare(self, item: HostItem) -> Prepared:
        kind, host = item.facts.kind, item.host
        with get_device_context(self._device):
            return self.preparer.prepare(host, kind, self._count_totals(item), self._find_ids(kind, host.clips_B))

    def _find_ids(self, kind: Kind, clips_B: NDArray[np.int32]) -> ClipIds | None:
        """The ids of clips by row; those of empty rows mean nothing."""
        return None if self._cache is None else self._clip_ids[kind][np.maximum(clips_B, 0)]

    def _count_totals(self, item: HostItem) -> StepTotals:
        kind, epoch, clips = item.facts.kind, item.facts.epoch, item.step_clips
        corpus = self._corpora[kind]
        # Of clips that hear themselves: no target lies under a prompt that is cut from another clip.
        slices = choose_prompt_slices(
            corpus, clips, clips, seed=self._seed, epoch=epoch, for_validation=kind is Kind.VALIDATION
        )
        draws = self.preparer.draw(kind, epoch, clips)
        spans = measure_spans(
            corpus.samples[clips].astype(np.int32), slices, self.preparer.settings.prompt_samples, draws
        )
        return count_totals(corpus, clips, spans)

    def _list_code_widths(self) -> list[int]:
        longest = np.unique(np.concatenate([corpus.samples for corpus in self._corpora.values()]))
        return sorted({choose_code_width(samples) for samples in longest.tolist()})

    @contextmanager
    def _naming_stage(self, stage: str, number: int) -> Iterator[None]:
        """Whatever fails within carries the stage's name."""
        self._report_stage(stage)
        try:
            yield
        except Exception as error:
            raise StageFailedError(
                f"Stage {stage!r} failed at batch {number}: {type(error).__name__}: {error}"
            ) from error


def _end_preparation(prepared: Prepared) -> None:
    """Counts the time up to now as preparing: on an asynchronous device, `make` has only told what is to be done."""
    read, prepare = parse_spans(prepared[SPANS])
    now = time.perf_counter()
    meters = BatchMeters.parse(prepared[METERS])
    prepared[METERS] = replace(meters, prepare_s=meters.prepare_s + now - prepare.ended_s).dump()
    prepared[SPANS] = dump_spans(read, Span(prepare.began_s, now))

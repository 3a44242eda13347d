"""Host batches by their number in the stream, training and validation alike, read ahead across both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.config import DataConfig
from myxtts.data.batch_maker import BatchMaker
from myxtts.data.host_batch import HostBatch
from myxtts.data.open_engine import choose_read_ahead, open_engine
from myxtts.data.positions import count_micro_batches
from myxtts.data.reader import BatchReader
from myxtts.data.replacements import Failure, ReplacementJournal, name_prompt
from myxtts.data.run_data import RunData
from myxtts.data.sampler import WHOLE, RowShare
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.order import Kind, Place, RunOrder

VALIDATION_DEPTH = 4
"""Validation batches read ahead. A round is short, and what was read ahead of training waits meanwhile."""


class HostItem(NamedTuple):
    """A host batch and its place."""

    facts: BatchFacts
    host: HostBatch
    step_clips: NDArray[np.int32]
    """The clips of its whole global batch, or of the share of it that is read, those that failed replaced."""
    replaced: tuple[Failure, ...]
    """Failures in this batch's rows."""


class HostSource:
    """Reads the batch of any number; numbers asked for in order are read ahead. For one thread at a time.

    Args:
        data: the clips and their order.
        order: which batch comes when.
        config: how clips are read.
        failures: of training clips in the run so far.
        reads_prompts: whether voice prompts are cut from other clips.
        share: the rows of every batch that are read.
    """

    def __init__(
        self,
        data: RunData,
        order: RunOrder,
        config: DataConfig,
        failures: Iterable[Failure] = (),
        *,
        reads_prompts: bool = False,
        share: RowShare = WHOLE,
    ):
        self._order = order
        is_validated = data.validation_sampler is not None and order.validation_batches
        kinds = (Kind.TRAIN, Kind.VALIDATION) if is_validated else (Kind.TRAIN,)
        makers = {kind: make_maker(data, kind, config, reads_prompts, share) for kind in kinds}
        plans = [maker.sampler.plan for maker in makers.values()]
        ahead = choose_read_ahead(
            config, plans, accumulation=data.sampler.accumulation, clips_per_row=2 if reads_prompts else 1
        )
        depths = {Kind.TRAIN: ahead.depth, Kind.VALIDATION: VALIDATION_DEPTH}
        ends = {Kind.TRAIN: order.end_step, Kind.VALIDATION: order.validation_batches}
        journals = {Kind.TRAIN: ReplacementJournal(failures), Kind.VALIDATION: ReplacementJournal()}
        corpora = [data.train, data.validation][: len(makers)]
        self._makers = makers
        total = replace(ahead, depth=sum(depths[kind] for kind in makers))
        self._engine = open_engine(config, corpora, total, batches=ahead)
        self._readers = {
            kind: BatchReader(
                maker, self._engine, depth=depths[kind], report=data.report, journal=journals[kind], end_step=ends[kind]
            )
            for kind, maker in makers.items()
        }

    def read(self, number: int) -> HostItem:
        """The batch with a number of the stream."""
        place = self._order.find_place(number)
        host = self._readers[place.kind].read(place.position)
        self._read_ahead(number + 1, place)
        # Only now is it known which clips of the step fail: the reader has tried all of them.
        maker, journal = self._makers[place.kind], self._readers[place.kind].journal
        step_clips = maker.plan_step(place.position.step, journal).clips
        return HostItem(self._describe(number, place, host), host, step_clips, self._list_failures(place, host))

    def replace_batch(self, number: int, detail: str) -> list[str]:
        """Use the clips of the batch with a number no more there, and return their names."""
        place = self._order.find_place(number)
        return self._readers[place.kind].replace_batch(place.position, detail)

    def close(self) -> None:
        """End what is under way; no process, thread or memory of it is left."""
        for reader in self._readers.values():
            reader.stop()
        self._engine.close()

    def _read_ahead(self, number: int, before: Place) -> None:
        """Begin with a round while the batch before it is still being prepared."""
        if number < self._order.end_number:
            place = self._order.find_place(number)
            if place.kind is not before.kind:
                self._readers[place.kind].read_ahead(place.position)

    def _describe(self, number: int, place: Place, host: HostBatch) -> BatchFacts:
        return BatchFacts(
            number=number,
            kind=place.kind,
            updates=place.updates,
            micro_batch=place.position.micro_batch,
            micro_batches=count_micro_batches(self._makers[place.kind].sampler, place.position.step),
            epoch=host.epoch,
            bucket_number=host.bucket_number,
            clips=int(np.count_nonzero(host.weights_B)),
            samples=int(host.wav_lengths_B.sum()),
            padded_samples=host.wav_BS.size,
        )

    def _list_failures(self, place: Place, host: HostBatch) -> tuple[Failure, ...]:
        journal = self._readers[place.kind].journal
        step = place.position.step
        rows = range(host.first_row, host.first_row + host.rows)
        places = (*rows, *map(name_prompt, rows))
        return tuple(failure for place in places for failure in journal.list_failures_at(step, place))


def make_maker(
    data: RunData, kind: Kind, config: DataConfig, reads_prompts: bool = False, share: RowShare = WHOLE
) -> BatchMaker:
    """What makes the batches of a kind in a run. Those of validation only where there are clips to validate with."""
    if kind is Kind.TRAIN:
        corpus, ids, sampler = data.train, data.train_ids, data.sampler
    else:
        assert data.validation_sampler is not None
        corpus, ids, sampler = data.validation, data.validation_ids, data.validation_sampler
    return BatchMaker(
        corpus,
        ids,
        sampler,
        for_validation=kind is Kind.VALIDATION,
        static_shapes=config.pad_to_fixed_length,
        prompts_from_speaker=reads_prompts,
        share=share,
    )

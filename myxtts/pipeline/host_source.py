"""Host batches by their number in the stream, training and validation alike, read ahead across both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from myxtts.config import DataConfig
from myxtts.data.batch_maker import BatchMaker
from myxtts.data.host_batch import HostBatch
from myxtts.data.open_engine import choose_read_ahead, open_engine
from myxtts.data.reader import BatchReader
from myxtts.data.replacements import Failure, ReplacementJournal
from myxtts.data.run_data import RunData
from myxtts.data.sampler import WHOLE, RowShare
from myxtts.pipeline.order import Kind, Place, RunOrder

VALIDATION_DEPTH = 4
"""Validation batches read ahead. A round is short, and what was read ahead of training waits meanwhile."""


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
        total = replace(ahead, depth=sum(depths[kind] for kind in makers))
        self._engine = open_engine(config, corpora, total, batches=ahead)
        self._readers = {
            kind: BatchReader(
                maker, self._engine, depth=depths[kind], report=data.report, journal=journals[kind], end_step=ends[kind]
            )
            for kind, maker in makers.items()
        }

    def read(self, number: int) -> tuple[Place, HostBatch]:
        """The batch with a number of the stream, and what that number stands for."""
        place = self._order.find_place(number)
        host = self._readers[place.kind].read(place.position)
        if number + 1 < self._order.end_number:
            after = self._order.find_place(number + 1)
            if after.kind is not place.kind:
                # Begin with a round while the batch before it is still being prepared.
                self._readers[after.kind].read_ahead(after.position)
        return place, host

    def replace_batch(self, number: int, detail: str) -> list[str]:
        """Use the clips of the batch with a number no more there, and return their names."""
        place = self._order.find_place(number)
        return self._readers[place.kind].replace_batch(place.position, detail)

    def close(self) -> None:
        """End what is under way; no process, thread or memory of it is left."""
        for reader in self._readers.values():
            reader.stop()
        self._engine.close()


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

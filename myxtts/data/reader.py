"""Host batches in the order of the run, read ahead: the same at every place, whoever reads and whatever fails.

A clip that fails is replaced by another one, always the same one, and reported. A batch is given out only when every clip of
its global batch was read: what the losses are divided by is counted from all of them (`pipeline.targets`).
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from myxtts.data.batch_maker import BatchMaker
from myxtts.data.clip_loading import LoadFailure
from myxtts.data.drops import Drop, DropReason, DropReport
from myxtts.data.errors import TooManyFailuresError
from myxtts.data.host_batch import HostBatch
from myxtts.data.loading import Load, LoadingEngine
from myxtts.data.positions import Position, follow_position
from myxtts.data.replacements import Failure, ReplacementJournal, name_prompt
from myxtts.data.sampler import EMPTY_ROW, GlobalBatch

_log = logging.getLogger(__name__)

RECENT_CLIPS = 200
MOST_FAILED_SHARE = 0.2
"""Of the recent clips. Beyond it the disk is gone or the corpus was changed: no training is better than on what is left."""


@dataclass(eq=False)
class _Step:
    """A global batch whose clips are being loaded."""

    batch: GlobalBatch
    loads: list[Load | None] = field(default_factory=list)
    """By micro-batch, as far as begun; None once given out."""
    is_read: bool = False
    """Every clip was, and what failed was replaced."""


class BatchReader:
    """Gives the host batch of any place. Places asked for in order are read ahead.

    Args:
        engine: the caller's to close; it may serve several readers.
        depth: micro-batches that may be under way, at least those of one global batch.
        report, journal: clips that fail are added to both.
        end_step: nothing is read ahead from this step on.
    """

    def __init__(
        self,
        maker: BatchMaker,
        engine: LoadingEngine,
        *,
        depth: int,
        report: DropReport,
        journal: ReplacementJournal | None = None,
        end_step: int | None = None,
    ):
        assert depth >= maker.sampler.accumulation, "a global batch is read as a whole"
        self.report = report
        self.journal = journal if journal is not None else ReplacementJournal()
        self._maker = maker
        self._engine = engine
        self._depth = depth
        self._end_step = end_step
        self._steps: deque[_Step] = deque()
        self._expected = self._ahead = Position(0)
        self._under_way = 0
        self._recent: deque[bool] = deque(maxlen=RECENT_CLIPS)

    def read(self, position: Position) -> HostBatch:
        """The batch of a place. Cheap when it follows the last one; any other place starts reading anew there."""
        self.read_ahead(position)
        step = self._steps[0]
        if not step.is_read:
            self._finish_step(step, position.micro_batch)
        load = step.loads[position.micro_batch]
        assert load is not None
        wav = self._engine.take(load)
        step.loads[position.micro_batch] = None
        self._under_way -= 1
        batch = self._maker.make_batch(step.batch, position, wav)
        self._expected = follow_position(self._maker.sampler, position)
        if self._expected.step != position.step:
            self._steps.popleft()
        # Now rather than at the next call: readers shall work while the caller does.
        self._start_loads()
        return batch

    def read_ahead(self, position: Position) -> None:
        """Begin to load what will be read at a place soon, while something else is being done."""
        if position != self._expected or not self._steps:
            self._seek(position)
        self._start_loads(needed_step=position.step)

    def replace_batch(self, position: Position, detail: str) -> list[str]:
        """Use the clips of a place no more there, and return their names: whoever is behind the reader dies of one of them."""
        batch = self._maker.plan_step(position.step, self.journal)
        micro_batch = batch.micro_batches[position.micro_batch]
        names = [
            self._note_failure(batch, position.micro_batch, row, LoadFailure(DropReason.CORRUPT, detail))
            for row in np.flatnonzero(micro_batch.clips != EMPTY_ROW).tolist()
        ]
        # What was read ahead of it was planned with these clips.
        self.stop()
        return names

    def stop(self) -> None:
        """End what is under way. Reading goes on wherever it is asked to."""
        for step in self._steps:
            for load in step.loads:
                if load is not None:
                    self._engine.cancel(load)
        self._steps.clear()
        self._under_way = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _seek(self, position: Position) -> None:
        self.stop()
        self._expected = position
        # From the step's beginning: all its clips are read together.
        self._ahead = Position(position.step)

    def _start_loads(self, needed_step: int | None = None) -> None:
        """Begin loads as far ahead as allowed: up to the end, or beyond it for the step that is asked for."""
        while self._under_way < self._depth and (
            self._end_step is None or self._ahead.step < self._end_step or self._ahead.step == needed_step
        ):
            self._start_load()

    def _start_load(self) -> None:
        position = self._ahead
        if not self._steps or self._steps[-1].batch.step != position.step:
            self._steps.append(_Step(self._maker.plan_step(position.step, self.journal)))
        step = self._steps[-1]
        micro_batch = step.batch.micro_batches[position.micro_batch]
        files = self._maker.list_files(micro_batch)
        step.loads.append(self._engine.start(files, micro_batch.bucket.samples))
        self._under_way += 1
        self._ahead = follow_position(self._maker.sampler, position)

    def _finish_step(self, step: _Step, first_wanted: int) -> None:
        """Wait for a global batch, replacing what fails. Micro-batches before the wanted one are dropped."""
        for number, load in enumerate(step.loads):
            assert load is not None
            self._finish_load(step, number, load)
            if number < first_wanted:
                self._engine.cancel(load)
                step.loads[number] = None
                self._under_way -= 1
        if len(step.batch.clips) == 0 and self._maker.has_clips(step.batch.step):
            raise TooManyFailuresError(
                f"Step {step.batch.step} has no clip left that can be read.\n{self.report.format_table()}"
            )
        step.is_read = True

    def _finish_load(self, step: _Step, number: int, load: Load) -> None:
        """Wait for a micro-batch. Where clips fail, the step is planned again without them."""
        tried = len(load.files) - load.files.count(None)
        self._engine.finish(load)
        while load.failures:
            failures = sorted(load.failures.items())
            self._note_tried(tried, len(failures))
            rows = len(step.batch.micro_batches[number].clips)
            for row, failure in failures:
                # With a clip its prompt is replaced too, whatever is wrong with it.
                if row - rows not in load.failures:
                    self._note_failure(step.batch, number, row, failure)
            step.batch = self._maker.plan_step(step.batch.step, self.journal)
            files = self._maker.list_files(step.batch.micro_batches[number])
            for row, file in enumerate(files):
                # A clip that is replaced takes its prompt with it.
                if file != load.files[row]:
                    self._engine.retry(load, row, file)
            tried = len(load.pending)
            self._engine.finish(load)
        self._note_tried(tried, 0)

    def _note_failure(self, batch: GlobalBatch, number: int, row: int, failure: LoadFailure) -> str:
        """The name of the clip of a row of a load, which is replaced; where one fails that was only to be heard as a prompt, the
        row's own clip is heard instead."""
        micro_batch = batch.micro_batches[number]
        rows = len(micro_batch.clips)
        place, clip = micro_batch.first_row + row % rows, int(micro_batch.clips[row % rows])
        prompt = clip if row < rows or micro_batch.prompts is None else int(micro_batch.prompts[row - rows])
        name, detail = self._maker.corpus.audio[prompt], failure.detail.removesuffix(".")
        if prompt == clip:
            self.journal.record(Failure(batch.step, place, clip))
            self.report.replaced.append(Drop(failure.reason, name, f"step {batch.step}, row {place}", failure.detail))
            _log.warning("%s (step %d) is replaced by another clip: %s, %s.", name, batch.step, failure.reason, detail)
        else:
            self.journal.record(Failure(batch.step, name_prompt(place), prompt))
            _log.warning("%s (step %d) is not used as a prompt: %s, %s.", name, batch.step, failure.reason, detail)
        return name

    def _note_tried(self, tried: int, failed: int) -> None:
        self._recent.extend([False] * (tried - failed) + [True] * failed)
        bad = sum(self._recent) if failed else 0
        if bad > RECENT_CLIPS * MOST_FAILED_SHARE:
            raise TooManyFailuresError(
                f"Of the last {len(self._recent)} clips {bad} could not be read, though the scan found nothing wrong with "
                f"them. Is the disk still there? If the corpus was changed, start again: the run goes on after a new scan.\n"
                f"{self.report.format_table()}"
            )

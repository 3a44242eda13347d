"""A batch of the plan as arrays in host memory, read ahead by its number."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.augment import Slices
from myxtts.config import DataConfig
from myxtts.data.buckets import Bucket
from myxtts.data.corpus import Corpus
from myxtts.data.drops import Drop, DropReport
from myxtts.data.loaders import (
    ClipFile,
    Load,
    LoadFailure,
    LoadingEngine,
    choose_read_ahead,
    find_clip_file,
    open_engine,
)
from myxtts.data.run_data import RunData
from myxtts.data.sampler import (
    EMPTY_ROW,
    WHOLE,
    Failure,
    GlobalBatch,
    IndexSampler,
    Kind,
    MicroBatch,
    Place,
    Position,
    PromptSharing,
    ReplacementJournal,
    RowShare,
    RunOrder,
    SharedPrompts,
    SpeakerPrompts,
    choose_prompt_slices,
    follow_position,
    replace_failed,
)
from myxtts.errors import DropReason, ReadingError
from myxtts.units import SAMPLES_PER_CODE

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class HostBatch:
    """One micro-batch, or some rows of it. A pure function of its position and of the clips that failed there.

    Arrays may be views of memory that is used again once nobody refers to them; never write to them.
    """

    position: Position
    epoch: int
    bucket_number: int
    first_row: int
    """Its first row's number in the global batch."""
    micro_batches: int
    """Of its global batch."""
    step_clips: NDArray[np.int32]
    """The clips of its whole global batch, or of the share of it that is read, those that failed replaced."""
    clips_B: NDArray[np.int32]
    """Clip numbers; `EMPTY_ROW` where there is none: such a row is all zeros."""
    weights_B: NDArray[np.float32]
    """What a row counts in the losses: 1, or 0 where there is no clip."""
    wav_BS: NDArray[np.float32]
    """Samples at 22.05 kHz, zeros behind each clip's own."""
    wav_lengths_B: NDArray[np.int32]
    text_BL: NDArray[np.int32]
    """Token ids with the language tag, without start and stop; zeros behind each text's own."""
    text_lengths_B: NDArray[np.int32]
    slice_starts_B: NDArray[np.int32]
    """First sample of each conditioning slice, counted in the clip it is cut from."""
    slice_lengths_B: NDArray[np.int32]
    prompt_BS: NDArray[np.float32] | None = None
    """The clips that the slices are cut from; None where each is cut from its own. Where rows share prompts, these."""
    prompts_P: NDArray[np.int32] | None = None
    """The clips of shared prompts."""
    voices_B: NDArray[np.int32] | None = None
    """Which of them each row hears."""
    replaced: tuple[Failure, ...] = ()
    """Clips and prompts of its rows that failed."""

    @property
    def rows(self) -> int:
        return len(self.clips_B)


@dataclass(eq=False)
class CorpusBatches:
    """The batches of one corpus: what each needs, and from that the batch."""

    corpus: Corpus
    sampler: IndexSampler
    _: KW_ONLY
    for_validation: bool = False
    """Conditioning slices are fixed instead of drawn anew in each epoch."""
    static_shapes: bool = True
    """Batches have their bucket's shape; else they are as long as their longest clip and text need."""
    prompts_from_speaker: bool = False
    """Conditioning slices are cut from other clips of the same speaker."""
    sharing: PromptSharing | None = None
    """All rows of a speaker hear the beginning of one clip."""
    share: RowShare = WHOLE
    """The rows that are made."""
    is_known: Callable[[int], bool] = lambda clip: False
    """Whether nobody needs the samples of a clip any more: its row may be zeros."""

    def __post_init__(self) -> None:
        assert len(self.corpus) == len(self.sampler.plan.bucket_of_clip), "two views of one corpus"
        self._prompts: SpeakerPrompts | None = None
        if self.prompts_from_speaker:
            seed, is_fixed = self.sampler.seed, self.for_validation
            self._prompts = SpeakerPrompts(self.corpus.speaker, seed=seed, is_fixed=is_fixed)
        self._shared: SharedPrompts | None = None
        if self.sharing is not None:
            self._shared = SharedPrompts(self.corpus, seed=self.sampler.seed, voices=self.sharing.voices)

    def plan_step(self, step: int, journal: ReplacementJournal) -> GlobalBatch:
        """The clips of a global batch and of its prompts, those that failed replaced; of all its rows those of the share."""
        # Cut last: which clip stands in for another one depends on the whole batch.
        whole = replace_failed(self.sampler.make_batch(step), self.sampler, journal)
        batch = self.share.cut(whole)
        if self._shared is not None:
            taken, failed = set(whole.clips.tolist()), {failure.clip for failure in journal.list_step(step)}
            shared = [
                self._shared.choose(step, number, each.clips, taken, failed)
                for number, each in enumerate(batch.micro_batches)
            ]
            heard = zip(batch.micro_batches, shared, strict=True)
            return replace(batch, micro_batches=tuple(replace(each, prompts=p, voices=v) for each, (p, v) in heard))
        if self._prompts is None:
            return batch

        def hear(micro_batch: MicroBatch, prompts: SpeakerPrompts) -> MicroBatch:
            chosen = prompts.choose(batch.epoch, np.maximum(micro_batch.clips, 0))
            return replace(micro_batch, prompts=np.where(micro_batch.clips == EMPTY_ROW, EMPTY_ROW, chosen))

        return replace(batch, micro_batches=tuple(hear(each, self._prompts) for each in batch.micro_batches))

    def has_clips(self, step: int) -> bool:
        """Whether there is anything to read for a global batch, before any of it fails: few rows may leave a share empty."""
        return len(self.share.cut(self.sampler.make_batch(step)).clips) > 0

    def list_files(self, micro_batch: MicroBatch) -> list[ClipFile | None]:
        """What must be loaded for a micro-batch, by row: its clips, and behind them those its prompts are cut from, if these
        are others."""
        prompts = [] if micro_batch.prompts is None else micro_batch.prompts.tolist()
        kept = self.sharing.kept if self.sharing else ()
        clips = [EMPTY_ROW if self.is_known(clip) else clip for clip in micro_batch.clips.tolist()]
        clips += [EMPTY_ROW if clip in kept else clip for clip in prompts]
        return [None if clip == EMPTY_ROW else find_clip_file(self.corpus, clip) for clip in clips]

    def measure_width(self, bucket: Bucket) -> int:
        """Samples of the rows that are loaded for a batch of this shape."""
        return bucket.samples if self.sharing is None else max(bucket.samples, self.sharing.samples)

    def make_batch(self, batch: GlobalBatch, position: Position, wav_BS: NDArray[np.float32]) -> HostBatch:
        """The host batch of a micro-batch whose files (`list_files`) were loaded in rows of its bucket's width."""
        micro_batch = batch.micro_batches[position.micro_batch]
        clips, is_clip = micro_batch.clips, micro_batch.clips != EMPTY_ROW
        prompts = clips if micro_batch.prompts is None else micro_batch.prompts
        wav_lengths, text_lengths = (
            np.where(is_clip, lengths[clips], 0).astype(np.int32)
            for lengths in (self.corpus.samples, self.corpus.tokens)
        )
        tokens, samples = micro_batch.bucket.tokens, micro_batch.bucket.samples
        if not self.static_shapes:
            tokens = max(1, int(text_lengths.max()))
            samples = max(1, -(-int(wav_lengths.max()) // SAMPLES_PER_CODE)) * SAMPLES_PER_CODE
        slices, heard = Slices(np.zeros(len(clips), np.int32), np.zeros(len(clips), np.int32)), samples
        if self.sharing is not None:
            heard = self.sharing.samples
        else:
            slices = choose_prompt_slices(
                self.corpus,
                np.maximum(clips, 0),
                np.maximum(prompts, 0),
                seed=self.sampler.seed,
                epoch=batch.epoch,
                for_validation=self.for_validation,
            )
        return HostBatch(
            position=position,
            epoch=batch.epoch,
            bucket_number=micro_batch.bucket_number,
            first_row=micro_batch.first_row,
            micro_batches=len(batch.micro_batches),
            step_clips=batch.clips,
            clips_B=clips,
            weights_B=is_clip.astype(np.float32),
            wav_BS=np.ascontiguousarray(wav_BS[: len(clips), :samples]),
            wav_lengths_B=wav_lengths,
            text_BL=self.corpus.ids.pad(clips, tokens),
            text_lengths_B=text_lengths,
            slice_starts_B=np.where(is_clip, slices.starts, 0),
            slice_lengths_B=np.where(is_clip, slices.lengths, 0),
            prompt_BS=None if micro_batch.prompts is None else np.ascontiguousarray(wav_BS[len(clips) :, :heard]),
            prompts_P=None if micro_batch.voices is None else micro_batch.prompts,
            voices_B=micro_batch.voices,
        )


RECENT_CLIPS = 200
MOST_FAILED_SHARE = 0.2
"""Of the recent clips. Beyond it the disk is gone or the corpus was changed: no training is better than on what is left."""


@dataclass(eq=False)
class _Step:
    """A global batch whose clips are being loaded."""

    batch: GlobalBatch
    loads: list[Load | None] = field(default_factory=list)
    """By micro-batch, as far as begun; None once given out."""
    is_planned_anew: bool = False
    """Clips failed: what was loaded may not be what is planned now."""
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
        batches: CorpusBatches,
        engine: LoadingEngine,
        *,
        depth: int,
        report: DropReport,
        journal: ReplacementJournal | None = None,
        end_step: int | None = None,
    ):
        assert depth >= batches.sampler.accumulation, "a global batch is read as a whole"
        self.report = report
        self.journal = journal if journal is not None else ReplacementJournal()
        self._batches = batches
        self._engine = engine
        self._depth = depth
        self._end_step = end_step
        self._steps: deque[_Step] = deque()
        self._given = 0
        """Of the first step under way, the micro-batches that were given out."""
        self._ahead: Position | None = Position(0)
        """What is loaded next; None where that is not known yet."""
        self._upcoming: Sequence[int] | None = None
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
        batch = self._batches.make_batch(step.batch, position, wav)
        rows = range(batch.first_row, batch.first_row + batch.rows)
        failures = self.journal.list_step(position.step)
        batch = replace(batch, replaced=tuple(failure for failure in failures if failure.row in rows))
        self._given += 1
        if self._given == len(step.batch.micro_batches):
            self._steps.popleft()
            self._given = 0
        # Now rather than at the next call: readers shall work while the caller does.
        self._start_loads()
        return batch

    def read_ahead(self, position: Position) -> None:
        """Begin to load what will be read at a place soon, while something else is being done."""
        is_next = bool(self._steps) and (self._steps[0].batch.step, self._given) == position
        if not is_next:
            self.stop()
            self._given = position.micro_batch
            # From the step's beginning: all its clips are read together.
            self._ahead = Position(position.step)
        self._start_loads(needed_step=position.step)

    def expect(self, steps: Sequence[int]) -> None:
        """Says which steps will be asked for, in order, for one who is not asked for all of them. From now on no others are read
        ahead."""
        self._upcoming = steps
        if self._steps:
            last = self._steps[-1]
            self._ahead = self._follow(Position(last.batch.step, len(last.loads) - 1))

    def replace_batch(self, position: Position, detail: str) -> list[str]:
        """Use the clips of a place no more there, and return their names: whoever is behind the reader dies of one of them."""
        batch = self._batches.plan_step(position.step, self.journal)
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

    def _start_loads(self, needed_step: int | None = None) -> None:
        """Begin loads as far ahead as allowed: up to the end, or beyond it for the step that is asked for."""
        while (
            self._ahead is not None
            and self._under_way < self._depth
            and (self._end_step is None or self._ahead.step < self._end_step or self._ahead.step == needed_step)
        ):
            position = self._ahead
            if not self._steps or self._steps[-1].batch.step != position.step:
                self._steps.append(_Step(self._batches.plan_step(position.step, self.journal)))
            step = self._steps[-1]
            micro_batch = step.batch.micro_batches[position.micro_batch]
            files = self._batches.list_files(micro_batch)
            step.loads.append(self._engine.start(files, self._batches.measure_width(micro_batch.bucket)))
            self._under_way += 1
            self._ahead = self._follow(position)

    def _follow(self, position: Position) -> Position | None:
        after = follow_position(self._batches.sampler, position)
        if self._upcoming is None or after.step == position.step:
            return after
        return next((Position(step) for step in self._upcoming if step > position.step), None)

    def _finish_step(self, step: _Step, first_wanted: int) -> None:
        """Wait for a global batch, replacing what fails. Micro-batches before the wanted one are dropped."""
        planned: GlobalBatch | None = None
        while planned is not step.batch:
            # What stands in for a clip may change the prompts of any micro-batch: until nothing changes any more.
            is_first, planned = planned is None, step.batch
            for number, load in enumerate(step.loads):
                assert load is not None
                tried = len(load.files) - load.files.count(None) if is_first else 0
                self._finish_load(step, number, load, tried)
        for number, load in enumerate(step.loads[:first_wanted]):
            assert load is not None
            self._engine.cancel(load)
            step.loads[number] = None
            self._under_way -= 1
        if len(step.batch.clips) == 0 and self._batches.has_clips(step.batch.step):
            raise ReadingError(
                f"Step {step.batch.step} has no clip left that can be read.\n{self.report.format_table()}"
            )
        step.is_read = True

    def _finish_load(self, step: _Step, number: int, load: Load, tried: int) -> None:
        """Wait for a micro-batch of so many files. Where clips fail, the step is planned again without them."""
        self._engine.finish(load)
        if step.is_planned_anew:
            tried += self._load_again(step, number, load)
        while load.failures:
            self._note_tried(tried, len(load.failures))
            micro_batch = step.batch.micro_batches[number]
            for row, failure in sorted(load.failures.items()):
                # With a clip its own prompt is replaced too, whatever is wrong with it.
                if micro_batch.voices is not None or row - len(micro_batch.clips) not in load.failures:
                    self._note_failure(step.batch, number, row, failure)
            step.batch = self._batches.plan_step(step.batch.step, self.journal)
            step.is_planned_anew = True
            tried = self._load_again(step, number, load, tuple(load.failures))
        self._note_tried(tried, 0)

    def _load_again(self, step: _Step, number: int, load: Load, failed: Sequence[int] = ()) -> int:
        """Load what is planned for a micro-batch now where that is another file, or one that failed; how many were loaded."""
        files = self._batches.list_files(step.batch.micro_batches[number])
        for row, file in enumerate(files):
            if file != load.files[row] or row in failed:
                self._engine.retry(load, row, file)
        tried = len(load.pending)
        self._engine.finish(load)
        return tried

    def _note_failure(self, batch: GlobalBatch, number: int, row: int, failure: LoadFailure) -> str:
        """The name of the clip in a row of a load, which is replaced; so is one that was to hear it as its prompt."""
        micro_batch = batch.micro_batches[number]
        rows, own = len(micro_batch.clips), row
        clip = blamed = micro_batch.clips[row % rows]
        if row >= rows:
            assert micro_batch.prompts is not None
            clip = micro_batch.prompts[row - rows]
            own = row - rows
            if micro_batch.voices is not None:
                # Of all rows that were to hear it, the first stands for them: they get another one to hear.
                own, blamed = int(np.flatnonzero(micro_batch.voices == own)[0]), clip
        place = micro_batch.first_row + own
        name, where = self._batches.corpus.audio[int(clip)], f"step {batch.step}, row {place}"
        self.journal.record(Failure(batch.step, place, int(blamed)))
        self.report.replaced.append(Drop(failure.reason, name, where, failure.detail))
        detail = failure.detail.removesuffix(".")
        _log.warning("%s (step %d) is replaced by another clip: %s, %s.", name, batch.step, failure.reason, detail)
        return name

    def _note_tried(self, tried: int, failed: int) -> None:
        self._recent.extend([False] * (tried - failed) + [True] * failed)
        bad = sum(self._recent) if failed else 0
        if bad > RECENT_CLIPS * MOST_FAILED_SHARE:
            raise ReadingError(
                f"Of the last {len(self._recent)} clips {bad} could not be read, though the scan found nothing wrong with "
                f"them. Is the disk still there? If the corpus was changed, start again: the run goes on after a new scan.\n"
                f"{self.report.format_table()}"
            )


VALIDATION_DEPTH = 4
"""Validation batches read ahead. A round is short, and what was read ahead of training waits meanwhile."""


class HostSource:
    """Reads the batch of any number; numbers asked for in order are read ahead. For one thread at a time."""

    def __init__(
        self,
        data: RunData,
        order: RunOrder,
        config: DataConfig,
        failures: Iterable[Failure] = (),
        *,
        reads_prompts: bool = False,
        sharing: PromptSharing | None = None,
        share: RowShare = WHOLE,
    ):
        self._order = order
        is_validated = data.validation_sampler is not None and order.validation_batches
        kinds = (Kind.TRAIN, Kind.VALIDATION) if is_validated else (Kind.TRAIN,)
        batches = {kind: find_batches(data, kind, config, reads_prompts, sharing, share) for kind in kinds}
        self._batches = batches
        ahead = choose_read_ahead(
            config,
            [each.sampler.plan for each in batches.values()],
            accumulation=data.sampler.accumulation,
            clips_per_row=2 if reads_prompts else 1,
            least_samples=sharing.samples if sharing else 0,
        )
        total = ahead._replace(depth=ahead.depth + (VALIDATION_DEPTH if is_validated else 0))
        self._engine = open_engine(config, [each.corpus for each in batches.values()], total, batches=ahead)
        self._readers = {
            kind: BatchReader(
                each,
                self._engine,
                depth=ahead.depth if kind is Kind.TRAIN else VALIDATION_DEPTH,
                report=data.report,
                journal=ReplacementJournal(failures if kind is Kind.TRAIN else ()),
                end_step=order.end_step if kind is Kind.TRAIN else order.validation_batches,
            )
            for kind, each in batches.items()
        }

    def read(self, number: int, upcoming: Sequence[int] | None = None) -> tuple[Place, HostBatch]:
        """The batch with a number of the stream, and what that number stands for.

        Args:
            upcoming: the numbers that will be read after it, in order; by default all that follow.
        """
        place = self._order.find_place(number)
        if upcoming is None:
            after = [self._order.find_place(number + 1)] if number + 1 < self._order.end_number else []
        else:
            after = [self._order.find_place(each) for each in upcoming]
            for kind, reader in self._readers.items():
                reader.expect([each.position.step for each in after if each.kind is kind])
        host = self._readers[place.kind].read(place.position)
        other = next((each for each in after if each.kind is not place.kind), None)
        if other is not None:
            # Begin with a round while the batch before it is still being prepared.
            self._readers[other.kind].read_ahead(other.position)
        return place, host

    def skip(self, kind: Kind, is_known: Callable[[int], bool]) -> None:
        """Reads no clips of which `is_known` says that their samples are not needed, from then on and for ever."""
        if kind in self._batches:
            self._batches[kind].is_known = is_known

    def replace_batch(self, number: int, detail: str) -> list[str]:
        place = self._order.find_place(number)
        return self._readers[place.kind].replace_batch(place.position, detail)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.stop()
        self._engine.close()


def find_batches(
    data: RunData,
    kind: Kind,
    config: DataConfig,
    reads_prompts: bool = False,
    sharing: PromptSharing | None = None,
    share: RowShare = WHOLE,
) -> CorpusBatches:
    """The batches of a kind in a run. Those of validation only where there are clips to validate with."""
    corpus, sampler = (data.train, data.sampler) if kind is Kind.TRAIN else (data.validation, data.validation_sampler)
    assert sampler is not None
    # The few clips of a validation would hear themselves. Each has a prompt of its own, whatever training does.
    sharing = sharing if kind is Kind.TRAIN else None
    return CorpusBatches(
        corpus,
        sampler,
        for_validation=kind is Kind.VALIDATION,
        static_shapes=config.pad_to_fixed_length,
        prompts_from_speaker=reads_prompts and sharing is None,
        sharing=sharing,
        share=share,
    )

"""From a place in the run to a host batch, apart from the samples: all of it pure functions of the place.

Shapes: B rows, S samples, L text tokens.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.slices import Slices
from myxtts.audio.units import SAMPLES_PER_CODE
from myxtts.data.clip_loading import ClipFile, find_clip_file
from myxtts.data.corpus import Corpus
from myxtts.data.host_batch import HostBatch
from myxtts.data.positions import Position
from myxtts.data.prompts import SpeakerPrompts, choose_prompt_slices
from myxtts.data.replacements import ReplacementJournal, name_prompt, replace_failed
from myxtts.data.sampler import EMPTY_ROW, WHOLE, GlobalBatch, IndexSampler, MicroBatch, RowShare
from myxtts.data.text_ids import TextIds


@dataclass(eq=False)
class BatchMaker:
    """Makes the batches of one corpus."""

    corpus: Corpus
    ids: TextIds
    sampler: IndexSampler
    _: KW_ONLY
    for_validation: bool = False
    """Conditioning slices are fixed instead of drawn anew in each epoch."""
    static_shapes: bool = True
    """Batches have their bucket's shape; else they are as long as their longest clip and text need."""
    prompts_from_speaker: bool = False
    """Conditioning slices are cut from other clips of the same speaker."""
    share: RowShare = WHOLE
    """The rows that are made."""

    def __post_init__(self) -> None:
        assert len(self.corpus) == len(self.ids) == len(self.sampler.plan.bucket_of_clip), "three views of one corpus"
        self._prompts: SpeakerPrompts | None = None
        if self.prompts_from_speaker:
            seed, is_fixed = self.sampler.seed, self.for_validation
            self._prompts = SpeakerPrompts(self.corpus.speaker, seed=seed, is_fixed=is_fixed)

    def plan_step(self, step: int, journal: ReplacementJournal) -> GlobalBatch:
        """The clips of a global batch and of its prompts, those that failed replaced; of all its rows those of the share."""
        # Cut last: which clip stands in for another one depends on the whole batch.
        batch = self.share.cut(replace_failed(self.sampler.make_batch(step), self.sampler, journal))
        if self._prompts is None:
            return batch
        heard = tuple(self._choose_prompts(batch, each, journal) for each in batch.micro_batches)
        return replace(batch, micro_batches=heard)

    def has_clips(self, step: int) -> bool:
        """Whether there is anything to read for a global batch, before any of it fails: few rows may leave a share empty."""
        return len(self.share.cut(self.sampler.make_batch(step)).clips) > 0

    def list_files(self, micro_batch: MicroBatch) -> list[ClipFile | None]:
        """What must be loaded for a micro-batch, by row: its clips, and behind them those its prompts are cut from, if these
        are others."""
        prompts = [] if micro_batch.prompts is None else micro_batch.prompts.tolist()
        clips = [*micro_batch.clips.tolist(), *prompts]
        return [None if clip == EMPTY_ROW else find_clip_file(self.corpus, clip) for clip in clips]

    def make_batch(self, batch: GlobalBatch, position: Position, wav_BS: NDArray[np.float32]) -> HostBatch:
        """The host batch of a micro-batch whose files (`list_files`) were loaded in its bucket's shape."""
        micro_batch = batch.micro_batches[position.micro_batch]
        clips = micro_batch.clips
        wav_lengths, text_lengths = (
            np.where(clips == EMPTY_ROW, 0, lengths[clips]).astype(np.int32)
            for lengths in (self.corpus.samples, self.corpus.tokens)
        )
        tokens = micro_batch.bucket.tokens
        if not self.static_shapes:
            tokens = max(1, int(text_lengths.max()))
            codes = max(1, -(-int(wav_lengths.max()) // SAMPLES_PER_CODE))
            wav_BS = np.ascontiguousarray(wav_BS[:, : codes * SAMPLES_PER_CODE])
        rows = len(clips)
        slices = self._slice_rows(batch.epoch, micro_batch)
        return HostBatch(
            position=position,
            epoch=batch.epoch,
            bucket_number=micro_batch.bucket_number,
            first_row=micro_batch.first_row,
            clips_B=clips,
            weights_B=(clips != EMPTY_ROW).astype(np.float32),
            wav_BS=wav_BS[:rows],
            wav_lengths_B=wav_lengths,
            text_BL=self.ids.pad(clips, tokens),
            text_lengths_B=text_lengths,
            slice_starts_B=slices.starts,
            slice_lengths_B=slices.lengths,
            prompt_BS=None if micro_batch.prompts is None else wav_BS[rows:],
        )

    def _slice_rows(self, epoch: int, micro_batch: MicroBatch) -> Slices:
        is_clip = micro_batch.clips != EMPTY_ROW
        prompts = micro_batch.clips if micro_batch.prompts is None else micro_batch.prompts
        slices = choose_prompt_slices(
            self.corpus,
            np.maximum(micro_batch.clips, 0),
            np.maximum(prompts, 0),
            seed=self.sampler.seed,
            epoch=epoch,
            for_validation=self.for_validation,
        )
        return Slices(np.where(is_clip, slices.starts, 0), np.where(is_clip, slices.lengths, 0))

    def _choose_prompts(self, batch: GlobalBatch, micro_batch: MicroBatch, journal: ReplacementJournal) -> MicroBatch:
        """A micro-batch with its prompts. Where one has failed, a clip hears itself."""
        assert self._prompts is not None
        clips = micro_batch.clips
        chosen = self._prompts.choose(batch.epoch, np.maximum(clips, 0)).tolist()
        for offset, prompt in enumerate(chosen):
            if prompt in journal.find_failed(batch.step, name_prompt(micro_batch.first_row + offset)):
                chosen[offset] = int(clips[offset])
        return replace(micro_batch, prompts=np.where(clips == EMPTY_ROW, EMPTY_ROW, chosen).astype(np.int32))

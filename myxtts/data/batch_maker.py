"""From a place in the run to a host batch, apart from the samples: all of it pure functions of the place.

Shapes: B rows, S samples, L text tokens.
"""

from __future__ import annotations

from dataclasses import replace

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


class BatchMaker:
    """Makes the batches of one corpus.

    Args:
        corpus: the clips the sampler draws from.
        ids: their texts.
        for_validation: conditioning slices are fixed instead of drawn anew in each epoch.
        static_shapes: batches have their bucket's shape; else they are as long as their longest clip and text need.
        prompts_from_speaker: conditioning slices are cut from other clips of the same speaker.
        share: the rows that are made.
    """

    def __init__(
        self,
        corpus: Corpus,
        ids: TextIds,
        sampler: IndexSampler,
        *,
        for_validation: bool = False,
        static_shapes: bool = True,
        prompts_from_speaker: bool = False,
        share: RowShare = WHOLE,
    ):
        assert len(corpus) == len(ids) == len(sampler.plan.bucket_of_clip), "three views of one corpus"
        self.sampler = sampler
        self._corpus = corpus
        self._share = share
        self._ids = ids
        self._for_validation = for_validation
        self._static_shapes = static_shapes
        self._prompts = (
            SpeakerPrompts(corpus.speaker, seed=sampler.seed, is_fixed=for_validation) if prompts_from_speaker else None
        )

    def plan_step(self, step: int, journal: ReplacementJournal) -> GlobalBatch:
        """The clips of a global batch and of its prompts, those that failed replaced; of all its rows those of the share."""
        # Cut last: which clip stands in for another one depends on the whole batch.
        batch = self._share.cut(replace_failed(self.sampler.make_batch(step), self.sampler, journal))
        if self._prompts is None:
            return batch
        heard = tuple(self._choose_prompts(batch, each, journal) for each in batch.micro_batches)
        return replace(batch, micro_batches=heard)

    def has_clips(self, step: int) -> bool:
        """Whether there is anything to read for a global batch, before any of it fails: few rows may leave a share empty."""
        return len(self._share.cut(self.sampler.make_batch(step)).clips) > 0

    def describe_clip(self, clip: int) -> str:
        """A clip's file, as reports name it."""
        return self._corpus.audio[clip]

    def find_file(self, clip: int) -> ClipFile | None:
        """What must be loaded for a clip number; None for an empty row."""
        if clip == EMPTY_ROW:
            return None
        return find_clip_file(self._corpus, clip)

    def list_files(self, micro_batch: MicroBatch) -> list[ClipFile | None]:
        """What must be loaded for a micro-batch, by row: its clips, and behind them those its prompts are cut from, if these
        are others."""
        prompts = [] if micro_batch.prompts is None else micro_batch.prompts.tolist()
        return [self.find_file(clip) for clip in [*micro_batch.clips.tolist(), *prompts]]

    def make_batch(self, batch: GlobalBatch, position: Position, wav_BS: NDArray[np.float32]) -> HostBatch:
        """The host batch of a micro-batch whose files (`list_files`) were loaded in its bucket's shape."""
        micro_batch = batch.micro_batches[position.micro_batch]
        clips = micro_batch.clips
        wav_lengths = self._measure(self._corpus.samples, clips)
        text_lengths = self._measure(self._corpus.tokens, clips)
        tokens = micro_batch.bucket.tokens
        if not self._static_shapes:
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
            micro_batches=len(batch.micro_batches),
            step_clips=batch.clips,
            clips_B=clips,
            weights_B=(clips != EMPTY_ROW).astype(np.float32),
            wav_BS=wav_BS[:rows],
            wav_lengths_B=wav_lengths,
            text_BL=self._ids.pad(clips, tokens),
            text_lengths_B=text_lengths,
            slice_starts_B=slices.starts,
            slice_lengths_B=slices.lengths,
            prompt_BS=None if micro_batch.prompts is None else wav_BS[rows:],
        )

    def _measure(self, lengths_N: NDArray[np.integer], clips: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.where(clips == EMPTY_ROW, 0, lengths_N[clips]).astype(np.int32)

    def _slice_rows(self, epoch: int, micro_batch: MicroBatch) -> Slices:
        is_clip = micro_batch.clips != EMPTY_ROW
        prompts = micro_batch.clips if micro_batch.prompts is None else micro_batch.prompts
        slices = self._choose_slices(epoch, np.maximum(micro_batch.clips, 0), np.maximum(prompts, 0))
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

    def _choose_slices(self, epoch: int, clips: NDArray[np.int32], prompts: NDArray[np.int32]) -> Slices:
        seed, for_validation = self.sampler.seed, self._for_validation
        return choose_prompt_slices(self._corpus, clips, prompts, seed=seed, epoch=epoch, for_validation=for_validation)

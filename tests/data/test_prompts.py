"""Voice prompts are cut from other clips of the same speaker."""

import copy
import re

import numpy as np
import pytest

from myxtts.audio.reading import read_clip
from myxtts.data.corpus import NameColumn
from myxtts.data.sampler import EMPTY_ROW, ReplacementJournal, SpeakerPrompts
from tests.data.reading import freeze_all, make_sampler, open_reader, read_steps, scan_small
from tests.data.shared import write_clips, write_metadata

pytestmark = pytest.mark.usefixtures("leaves_nothing")

SPEAKERS = NameColumn(("ann", "bob", "eve"), np.array([0, 1, 0, 1, 0, 2, 0], np.int32))
ALL = np.arange(7, dtype=np.int32)


def test_a_prompt_is_another_clip_of_the_speaker():
    prompts = SpeakerPrompts(SPEAKERS, seed=1)
    chosen = np.stack([prompts.choose(epoch, ALL) for epoch in range(60)])
    assert (SPEAKERS.codes[chosen] == SPEAKERS.codes).all()
    assert (chosen[:, 5] == 5).all(), "who has no other clip hears this one"
    assert (np.delete(chosen, 5, 1) != np.delete(ALL, 5)).all()
    assert set(chosen[:, 0].tolist()) == {2, 4, 6}, "each of the others gets its turn"
    some = np.array([6, 0], np.int32)
    assert prompts.choose(3, some).tolist() == chosen[3][some].tolist()
    assert SpeakerPrompts(SPEAKERS, seed=2).choose(3, ALL).tolist() != chosen[3].tolist()


def test_validation_always_hears_the_same():
    prompts = SpeakerPrompts(SPEAKERS, seed=1, is_fixed=True)
    assert prompts.choose(0, ALL).tolist() == prompts.choose(9, ALL).tolist() == [2, 3, 4, 1, 6, 5, 0]


@pytest.mark.parametrize("kind", ["here", "2 workers", "tensorflow"])
def test_batches_hold_the_clips_that_prompts_are_cut_from(lj, kind):
    sampler = make_sampler(lj)
    prompts = SpeakerPrompts(lj.speaker, seed=sampler.seed)
    rows = 0
    with open_reader(lj, kind, prompts_from_speaker=True) as reader:
        for batch in read_steps(reader, 0, sampler.steps_per_epoch):
            assert batch.prompt_BS.shape == batch.wav_BS.shape
            for row, clip in enumerate(batch.clips_B.tolist()):
                if clip == EMPTY_ROW:
                    assert not batch.prompt_BS[row].any()
                    continue
                rows += 1
                other = int(prompts.choose(batch.epoch, np.array([clip], np.int32))[0])
                end = batch.slice_starts_B[row] + batch.slice_lengths_B[row]
                assert 0 < end <= min(lj.samples[[clip, other]])
                heard = read_clip(lj.find_file(other))[:end]
                np.testing.assert_array_equal(batch.prompt_BS[row, :end], heard)
    assert rows == len(lj)


@pytest.mark.parametrize("kind", ["here", "2 workers", "tensorflow"])
def test_a_row_whose_prompt_cannot_be_read_is_replaced_and_again_in_a_resumed_run(kind, tmp_path, caplog):
    corpus = tmp_path / "corpus"
    write_clips(corpus, "abcdefgh")
    write_metadata(corpus, *(f"{name}|Word." for name in "abcdefgh"))
    texted = scan_small(corpus, tmp_path / "index")
    broken = corpus / "wavs" / "b.wav"
    hidden = broken.rename(tmp_path / "b.wav")
    sampler = make_sampler(texted, batch_size=2)
    with open_reader(texted, kind, sampler=sampler, prompts_from_speaker=True) as reader:
        batches = [copy.deepcopy(batch) for batch in read_steps(reader, 0, 8)]
        failures = reader.journal.list_failures()
    assert any(failure.clip != 1 for failure in failures), "clips that were to hear it"
    assert re.search(r"wavs/b\.wav \(step \d\) is replaced by another clip: missing", caplog.text)
    assert {drop.file for drop in reader.report.replaced} == {"wavs/b.wav"}
    for batch in batches:
        assert 1 not in batch.clips_B
        assert batch.prompt_BS[batch.weights_B > 0].any(axis=1).all()
    hidden.rename(broken)
    journal = ReplacementJournal(failures)
    with open_reader(texted, sampler=sampler, prompts_from_speaker=True, journal=journal) as reader:
        assert freeze_all(read_steps(reader, 0, 8)) == freeze_all(batches)

"""Voice prompts are cut from other clips of the same speaker."""

import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.audio.reading import read_clip
from myxtts.data.corpus import NameColumn
from myxtts.data.sampler import EMPTY_ROW, PromptSharing, ReplacementJournal, SharedPrompts, SpeakerPrompts
from tests.data.reading import freeze, freeze_all, make_sampler, open_reader, read_steps, scan_small
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


def test_the_rows_of_a_speaker_share_a_clip_that_is_none_of_them_and_another_one_in_every_batch():
    samples = np.array([5, 4, 9, 7, 2, 3, 6], np.int32)
    corpus = SimpleNamespace(speaker=SPEAKERS, samples=samples)
    prompts = SharedPrompts(corpus, seed=1, voices=3)
    clips = np.array([0, EMPTY_ROW, 5, 4, 1], np.int32)
    chosen = [prompts.choose(step, 0, clips, {0, 5, 4, 1}, ()) for step in range(40)]
    for heard, voices in chosen:
        assert (SPEAKERS.codes[heard[voices]] == SPEAKERS.codes[clips])[clips != EMPTY_ROW].all()
        assert heard.tolist()[1:] == [3, 5], "who has no other clip hears this one"
    assert {heard[0] for heard, _ in chosen} == {2, 6}
    assert [
        prompts.choose(7, 0, clips, {0}, {2, 6, 4})[0][0],
        prompts.choose(7, 0, clips, {0}, {0, 2, 4, 6})[0][0],
    ] == [0, -1]
    assert [heard.tolist() for heard, _ in chosen] != [
        prompts.choose(step, 1, clips, {0, 5, 4, 1}, ())[0].tolist() for step in range(40)
    ]
    alone = prompts.choose(7, 0, clips[2:3], {0, 5, 4, 1}, ())
    assert [each.tolist() for each in alone] == [[5], [0]], "as many as there are rows at most"


@pytest.mark.parametrize("kind", ["here", "2 workers", "tensorflow"])
def test_a_shared_prompt_that_cannot_be_read_is_another_one_and_again_in_a_resumed_run(kind, tmp_path, caplog):
    corpus = tmp_path / "corpus"
    write_clips(corpus, "abcdefgh")
    write_metadata(corpus, *(f"{name}|Word." for name in "abcdefgh"))
    texted = scan_small(corpus, tmp_path / "index")
    sampler, sharing = make_sampler(texted, batch_size=2), PromptSharing(1, 3000)
    with open_reader(texted, kind, sampler=sampler, sharing=sharing) as reader:
        whole = [copy.deepcopy(batch) for batch in read_steps(reader, 0, 8)]
    broken = int(whole[0].prompts_P[0])
    file = corpus / "wavs" / f"{'abcdefgh'[broken]}.wav"
    hidden = file.rename(tmp_path / file.name)
    with open_reader(texted, kind, sampler=sampler, sharing=sharing) as reader:
        batches = [copy.deepcopy(batch) for batch in read_steps(reader, 0, 8)]
        failures = reader.journal.list_failures()
    assert batches[0].clips_B.tolist() == whole[0].clips_B.tolist(), "who was to hear it hears another one"
    assert re.search(rf"wavs/{file.name} \(step \d\) is replaced by another clip: missing", caplog.text)
    for before, after in zip(whole, batches, strict=True):
        assert broken not in {*after.clips_B, *after.prompts_P}
        assert after.prompt_BS.shape == (1, 3000)
        heard = read_clip(texted.find_file(int(after.prompts_P[0])))[:3000]
        np.testing.assert_array_equal(after.prompt_BS[0, : len(heard)], heard)
        if broken not in {*before.clips_B, *before.prompts_P}:
            assert freeze(before)[:-1] == freeze(after)[:-1], "what does not need it is as it was"
    hidden.rename(file)
    with open_reader(texted, sampler=sampler, sharing=sharing, journal=ReplacementJournal(failures)) as reader:
        assert freeze_all(read_steps(reader, 0, 8)) == freeze_all(batches)


@pytest.mark.parametrize("kind", ["here", "2 workers", "tensorflow"])
def test_where_a_clip_gives_way_all_prompts_of_its_step_are_those_that_are_said(kind, tmp_path):
    names, corpus = "abcdefghijkl", tmp_path / "corpus"
    for index, name in enumerate(names):
        # All alike but for their lengths would be heard as each other.
        write_clips(corpus, name, seconds=0.5 + index / 100)
    write_metadata(corpus, *(f"{name}|Word." for name in names))
    texted = scan_small(corpus, tmp_path / "index")
    clips = {each: read_clip(texted.find_file(each)) for each in range(len(names))}
    sampler, sharing = make_sampler(texted, batch_size=2, accumulation=2), PromptSharing(1, 22050)
    for name in names[:4]:
        hidden = (corpus / "wavs" / f"{name}.wav").rename(tmp_path / "hidden.wav")
        with open_reader(texted, kind, sampler=sampler, sharing=sharing) as reader:
            for batch in read_steps(reader, 0, 9):
                heard = clips[int(batch.prompts_P[0])]
                np.testing.assert_array_equal(batch.prompt_BS[0, : len(heard)], heard)
                assert not batch.prompt_BS[0, len(heard) :].any()
        hidden.rename(corpus / "wavs" / f"{name}.wav")

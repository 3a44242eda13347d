import json
from pathlib import Path

import pytest

from myxtts.data.buckets import plan_buckets
from myxtts.data.corpus import Corpus
from myxtts.data.run_data import Fingerprint, load_failures, save_position, take_fingerprint
from myxtts.data.sampler import Failure, IndexSampler, ReplacementJournal, replace_failed
from myxtts.errors import CorpusError
from tests.data.reading import VOCABULARY
from tests.data.shared import make_clips
from tests.data.test_buckets import make_ljspeech_lengths
from tests.data.test_sampler import list_rows


def make_corpus(clips: int = 40, **changes) -> Corpus:
    samples, tokens = make_ljspeech_lengths(1000)
    texts = [f"text {i}" for i in range(clips)]
    texts[3] = changes.get("text", texts[3])
    names = [f"wavs/{i}.wav" for i in range(clips)]
    names[5] = changes.get("name", names[5])
    samples[7] += changes.get("more_samples", 0)
    return make_clips(
        Path(changes.get("root", "corpus")),
        names,
        text=texts,
        speaker=[changes.get("speaker", "a") if i % 2 else "b" for i in range(clips)],
        language=[changes.get("language", "en")] * clips,
        samples=samples[:clips],
        tokens=tokens[:clips],
    )


def make_run(
    *, seed: int = 1, accumulation: int = 2, batch_size: int = 4, **changes
) -> tuple[IndexSampler, Fingerprint]:
    validation, vocabulary = changes.pop("validation", {}), changes.pop("vocabulary", VOCABULARY)
    corpus = make_corpus(**changes)
    plan = plan_buckets(corpus.samples, corpus.tokens, batch_size=batch_size)
    sampler = IndexSampler(plan, seed=seed, accumulation=accumulation)
    return sampler, take_fingerprint(corpus, sampler, validation=make_corpus(9, **validation), vocabulary=vocabulary)


def save(step: int = 9, failures: tuple[Failure, ...] = ()) -> dict:
    sampler, fingerprint = make_run()
    return json.loads(json.dumps(save_position(step, ReplacementJournal(failures), fingerprint, sampler)))


def test_a_position_survives_being_saved():
    sampler, fingerprint = make_run()
    clip = int(sampler.make_batch(9).micro_batches[0].clips[0])
    ahead = Failure(step=9, row=0, clip=clip)
    state = save(9, (Failure(step=8, row=0, clip=1), ahead))
    journal = load_failures(state, fingerprint)
    assert (state["step"], state["seed"], state["epoch"]) == (9, 1, 9 // sampler.steps_per_epoch)
    # What was read ahead and replaced is replaced again; what lies behind is forgotten, so the state stays small.
    assert journal.list_failures() == [ahead]
    assert list_rows(replace_failed(sampler.make_batch(9), sampler, journal)) == list_rows(
        replace_failed(sampler.make_batch(9), sampler, ReplacementJournal([ahead]))
    )
    assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clips": 39}, "39 clips .* but there were 40"),
        ({"name": "wavs/other.wav"}, "renamed"),
        ({"more_samples": 4}, "other lengths"),
        ({"text": "another text"}, "texts in the metadata were changed"),
        ({"speaker": "b"}, "speakers or languages"),
        ({"language": "fa"}, "speakers or languages"),
        ({"seed": 2}, "the seed is 2, but was 1"),
        ({"accumulation": 3}, "--grad-accum is 3, but was 2"),
        ({"batch_size": 8}, "the batch size"),
        ({"validation": {"name": "wavs/other.wav"}}, "the validation clips"),
        ({"validation": {"more_samples": 1}}, "the validation clips"),
        ({"validation": {"text": "another text"}}, "the validation clips"),
        ({"validation": {"language": "fa"}}, "the validation clips"),
        ({"validation": {"speaker": "b"}}, "the speakers of the validation clips"),
        ({"vocabulary": Path(__file__)}, "the vocabulary has other tokens"),
    ],
)
def test_resuming_with_something_else_says_what_changed(changes, words):
    _, fingerprint = make_run(**changes)
    with pytest.raises(CorpusError, match=words) as caught:
        load_failures(save(), fingerprint)
    assert str(caught.value).count("\n  - ") == 1
    assert "--reset-training" in str(caught.value)


def test_a_corpus_may_be_moved():
    _, fingerprint = make_run(
        root="elsewhere",
        speaker="named after the new folder",
        validation={"root": "elsewhere", "speaker": "named after the new folder"},
    )
    assert load_failures(save(), fingerprint).list_failures() == []


def test_a_position_of_another_version_is_refused():
    _, fingerprint = make_run()
    with pytest.raises(CorpusError, match="version 99"):
        load_failures(save() | {"version": 99}, fingerprint)


def test_fingerprints_never_change_between_versions():
    _, found = make_run()
    known = ("381e23a64e627f19", "836282f7deb982e3", "3e52fceae7a3aaa8")
    assert (found.names, found.texts, found.speakers) == known

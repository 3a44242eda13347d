"""The figures of an evaluation: all together, as JSON, and in a sentence."""

import json

import pytest

from myxtts.evaluation.results import SCHEMA, SENTENCE, VERSION
from myxtts.evaluation.results_json import dump_evaluation
from myxtts.evaluation.verdict import judge_summary
from tests.evaluation.builders import COPY, ORIGINAL, SPOKEN, Failure, NotMeasured, make_evaluation, make_sentence

PERFECT = "the cat sat on the mat"
OTHER = "nobody knows why it rains"


def make_heard(spoken, copy=PERFECT, original=PERFECT):
    return {ORIGINAL: original, COPY: copy, SPOKEN: spoken}


def test_the_summary_adds_up_the_sentences():
    first = make_sentence(0, make_heard("the cat sat on a mat"))
    second = make_sentence(1, make_heard(OTHER, OTHER, OTHER), is_stopped=False, seconds_to_speak=5.0, correct_codes=10)
    failure = Failure("9.wav", SENTENCE, "silent")
    summary = make_evaluation([first, second], [failure, failure]).summary
    spoken = summary.kinds[SPOKEN]
    assert (spoken.words.errors, spoken.words.length) == (1, 11)
    assert summary.kinds[ORIGINAL].words.rate == 0
    assert spoken.mel_distance_db == pytest.approx(5.5)
    assert summary.kinds[ORIGINAL].mel_distance_db is None
    assert (spoken.likeness, spoken.other_likeness, spoken.own_nearest) == pytest.approx((0.9, 0.8, 0.5))
    assert summary.code_accuracy == pytest.approx(40 / 80)
    assert summary.real_time_factor == pytest.approx(6 / 4)
    assert summary.length_ratio == 1.0
    assert (summary.stop_failures, summary.sentences, summary.failed) == (1, 2, 1)
    assert summary.wrong_text_rate == pytest.approx(12 / 11, abs=0.1)


def test_what_nobody_measured_is_unknown_and_not_zero():
    sentence = make_sentence(0, {ORIGINAL: None, SPOKEN: None}, correct_codes=None, true_codes=None)
    summary = make_evaluation([sentence]).summary
    assert (summary.code_accuracy, summary.wrong_text_rate) == (None, None)
    assert summary.kinds[SPOKEN].words is None
    assert summary.kinds[COPY].sentences == 0
    dumped = dump_evaluation(make_evaluation([sentence]))
    assert dumped["summary"]["spoken"]["word_error_rate"] is None
    assert dumped["sentences"][0]["spoken"]["word_errors"] is None


def test_the_json_has_a_version_and_everything():
    gap = NotMeasured("Voices", "nobody asked.", "Ask.")
    evaluation = make_evaluation(
        [make_sentence(0, make_heard("the cat"))], [Failure("9.wav", SENTENCE, "silent")], [gap]
    )
    dumped = json.loads(json.dumps(dump_evaluation(evaluation)))
    assert (dumped["schema"], dumped["version"]) == (SCHEMA, VERSION)
    assert dumped["checkpoint"]["name"] == "mine/step-1"
    assert dumped["summary"]["spoken"]["word_error_rate"] == pytest.approx(4 / 6)
    assert dumped["sentences"][0]["spoken"]["word_errors"] == {"errors": 4, "length": 6}
    assert dumped["sentences"][0]["voice"] == {"kind": "another clip of the speaker", "recordings": ["other.wav"]}
    assert dumped["failures"] == [{"name": "9.wav", "what": SENTENCE, "reason": "silent"}]
    assert dumped["not_measured"][0]["how"] == "Ask."
    assert dumped["set_aside"] == {"lines": 9}


@pytest.mark.parametrize(
    ("spoken", "copy", "words"),
    [
        (PERFECT, PERFECT, "The speech is understood: word error rate 0.00"),
        ("a dog", "a dog", "The codec loses most"),
        ("a dog", PERFECT, "The GPT is at fault"),
        (None, None, "No recogniser has listened"),
    ],
)
def test_the_verdict_names_who_is_at_fault(spoken, copy, words):
    sentence = make_sentence(0, make_heard(spoken, copy, None if spoken is None else PERFECT))
    assert words in judge_summary(make_evaluation([sentence]).summary)


def test_a_waveform_decoder_is_not_taken_for_the_gpt():
    """The codec's copies come from Griffin-Lim, whatever speaks: they say nothing of a decoder."""
    heard = make_sentence(0, make_heard("a dog"))
    verdict = judge_summary(make_evaluation([heard], uses_decoder=True).summary)
    assert "The GPT or its waveform decoder is at fault" in verdict
    assert "--vocoder griffin-lim to tell them apart" in verdict
    endless = make_sentence(0, make_heard("a dog"), is_stopped=False)
    assert "The GPT is at fault" in judge_summary(make_evaluation([endless], uses_decoder=True).summary)
    understood = make_evaluation([make_sentence(0, make_heard(PERFECT))], uses_decoder=True)
    assert "is understood" in judge_summary(understood.summary)


def test_the_verdict_tells_of_speech_without_an_end_and_of_a_deaf_recogniser():
    endless = make_sentence(0, make_heard("a dog"), is_stopped=False)
    assert "1 of 1 sentences ran into the length limit" in judge_summary(make_evaluation([endless]).summary)
    hasty = make_sentence(0, make_heard("a dog"), lengths={SPOKEN: 0.5})
    assert "It stops too early: the speech lasts 25% of" in judge_summary(make_evaluation([hasty]).summary)
    same = [make_sentence(0, make_heard(PERFECT)), make_sentence(0, make_heard(PERFECT))]
    assert "tells little" in judge_summary(make_evaluation(same).summary)
    foreign = judge_summary(make_evaluation([make_sentence(0, make_heard(OTHER, OTHER, OTHER))]).summary)
    assert "does not understand the recordings themselves: word error rate 1.00" in foreign
    assert "is understood" not in foreign

"""The figures of an evaluation: all together, as JSON, and in a sentence."""

import json

import pytest

from myxtts.evaluation.results import SCHEMA, SENTENCE, VERSION, dump_evaluation, judge_evaluation
from tests.evaluation.builders import COPY, ORIGINAL, SPOKEN, FailedFigure, NotMeasured, make_evaluation, make_sentence

PERFECT = "the cat sat on the mat"
OTHER = "nobody knows why it rains"


def make_heard(spoken, copy=PERFECT, original=PERFECT):
    return {ORIGINAL: original, COPY: copy, SPOKEN: spoken}


def test_the_summary_adds_up_the_sentences():
    first = make_sentence(0, make_heard("the cat sat on a mat"))
    second = make_sentence(1, make_heard(OTHER, OTHER, OTHER), is_stopped=False, seconds_to_speak=5.0, correct_codes=10)
    failure = FailedFigure("9.wav", SENTENCE, "silent")
    summary = make_evaluation([first, second], [failure, failure]).summary
    spoken = summary.kinds[SPOKEN]
    assert spoken.word_error_rate == pytest.approx(1 / 11)
    assert summary.kinds[ORIGINAL].word_error_rate == 0
    assert spoken.mel_distance_db == pytest.approx(5.5)
    assert summary.kinds[ORIGINAL].mel_distance_db is None
    voices = (
        spoken.likeness_to_own_speaker, spoken.likeness_to_nearest_other_speaker, spoken.share_nearest_to_own_speaker,
    )  # fmt: skip
    assert voices == pytest.approx((0.9, 0.8, 0.5))
    assert summary.code_accuracy == pytest.approx(40 / 80)
    assert summary.real_time_factor == pytest.approx(6 / 4)
    assert summary.length_ratio == 1.0
    assert (summary.stop_failures, summary.sentences, summary.failed) == (1, 2, 1)
    assert summary.word_error_rate_against_wrong_texts == pytest.approx(12 / 11, abs=0.1)


def test_what_nobody_measured_is_unknown_and_not_zero():
    sentence = make_sentence(0, {ORIGINAL: None, SPOKEN: None}, correct_codes=None, true_codes=None)
    summary = make_evaluation([sentence]).summary
    assert (summary.code_accuracy, summary.word_error_rate_against_wrong_texts) == (None, None)
    assert summary.kinds[COPY].sentences == 0
    dumped = dump_evaluation(make_evaluation([sentence]))
    assert dumped["summary"]["spoken"]["word_error_rate"] is None
    assert dumped["sentences"][0]["spoken"]["word_errors"] is None


def test_the_json_has_a_version_and_everything():
    gap = NotMeasured("Voices", "nobody asked.", "Ask.")
    evaluation = make_evaluation(
        [make_sentence(0, make_heard("the cat"))], [FailedFigure("9.wav", SENTENCE, "silent")], [gap]
    )
    dumped = json.loads(json.dumps(dump_evaluation(evaluation)))
    assert (dumped["schema"], dumped["version"]) == (SCHEMA, VERSION)
    assert dumped["checkpoint"]["name"] == "mine/step-1"
    assert dumped["summary"]["spoken"]["word_error_rate"] == pytest.approx(4 / 6)
    assert dumped["sentences"][0]["spoken"]["word_errors"] == {"errors": 4, "length": 6}
    assert dumped["sentences"][0]["voice"] == {"kind": "another clip of the speaker", "recordings": ["other.wav"]}
    assert list(dumped["summary"]["spoken"]) == [
        "sentences", "word_error_rate", "character_error_rate", "likeness_to_own_speaker", "lowest_likeness_to_own_speaker",
        "likeness_to_nearest_other_speaker", "share_nearest_to_own_speaker", "mel_distance_db",
    ]  # fmt: skip
    assert list(dumped["summary"])[3:] == [
        "word_error_rate_against_wrong_texts", "code_accuracy", "real_time_factor", "length_ratio", "stop_failures",
        "sentences", "failed",
    ]  # fmt: skip
    assert list(dumped["sentences"][0])[5:] == [
        "codes", "is_stopped", "seconds_to_speak", "correct_codes", "true_codes", "original", "copy", "spoken",
    ]  # fmt: skip
    assert dumped["failures"] == [{"name": "9.wav", "what": SENTENCE, "reason": "silent"}]
    assert dumped["not_measured"][0]["how"] == "Ask."
    assert dumped["set_aside"] == {"lines": 9}


@pytest.mark.parametrize(
    ("heard", "changes", "uses_decoder", "words"),
    [
        ((PERFECT,), {}, False, "The speech is understood: word error rate 0.00"),
        (("a dog", "a dog"), {}, False, "The codec loses most"),
        (("a dog",), {}, False, "The GPT is at fault"),
        ((None, None, None), {}, False, "No recogniser has listened"),
        ((OTHER, OTHER, OTHER), {}, False, "does not understand the recordings themselves: word error rate 1.00"),
        # The codec's copies come from Griffin-Lim, whatever speaks: they say nothing of a decoder.
        (("a dog",), {}, True, "The GPT or its waveform decoder is at fault"),
        (("a dog",), {"is_stopped": False}, True, "1 of 1 sentences ran into the length limit"),
        (("a dog",), {"lengths": {SPOKEN: 0.5}}, True, "It stops too early: the speech lasts 25% of"),
    ],
)
def test_the_verdict_names_who_is_at_fault(heard, changes, uses_decoder, words):
    sentence = make_sentence(0, make_heard(*heard), **changes)
    verdict = judge_evaluation(make_evaluation([sentence], uses_decoder=uses_decoder))
    assert words in verdict
    assert ("The speech is understood" in verdict) == (heard == (PERFECT,))
    assert ("--vocoder griffin-lim to tell them apart" in verdict) == (uses_decoder and not changes)


def test_a_recogniser_that_hears_one_text_in_all_tells_little():
    verdict = judge_evaluation(make_evaluation([make_sentence(0, make_heard(PERFECT))] * 2))
    assert "tells little" in verdict
    assert "is understood" not in verdict

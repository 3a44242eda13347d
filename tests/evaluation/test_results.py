"""The figures of an evaluation: all together, as JSON, in a sentence, and on its page, which no name changes: `tests/reports`."""

import base64
import json
import re

import pytest

from myxtts.evaluation import page as page_module
from myxtts.evaluation.page import format_page
from myxtts.evaluation.results import format_evaluation, judge_evaluation
from tests.evaluation.builders import COPY, GAP, ORIGINAL, SPOKEN, make_evaluation, make_failure, make_sentence
from tests.monitoring.runs import make_rows

PERFECT = "the cat sat on the mat"
OTHER = "nobody knows why it rains"


def make_heard(spoken, copy=PERFECT, original=PERFECT):
    return {ORIGINAL: original, COPY: copy, SPOKEN: spoken}


def test_the_summary_adds_up_the_sentences():
    first = make_sentence(0, make_heard("the cat sat on a mat"))
    second = make_sentence(1, make_heard(OTHER, OTHER, OTHER), is_stopped=False, seconds_to_speak=5.0, correct_codes=10)
    summary = make_evaluation([first, second], [make_failure(), make_failure()])["summary"]
    spoken, original = summary[SPOKEN], summary[ORIGINAL]
    assert (spoken["word_error_rate"], original["word_error_rate"]) == (pytest.approx(1 / 11), 0)
    assert (spoken["mel_distance_db"], original["mel_distance_db"]) == (pytest.approx(5.5), None)
    voices = ("likeness_to_own_speaker", "likeness_to_nearest_other_speaker", "share_nearest_to_own_speaker")
    assert [spoken[name] for name in voices] == pytest.approx([0.9, 0.8, 0.5])
    others = {name: value for name, value in summary.items() if name not in (ORIGINAL, COPY, SPOKEN)}
    assert others == {
        "word_error_rate_against_wrong_texts": pytest.approx(12 / 11, abs=0.1), "code_accuracy": 40 / 80,
        "real_time_factor": 6 / 4, "length_ratio": 1.0, "stop_failures": 1, "sentences": 2, "failed": 1,
    }  # fmt: skip


def test_what_nobody_measured_is_unknown_and_not_zero():
    sentence = make_sentence(0, {ORIGINAL: None, SPOKEN: None}, correct_codes=None, true_codes=None)
    evaluation = make_evaluation([sentence], [make_failure()], [GAP])
    summary = json.loads(json.dumps(evaluation))["summary"]
    assert (summary["code_accuracy"], summary["word_error_rate_against_wrong_texts"]) == (None, None)
    assert (summary[SPOKEN]["word_error_rate"], summary[COPY]["sentences"]) == (None, 0)
    told = format_evaluation(evaluation)
    assert "Spoken                        –            –         0.90         0.60       5.0 dB\n" in told
    assert "Codec alone" not in told
    assert "Not measured: Whose voice it is; no speaker judge was asked." in told
    assert told.endswith("Could not be had: 1\n  9.wav, sentence: silent")


def test_the_keys_that_programs_read():
    dumped = make_evaluation([make_sentence(0, make_heard("the cat"))])
    assert (dumped["schema"], dumped["version"], dumped["set_aside"]) == ("myxtts evaluation", 2, {"lines": 9})
    assert list(dumped["summary"])[:3] == list(dumped["sentences"][0])[-3:] == [ORIGINAL, COPY, SPOKEN]
    assert list(dumped["summary"]["spoken"]) == [
        "sentences", "word_error_rate", "character_error_rate", "likeness_to_own_speaker", "lowest_likeness_to_own_speaker",
        "likeness_to_nearest_other_speaker", "share_nearest_to_own_speaker", "mel_distance_db",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("heard", "changes", "uses_decoder", "words"),
    [
        ((PERFECT,), {}, False, "The speech is understood: word error rate 0.00"),
        (("a dog", "a dog"), {}, False, "The codec loses too much"),
        ((OTHER, "the cat sat on a dog"), {}, False, "The codec loses too much: word error rate 0.33"),
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
    verdict = judge_evaluation(make_evaluation([sentence], vocoder="decoder" if uses_decoder else "griffin-lim"))
    assert words in verdict
    assert ("The speech is understood" in verdict) == (heard == (PERFECT,))
    assert ("--vocoder griffin-lim to tell them apart" in verdict) == (uses_decoder and not changes)


def test_a_recogniser_that_hears_one_text_in_all_tells_little():
    verdict = judge_evaluation(make_evaluation([make_sentence(0, make_heard(PERFECT))] * 2))
    assert "tells little" in verdict
    assert "is understood" not in verdict


def test_the_page_holds_every_sound_and_figure_with_misheard_words_marked(tmp_path):
    heard = {ORIGINAL: "the cat sat on the mat", COPY: "the cat", SPOKEN: "the bat sat on the mat"}
    endless = make_sentence(1, {ORIGINAL: None, SPOKEN: None}, tmp_path, is_stopped=False)
    evaluation = make_evaluation([make_sentence(0, heard, tmp_path), endless], [], [GAP])
    page = format_page(evaluation, tmp_path, make_rows())
    assert page.count("<audio") == page.count("<img") == 5
    embedded = re.findall(r'src="data:audio/wav;base64,([^"]+)"', page)
    assert base64.b64decode(embedded[0]) == (tmp_path / "wavs" / "0000-original.wav").read_bytes()
    for words in ("Evaluation of mine/step-1", "1 of 6", "the <mark>bat</mark> sat on the mat", "the cat <mark>[sat on the mat]</mark>",
                  "did not stop", "Give --speaker-judge", "<polyline", 'dir="auto"', "other.wav (another clip of the speaker)"):  # fmt: skip
        assert words in page, words


def test_beyond_some_sentences_only_figures_are_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_PLAYED", 1)
    sentences = [make_sentence(number, {ORIGINAL: None, SPOKEN: None}, tmp_path) for number in range(3)]
    page = format_page(make_evaluation(sentences), tmp_path)
    assert page.count("<audio") == 2
    assert "The sounds of 2 more are beside this page" in page
    assert 'href="#s2"' not in page

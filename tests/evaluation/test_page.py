"""The page of an evaluation: every sound and figure, and what is not known. That no name changes it: `tests/reports`."""

import base64
import re

from myxtts.evaluation import page as page_module
from myxtts.evaluation.page import format_page
from tests.evaluation.builders import COPY, GAP, ORIGINAL, SPOKEN, make_evaluation, make_sentence
from tests.monitoring.runs import make_rows


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

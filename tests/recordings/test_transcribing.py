"""Clips get the words of the script that were read in them, or are not sure of them."""

import pytest

from myxtts.errors import EvaluationError
from myxtts.evaluation.judges import JudgeChoice
from myxtts.recordings import transcribing
from myxtts.recordings.transcribing import align_script, choose_recogniser

SCRIPT = (
    "Author of the danger trail, Philip Steels, etc. Not at this particular case, Tom, apologized Whittemore. "
    "In 1842, Lord, but I'm glad to see you again, Phil. Will we ever forget it?"
)
READ = [
    "Author of the danger trail, Philip Steels, etc.",
    "Not at this particular case, Tom, apologized Whittemore.",
    "In 1842, Lord, but I'm glad to see you again, Phil.",
    "Will we ever forget it?",
]
HEARD = [
    "author of the danger trail philip steeles et cetera",
    "not at this particular case tom apologised whitmore",
    "in 1842 lord but i am glad to see you again phil",
    "will we ever forget it",
]


def align(heard, script=SCRIPT, language="en"):
    return [(reading.text, reading.is_sure) for reading in align_script(script, heard, language)]


def test_what_is_misheard_gets_the_words_of_the_script():
    assert align(HEARD) == [(text, True) for text in READ]


def test_clips_that_end_inside_a_sentence_share_it():
    assert align([HEARD[0], "not at this particular case", "tom apologised whitmore", *HEARD[2:]]) == [
        (READ[0], True), ("Not at this particular case,", True), ("Tom, apologized Whittemore.", True), *((text, True) for text in READ[2:]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("heard", "sure"),
    [
        # The last word was not heard: no clip may lack it, or have it too.
        ([HEARD[0], "not at this particular case tom apologised", *HEARD[2:]], [True, False, True, True]),
        # Nor the first one.
        ([HEARD[0], "at this particular case tom apologised whitmore", *HEARD[2:]], [False, False, True, True]),
        # A number of which each clip has a part.
        ([*HEARD[:2], "in eighteen forty", "two lord but i'm glad to see you again phil", HEARD[3]], [True, True, False, False, True]),
        # What was read twice, and what is not in the script.
        ([HEARD[0], HEARD[0], *HEARD[1:]], [False, True, True, True, True]),
        ([*HEARD[:2], "sorry where was i", *HEARD[2:]], [True, False, False, True, True]),
        ([], []),
        (["", *HEARD, ""], [False, True, True, True, True, False]),
    ],
)  # fmt: skip
def test_a_clip_whose_ends_are_not_certain_is_not_sure(heard, sure):
    found = align(heard)
    assert [is_sure for _, is_sure in found] == sure
    assert all(text in READ for (text, is_sure) in found if is_sure)


def test_another_script_makes_nothing_sure():
    assert not any(
        sure for _, sure in align(HEARD, "A wholly different book has none of these sentences in it at all.")
    )


def test_part_of_a_script_is_found_and_persian_and_japanese_are_aligned_too():
    book = [f"Then {a}{b}rok went to {b}{a}lim." for a in "abcdefgh" for b in "klmnoprstuw"]
    assert [text for text, _ in align(["then corok went to oclim", "then cprok went to pclim"], " ".join(book))] == [
        "Then corok went to oclim.", "Then cprok went to pclim.",
    ]  # fmt: skip
    assert align(["سلام دنیا حال شما", "چطور است امروز"], "سلام دنیا، حال شما چطور است امروز؟", "fa") == [
        ("سلام دنیا، حال شما", True), ("چطور است امروز؟", True),
    ]  # fmt: skip
    assert [text for text, _ in align(["今日は", "いい天気"], "今日はいい天気。", "ja")] == ["今日は", "いい天気"]


def test_without_a_recogniser_the_error_names_the_ways_out(monkeypatch):
    with pytest.raises(EvaluationError, match=r"English only, and the language is 'fa'.*--recogniser-command"):
        choose_recogniser(JudgeChoice(), "fa")
    assert choose_recogniser(JudgeChoice(command="x {wav}"), "fa") == JudgeChoice(command="x {wav}")

    def fail():
        raise ImportError("no such package")

    monkeypatch.setattr(transcribing, "_load_moonshine", fail)
    with pytest.raises(EvaluationError, match=r"pip install -c constraints\.txt '\.\[corpus\]'.*--recogniser-command"):
        choose_recogniser(JudgeChoice(), "en")

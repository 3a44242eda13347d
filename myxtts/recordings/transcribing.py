"""What is said in a clip: heard by a recogniser, or found in a script that is known to have been read.

Heard words and the script's are two rows that mostly agree. Runs of words that occur once in either hold them together; what lies
between two such anchors is aligned word by word.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from myxtts.audio.reading import read_clip
from myxtts.errors import EvaluationError
from myxtts.evaluation.judges import JUDGE_RATE_HZ, RECOGNISER, JudgeChoice
from myxtts.evaluation.scores import count_edits, is_written_in_one, split_words

DEFAULT_RECOGNISER = f"{__name__}:hear_english"
_QUOTES = re.compile(r"""["“”]|(?<!\w)['‘’]|['‘’](?!\w)""")
ANCHOR_WORDS = 3
MOST_CELLS = 25_000_000
"""Of words heard times words of the script between two anchors, for which 25 MB are needed. A wrong script has no anchors."""
ALIKE = 0.5
"""Share of a word's letters that may be misheard where it begins or ends a clip: a name is spelt otherwise, another word is not."""


def choose_recogniser(given: JudgeChoice, language: str) -> JudgeChoice:
    """The recogniser that is asked for, or the one that comes with the package. Raises `EvaluationError` where it cannot be had."""
    if given.name is not None or given.command is not None:
        return given
    if language != "en":
        raise EvaluationError(
            f"The recogniser that is asked where none is named hears English only, and the language is {language!r}. {RECOGNISER.how}"
        )
    try:
        _load_moonshine()
    except ImportError as error:
        raise EvaluationError(
            f"The recogniser that is asked where none is named is moonshine-voice, which cannot be imported ({error}). "
            f"Install it: pip install -c constraints.txt '.[corpus]' in the source folder of MyXTTS. {RECOGNISER.how}"
        ) from error
    return JudgeChoice(DEFAULT_RECOGNISER)


@cache
def _load_moonshine() -> Any:
    from moonshine_voice import ModelArch, get_model_path
    from moonshine_voice.transcriber import Transcriber

    # The clips are cut already: cut once more, their words lose their neighbours, by which they are recognised.
    return Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY, options={"vad_threshold": "0"})


def hear_english(path: str, language: str) -> str:
    """What Moonshine hears, without its quotation marks, of which it often gives one alone. Its weights are in its package."""
    samples = read_clip(path, JUDGE_RATE_HZ)
    heard = _load_moonshine().transcribe_without_streaming(samples.tolist(), JUDGE_RATE_HZ)
    return _QUOTES.sub("", " ".join(line.text.strip() for line in heard.lines))


@dataclass(frozen=True)
class Reading:
    """The part of a script that a clip holds."""

    text: str
    is_sure: bool
    """Whether its first and its last word were heard there, so that no word of a neighbour is among them."""


def align_script(script: str, heard: Sequence[str], language: str) -> list[Reading]:
    """The part of a script that was read in each clip, of which is known what a recogniser heard; in the order of both."""
    tokens = [*script] if is_written_in_one(language) else script.split()
    script_words: list[str] = []
    owners: list[int] = []
    for number, token in enumerate(tokens):
        words = split_words(token, language)
        if number and any(map(str.isdigit, token)):
            # How a number is read may depend on what is before it: "in 1842".
            known = split_words(tokens[number - 1], language)
            both = split_words(f"{tokens[number - 1]} {token}", language)
            words = both[len(known) :] if both[: len(known)] == known else words
        script_words += words
        owners += [number] * len(words)
    heard_words: list[str] = []
    ends: list[int] = []
    for text in heard:
        heard_words += split_words(text, language)
        ends.append(len(heard_words))
    pairs = dict(_align(heard_words, script_words))
    edges: list[tuple[int, int] | None] = []
    for start, end in zip([0, *ends], ends, strict=False):
        found = [pairs[place] for place in range(start, end) if place in pairs]
        edges.append((found[0], found[-1]) if found else None)
    glue = "" if is_written_in_one(language) else " "
    before, readings = -1, list[Reading]()
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        edge = edges[number]
        if edge is None:
            readings.append(Reading("", False))
            continue
        first, last = edge
        behind = next((each[0] for each in edges[number + 1 :] if each is not None), len(script_words))
        is_sure = (
            # A word between two clips that was heard in neither belongs to one of them.
            (first, last) == (before + 1, behind - 1)
            and _is_token_edge(owners, first)
            and _is_token_edge(owners, last + 1)
            and all(
                pairs.get(place) == word and _is_alike(heard_words[place], script_words[word])
                for place, word in ((start, first), (end - 1, last))
            )
        )
        before = last
        readings.append(Reading(glue.join(tokens[owners[first] : owners[last] + 1]).strip(), is_sure))
    return readings


def _is_token_edge(owners: Sequence[int], word: int) -> bool:
    """Whether no word of the script, as "1842" is three, is said on both sides."""
    return word in (0, len(owners)) or owners[word - 1] != owners[word]


def _is_alike(heard: str, word: str) -> bool:
    return count_edits(word, heard) <= ALIKE * max(len(word), len(heard))


def _align(heard: Sequence[str], script: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Places of heard words with the places of the script's words they stand for, in order."""
    before = (0, 0)
    for place, word in [*_find_anchors(heard, script), (len(heard), len(script))]:
        for pair in _align_words(heard[before[0] : place], script[before[1] : word]):
            yield before[0] + pair[0], before[1] + pair[1]
        if place < len(heard):
            yield place, word
        before = place + 1, word + 1


def _find_anchors(heard: Sequence[str], script: Sequence[str]) -> list[tuple[int, int]]:
    """Words in the middle of runs that occur once in either row: the longest series of them that is in order in both."""
    places = [_find_single(row) for row in (heard, script)]
    both = sorted((places[0][run], places[1][run]) for run in places[0].keys() & places[1].keys())
    # The longest rising series: for each length, the lowest place in the script that one of it can end with.
    lowest: list[int] = []
    ended: list[int] = []
    previous: list[int] = []
    for number, (_, word) in enumerate(both):
        length = bisect.bisect_left(lowest, word)
        previous.append(ended[length - 1] if length else -1)
        lowest[length:] = [word, *lowest[length + 1 :]]
        ended[length:] = [number, *ended[length + 1 :]]
    chosen: list[tuple[int, int]] = []
    number = ended[-1] if ended else -1
    while number >= 0:
        chosen.append(both[number])
        number = previous[number]
    return chosen[::-1]


def _find_single(row: Sequence[str]) -> dict[tuple[str, ...], int]:
    """The place of the middle word of each run of words that occurs once."""
    runs = [tuple(row[place : place + ANCHOR_WORDS]) for place in range(len(row) - ANCHOR_WORDS + 1)]
    counts = Counter(runs)
    return {run: place + ANCHOR_WORDS // 2 for place, run in enumerate(runs) if counts[run] == 1}


def _align_words(heard: Sequence[str], script: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of an alignment with the fewest edits; words that nobody said, or nobody wrote, are in none."""
    if not heard or not script or len(heard) * len(script) > MOST_CELLS:
        return []
    numbers: dict[str, int] = {}
    script_N = np.array([numbers.setdefault(word, len(numbers)) for word in script])
    places = np.arange(len(script) + 1)
    row = places.copy()
    # From where each cell is reached: 0 both go on, 1 the heard word is left over, 2 the script's is.
    ways = np.full((len(heard) + 1, len(script) + 1), 2, np.int8)
    for place, word in enumerate(heard, start=1):
        paired, left = row[:-1] + (script_N != numbers.get(word, -1)), row[1:] + 1
        best = np.concatenate([row[:1] + 1, np.minimum(paired, left)])
        new = np.minimum.accumulate(best - places) + places
        ways[place] = np.where(new < best, 2, 1)
        ways[place, 1:][(new[1:] == best[1:]) & (paired <= left)] = 0
        row = new
    pairs: list[tuple[int, int]] = []
    row_number, column = len(heard), len(script)
    while row_number and column:
        way = ways[row_number, column]
        row_number, column = row_number - (way != 2), column - (way != 1)
        if way == 0:
            pairs.append((row_number, column))
    return pairs[::-1]

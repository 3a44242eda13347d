"""How a spoken piece went through its text, without a recogniser: whether it said all of it once and then ended, and when each word.

Some heads of a GPT look at the token that is being said. They are told by what they do: their attention goes through the text from
its first token to its last. Any engine may have said the codes: they are read once more, all at a time. What is found depends on
the piece alone, not on what was said before it.

Shapes: K heads, M codes, T text tokens with START and STOP, C width.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.speech import TimedWord
from myxtts.models.decoding import read_attention
from myxtts.models.gpt import GPT
from myxtts.text.tokenizer import Tokenizer
from myxtts.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE

if TYPE_CHECKING:
    from myxtts.inference.generation import GeneratedRow, Row

CODE_SECONDS = SAMPLES_PER_CODE / SAMPLE_RATE_HZ
"""Of all codes but STOP, whatever turns them into sound."""
LONGEST_STEP = 4
"""Tokens that a path goes on by within one code: few, so that words which were left out cost it."""
HEAD_SHARE = 0.6
"""Of the best head's attention along its path, what another must have to count too."""
FOLLOWS = 0.15
"""Attention along its path by which a head is known to follow the text. One of a model that has learnt nothing has a tenth of it."""

LEAST_ON_PATH = 0.9
"""Share that the path has of the attention to the token that each code looks at most. Half of all takes have 0.97."""
LEAST_COVER = 0.25
"""Codes that look at a letter of a word, in the mean over its letters; half of all words have more than 1."""
LOST = 0.4
"""Of the median attention along the path, below which a code looks at nothing on it."""
MOST_LOST = 8
"""Codes in a row, 0.4 s, that may look at nothing."""
LETTER_CODES = (0.6, 4.0)
"""Codes that a letter takes, in any language: so wide that only a piece which broke off or went on is beyond. Not the voice's own rate: a
model and a voice do not hold it, and learnt from earlier pieces it would make what a seed says depend on what was said before, and on
how many pieces are said at once. Among takes of a piece `LENGTH_PRICE` tells the drawn-out ones."""
SPARE_CODES = 20
"""Beside those of its letters: silence before and behind them."""
WINDOW = 8
"""Codes, 0.4 s, of which the text must explain each: about a word."""
LENGTH_PRICE, PATH_WORTH = 7.0, 20.0
"""What a take loses by being longer, by the logarithm, and gains by keeping to its path, beside what its text explains, in nats. So
weighed, a recogniser misheard 17 % of the words in the best of four takes of 136 sentences, in any of them 21 %."""
AGREEMENT_WORTH = 20.0
"""What a take loses by being as far from the others again as takes are in the mean: what most of them say alike is seldom wrong."""

_NEVER = np.float32(-1e9)


@dataclass(frozen=True)
class Following:
    """How a piece went through its text."""

    path_M: NDArray[np.int64]
    """The token that each code says, START counted, never going back."""
    doubts: tuple[str, ...]
    """What speaks against it, in words."""
    score: float
    """Higher is better, among takes of one text."""
    misheard: float = 0.0
    """Words that a recogniser heard wrongly, by those of the text, where there is one."""


def choose_take(takes: Sequence[GeneratedRow], vectors_VD: NDArray[np.float32]) -> GeneratedRow:
    """The best of takes of one text that were looked at; codes that sound alike have vectors near each other."""
    far_N = measure_distances([vectors_VD[take.codes_M[take.codes_M < len(vectors_VD)]] for take in takes])

    def rank(number: int) -> tuple[float, bool, float]:
        following = takes[number].following
        assert following is not None
        return -following.misheard, not following.doubts, following.score - AGREEMENT_WORTH * float(far_N[number])

    return takes[max(range(len(takes)), key=rank)]


def measure_distances(takes_MD: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """How far each take is from the others in the mean, by what takes of the text are, when all are made equally long."""
    if len(takes_MD) < 3 or not all(map(len, takes_MD)):
        return np.zeros(len(takes_MD), np.float32)
    points = max(map(len, takes_MD))
    laid_NMD = np.stack([take[np.linspace(0, len(take) - 1, points).round().astype(int)] for take in takes_MD])
    far_N = np.array([np.linalg.norm(laid_NMD - laid_MD, axis=-1).mean() for laid_MD in laid_NMD])
    return np.asarray(far_N / max(far_N.mean(), 1e-9), np.float32)


def find_paths(attention_KMT: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The ways (K, M) through the text, from START to STOP and never back, that get most attention, and how much in the mean."""
    heads, codes, tokens = attention_KMT.shape
    longest = max(LONGEST_STEP, -(-tokens // codes) + 1)
    steps_MKT = np.zeros((codes, heads, tokens), np.int16)
    best_KT = np.full((heads, tokens), _NEVER)
    best_KT[:, 0] = attention_KMT[:, 0, 0]
    for code in range(1, codes):
        before_SKT = np.stack([np.roll(best_KT, step, 1) for step in range(longest + 1)])
        for step in range(1, longest + 1):
            before_SKT[step, :, :step] = _NEVER
        steps_MKT[code] = before_SKT.argmax(0)
        best_KT = before_SKT.max(0) + attention_KMT[:, code]
    paths_KM = np.full((heads, codes), tokens - 1)
    for code in range(codes - 1, 0, -1):
        here_K = paths_KM[:, code]
        paths_KM[:, code - 1] = here_K - steps_MKT[code, np.arange(heads), here_K]
    return best_KT[:, -1] / np.float32(codes), paths_KM


def join_heads(attention_KMT: NDArray[np.float32]) -> tuple[NDArray[np.float32], bool]:
    """The attention (M, T) of the heads that follow the text best, and whether any does."""
    # Without what a token gets from all codes: a head that always looks at the first token follows nothing.
    scores_K = np.maximum(find_paths(attention_KMT - attention_KMT.mean(1, keepdims=True))[0], 1e-6)
    weights_K = np.where(scores_K >= HEAD_SHARE * scores_K.max(), scores_K, np.float32(0))
    joined_MT = np.tensordot(weights_K / weights_K.sum(), attention_KMT, 1)
    return np.asarray(joined_MT, np.float32), bool(scores_K.max() >= FOLLOWS)


def _along(attention_MT: NDArray[np.float32], path_M: NDArray[np.int64]) -> NDArray[np.float32]:
    return attention_MT[np.arange(len(path_M)), path_M]


def doubt_length(codes: int, words: Sequence[Word]) -> Iterator[str]:
    letters = sum(map(str.isalnum, "".join(word.text for word in words)))
    least, most = (letters * each for each in LETTER_CODES)
    if not least <= codes <= most + SPARE_CODES:
        yield f"it is too {'short' if codes < least else 'long'} for its text"


def doubt_path(
    attention_MT: NDArray[np.float32], path_M: NDArray[np.int64], on_path: float, words: Sequence[Word]
) -> Iterator[str]:
    missed = [word.text for word in words if attention_MT[:, word.first : word.end].sum(0).mean() < LEAST_COVER]
    if missed:
        yield f"words may be missing: {', '.join(missed)}"
    if on_path < LEAST_ON_PATH:
        yield "it goes back in its text, or leaves it"
    along_M = _along(attention_MT, path_M)
    found = np.flatnonzero(along_M >= LOST * np.median(along_M))
    if np.diff([-1, *found, len(along_M)]).max() > MOST_LOST:
        yield "a part of it has nothing to do with its text"


class Word(NamedTuple):
    """A word as the model read it: its first token, START counted, and the one behind its last."""

    text: str
    first: int
    end: int


class TextFollower:
    """Looks at spoken pieces beside their texts."""

    def __init__(self, gpt: GPT, tokenizer: Tokenizer):
        self._gpt, self._tokenizer = gpt, tokenizer
        # Compiled: as single operations it takes several times as long as the codes.
        self._read = tf.function(
            self._trace_reading,
            input_signature=[
                tf.TensorSpec([1, None, None]),
                tf.TensorSpec([1, None], tf.int32),
                tf.TensorSpec([1, None], tf.int32),
                tf.TensorSpec([None, None]),
            ],
            autograph=False,
        )

    def _trace_reading(self, prompt_1PC: Any, ids_1T: Any, codes_1M: Any, latents_MC: Any) -> tuple[Any, Any]:
        """What each code attended to, and how much likelier it is with its text than without, in nats."""
        blind_MC = self._gpt.compute_latents(prompt_1PC, ids_1T[:, :1], codes_1M)[0]
        with_text_M, without_M = (
            tf.nn.sparse_softmax_cross_entropy_with_logits(codes_1M[0], tf.cast(self._gpt.audio_head(each), tf.float32))
            for each in (latents_MC, blind_MC)
        )
        return read_attention(self._gpt, prompt_1PC, ids_1T, codes_1M), without_M - with_text_M

    def follow(self, row: Row, said: GeneratedRow) -> Following:
        """How a piece went, with what it was to say."""
        attention_KMT, gain_M = self._read(
            tf.constant(row.voice.prompt_PC[None]),
            tf.constant([row.ids], tf.int32),
            tf.constant(said.codes_M[None], tf.int32),
            tf.constant(said.latents_MC),
        )
        attention_MT, follows = join_heads(attention_KMT.numpy())
        path_M = find_paths(attention_MT[None])[1][0]
        words = self.find_words(row.ids)
        on_path = float(_along(attention_MT, path_M).sum() / attention_MT.max(1).sum())
        doubts = [] if said.stopped else ["it did not come to an end"]
        doubts += doubt_length(len(path_M), words)
        if follows:
            doubts += doubt_path(attention_MT, path_M, on_path, words)
        least = np.convolve(gain_M.numpy(), np.full(min(WINDOW, len(gain_M)), 1 / WINDOW), "valid").min()
        score = float(least) - LENGTH_PRICE * np.log(len(path_M)) + PATH_WORTH * on_path
        return Following(path_M, tuple(doubts), float(score))

    def find_words(self, ids: Sequence[int]) -> list[Word]:
        """The words that the tokens of a text make, without the marks around them."""
        tokens = [self._tokenizer.decode([id]) for id in ids[1:]]
        words, place = list[Word](), 2
        for is_space, group in itertools.groupby(tokens, key=str.isspace):
            run = list(group)
            heard = [number for number, token in enumerate(run, start=place) if any(map(str.isalnum, token))]
            if heard and not is_space:
                words.append(Word("".join(run), heard[0], heard[-1] + 1))
            place += len(run)
        return words

    def time_words(self, text: str, row: Row, said: GeneratedRow, speed: float) -> tuple[TimedWord, ...]:
        """When each word of a piece is said at a speed. What is read as other words than are written, such as a number, gets the
        time of those."""
        path_M = (said.following or self.follow(row, said)).path_M
        read, written = self.find_words(row.ids), [word for word in text.split() if any(map(str.isalnum, word))]
        bounds = np.searchsorted(path_M, [[word.first, word.end] for word in read]) * (CODE_SECONDS / speed)
        timed = list[TimedWord]()
        for first, end, first_read, end_read in _match(written, [word.text for word in read]):
            if first_read == end_read:
                start_s = stop_s = timed[-1].end_s if timed else 0.0
            else:
                start_s, stop_s = bounds[first_read, 0], bounds[end_read - 1, 1]
            shares = np.cumsum([0, *map(len, written[first:end])])
            times = start_s + (stop_s - start_s) * shares / max(shares[-1], 1)
            timed += map(TimedWord, written[first:end], times[:-1].tolist(), times[1:].tolist())
        return tuple(timed)


def _match(written: Sequence[str], read: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Spans of written words with the spans of words that they are read as: one by one where they are the same."""
    spelt, sounded = ([re.sub(r"\W", "", word).casefold() for word in words] for words in (written, read))
    opcodes = difflib.SequenceMatcher(None, spelt, sounded, autojunk=False).get_opcodes()
    for kind, first, end, first_read, end_read in opcodes:
        if kind == "equal":
            pairs = zip(range(first, end), range(first_read, end_read), strict=True)
            yield from ((one, one + 1, other, other + 1) for one, other in pairs)
        else:
            yield first, end, first_read, end_read

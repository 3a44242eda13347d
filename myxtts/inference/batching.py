"""Sentences that are said together: one joins at the next code, and each goes as soon as it has ended.

Shapes: B rows, V codes, M codes of a row, C width.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.generation import PUBLISHED_PENALTY, GeneratedRow, Row, choose_temperature, limit_codes
from myxtts.inference.rows import HeardRows, RowDecoder
from myxtts.inference.speech import SpeechSettings
from myxtts.models.decoding import ALWAYS_SEEN
from myxtts.models.sizes import GPTSize

# Compiled: as single operations it takes as long as two codes.
_draw = tf.function(
    lambda count, key: tf.random.stateless_uniform([count], key, alg="philox"),
    input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([2], tf.int32)],
    autograph=False,
)


class SentenceRow:
    """A row of a batch: asked for, under way or ended."""

    def __init__(self, row: Row, settings: SpeechSettings, owner: object, size: GPTSize):
        self.row, self.settings, self.owner = row, settings, owner
        self.limit = limit_codes(settings, size)
        self.place: int | None = None
        self.codes: list[int] = []
        self.latents: list[NDArray[np.float32]] = []
        self.stopped = False
        self.error: Exception | None = None
        self.seen_V = np.zeros(size.audio_tokens, np.bool_)
        self.seen_V[[ALWAYS_SEEN, size.start_audio_token]] = True
        # All at once, by the row's own key: no other row can shift them.
        self.draws_M: NDArray[np.float32] = _draw(tf.constant(size.max_new_codes), tf.constant(row.key)).numpy()

    @property
    def is_over(self) -> bool:
        """Whether no more codes come. Raises what went wrong on the way."""
        if self.error is not None:
            raise self.error
        return self.stopped or len(self.codes) >= self.limit

    def show(self) -> GeneratedRow:
        """Its codes and latents so far."""
        return GeneratedRow(np.array(self.codes, np.int32), np.stack(self.latents), self.stopped, self.is_over)


class SentenceBatch:
    """The sentences in hand, and the places of a decoder that they share.

    A place goes to whoever has fewest, and nobody gets one who has as many as are free: a long text leaves room for others, and its
    next sentence waits behind theirs.
    """

    def __init__(self, decoder: RowDecoder, size: GPTSize, *, usual_penalty: float = PUBLISHED_PENALTY):
        self.decoder, self._size, self._usual_penalty = decoder, size, usual_penalty
        self.waiting: list[SentenceRow] = []
        self.saying: list[SentenceRow] = []
        self.codes = 0
        """That all sentences have said so far."""

    def add(self, row: Row, settings: SpeechSettings, owner: object = None) -> SentenceRow:
        """A sentence that waits for its first code; `owner` is for whom its place is counted."""
        self.waiting.append(SentenceRow(row, settings, owner, self._size))
        return self.waiting[-1]

    def follow(
        self,
        rows: Iterable[Row],
        settings: SpeechSettings,
        owner: object,
        list_steps: Callable[[], Iterator[int]] | None,
    ) -> Iterator[Iterator[GeneratedRow | None]]:
        """The states of each row, None where there is no new one yet; whoever steps the batch then goes on.

        Args:
            list_steps: gives how many codes each state of a row has. Rows then come one after another; without it as many as there are
                places for, and of each nothing but its end.
        """
        ahead, left, added = 1 if list_steps else self.decoder.most_rows, iter(rows), deque[SentenceRow]()
        while True:
            for row in left:
                added.append(self.add(row, settings, owner))
                if len(added) >= ahead:
                    break
            if not added:
                return
            yield _watch(added.popleft(), list_steps() if list_steps else iter(()))

    def leave(self, owner: object) -> None:
        """Frees the places of all sentences of an owner, wherever they are."""
        self.waiting = [each for each in self.waiting if each.owner is not owner]
        for sentence in [each for each in self.saying if each.owner is owner]:
            self._release(sentence)

    def step(self) -> None:
        """Lets in who waits, and says one more code of every other sentence."""
        going = list(self.saying)
        while (sentence := self._choose_next()) is not None:
            self.waiting.remove(sentence)
            sentence.place = min({*range(self.decoder.most_rows)} - {each.place for each in self.saying})
            self.saying.append(sentence)
            row, place = sentence.row, sentence.place
            self._say([sentence], lambda: self.decoder.start(place, row.voice.prompt_PC, row.ids))  # noqa: B023  called at once
        if going:
            places = [each.place for each in going if each.place is not None]
            self._say(going, lambda: self.decoder.step(places, [each.codes[-1] for each in going]))

    def _choose_next(self) -> SentenceRow | None:
        free, held = self.decoder.most_rows - len(self.saying), Counter(id(each.owner) for each in self.saying)
        first = min(self.waiting, key=lambda each: held[id(each.owner)], default=None)
        return first if first is not None and held[id(first.owner)] < free else None

    def _say(self, sentences: list[SentenceRow], listen: Callable[[], HeardRows]) -> None:
        try:
            heard = listen()
        except Exception as error:  # noqa: BLE001  the border of a request: whoever asked for the sentence gets the error
            for sentence in sentences:
                sentence.error = error
                self._release(sentence)
            return
        for sentence, logits_V, latent_C in zip(sentences, *heard, strict=True):
            settings, said = sentence.settings, len(sentence.codes)
            penalty = self._usual_penalty if settings.repetition_penalty is None else settings.repetition_penalty
            code = choose_code(logits_V, sentence.seen_V, settings, penalty, sentence.draws_M[said])
            sentence.codes.append(code)
            sentence.latents.append(latent_C.copy())
            sentence.seen_V[code] = True
            sentence.stopped = code == self._size.stop_audio_token
            if sentence.is_over:
                self._release(sentence)
        self.codes += len(sentences)

    def _release(self, sentence: SentenceRow) -> None:
        self.saying.remove(sentence)
        if sentence.place is not None:
            self.decoder.release(sentence.place)
            sentence.place = None


def _watch(sentence: SentenceRow, steps: Iterator[int]) -> Iterator[GeneratedRow | None]:
    due = next(steps, None)
    while not sentence.is_over:
        if due is not None and len(sentence.codes) >= due:
            yield sentence.show()
            due = next(steps, None)
        else:
            yield None
    yield sentence.show()


def choose_code(
    logits_V: NDArray[np.float32], seen_V: NDArray[np.bool_], settings: SpeechSettings, penalty: float, draw: float
) -> int:
    """The next code, as `models.decoding.choose_code` has it; of one row, since each has its own settings."""
    scores_V = logits_V.copy()
    if penalty != 1:
        said_N, factor = logits_V[seen_V], np.float32(penalty)
        scores_V[seen_V] = np.where(said_N < 0, said_N * factor, said_N / factor)
    if settings.greedy:
        return int(scores_V.argmax())
    scores_V /= np.float32(choose_temperature(settings))
    codes = np.arange(len(scores_V))
    if 0 < settings.top_k < len(codes):
        codes = np.flatnonzero(scores_V >= np.partition(scores_V, -settings.top_k)[-settings.top_k])
    ranked = np.sort(scores_V[codes])
    # The tail that holds at most 1 - p of the mass goes; the best code always stays.
    tail = int(np.count_nonzero(_add_up(ranked) <= 1 - settings.top_p))
    codes = codes[scores_V[codes] >= ranked[min(tail, len(ranked) - 1)]]
    mass = _add_up(scores_V[codes])
    # Strictly above the draw, so that a code without any mass is never hit.
    return int(codes[min(int(np.searchsorted(mass, draw * mass[-1], side="right")), len(codes) - 1)])


def _add_up(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    shares = np.exp(scores - scores.max())
    return np.cumsum(shares / shares.sum(), dtype=np.float32)

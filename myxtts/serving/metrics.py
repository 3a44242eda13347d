"""What a server has done and has in hand, as Prometheus reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from myxtts.processes import read_private_bytes

if TYPE_CHECKING:
    from myxtts.inference.batching import SentenceBatch
    from myxtts.serving.request import SpeechFacts

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = ("spoken", "refused", "failed", "left", "cut_off")
"""Of a request for speech. Who has `left` heard nothing yet; what was `cut_off` had begun, and the client did not take it all or the
server stopped; what `failed` is the model's fault, begun or not."""
BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class ServingMetrics:
    """Counts requests for speech as they end. Used in the event loop only."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._first_sounds: Counter[float] = Counter()
        self._first_sound_s = self._speech_s = 0.0

    def count(self, outcome: str, facts: SpeechFacts) -> None:
        assert outcome in OUTCOMES
        self._outcomes[outcome] += 1
        self._speech_s += facts.seconds
        if facts.first_sound_s is not None:
            self._first_sound_s += facts.first_sound_s
            self._first_sounds[
                min((each for each in BUCKETS_S if facts.first_sound_s <= each), default=float("inf"))
            ] += 1

    def write(self, batch: SentenceBatch, requests: int) -> str:
        """All figures, in Prometheus' text format."""
        return "".join(f"{line}\n" for line in self._list(batch, requests))

    def _list(self, batch: SentenceBatch, requests: int) -> Iterator[str]:
        yield "# TYPE myxtts_requests_total counter"
        for outcome, number in self._outcomes.items():
            yield f'myxtts_requests_total{{outcome="{outcome}"}} {number}'
        yield "# TYPE myxtts_first_sound_seconds histogram"
        for most_s in (*BUCKETS_S, float("inf")):
            within = sum(number for each, number in self._first_sounds.items() if each <= most_s)
            yield f'myxtts_first_sound_seconds_bucket{{le="{"+Inf" if most_s == float("inf") else most_s}"}} {within}'
        yield f"myxtts_first_sound_seconds_sum {self._first_sound_s:.6f}"
        yield f"myxtts_first_sound_seconds_count {self._first_sounds.total()}"
        for name, kind, figure in (
            ("codes_total", "counter", batch.codes),
            ("speech_seconds_total", "counter", round(self._speech_s, 3)),
            ("rows_in_flight", "gauge", len(batch.saying)),
            ("rows_waiting", "gauge", len(batch.waiting)),
            ("requests_in_hand", "gauge", requests),
            ("private_memory_bytes", "gauge", read_private_bytes(os.getpid())),
        ):
            yield f"# TYPE myxtts_{name} {kind}"
            yield f"myxtts_{name} {figure}"

"""What `myxtts bench model` asks, how it is timed, and what was hoped for. No TensorFlow here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ROWS = 4
TEXT_TOKENS = 100
CODES = 200
CLIP_FRAMES = 862
"""Mel frames of a clip of 10 s."""
PROMPT_FRAMES = 517
"""Mel frames of a prompt of 6 s, the recipe's."""
LEAST_ROUNDS = 3

STEP_SHARE = 0.75
"""Of the peer's time: the most our training step may take."""
DECODING_GAIN = 1.3
ROOF_SHARE = 0.8
TOTAL_GAIN = 3.0


@dataclass(frozen=True)
class Shape:
    """A GPT to be measured."""

    layers: int
    width: int
    heads: int

    @property
    def name(self) -> str:
        return f"{self.layers}x{self.width}"

    @property
    def bytes_per_code(self) -> int:
        """Weights in float32 that must be read for one code: four matrices of a block, the head and the norms."""
        per_block = 12 * self.width**2 + 13 * self.width
        return 4 * (self.layers * per_block + 4 * self.width + 1026 * (self.width + 1))


def list_shapes() -> tuple[Shape, ...]:
    """The two configurations; decoding is measured with the last."""
    return Shape(4, 256, 4), Shape(8, 512, 8)


STEPS = tuple(f"step {shape.name}" for shape in list_shapes())
TOTALS = ("decode 4 rows", "decode 16-bit")
"""Either must reach `TOTAL_GAIN` times what the peer decodes."""
LABELS: Mapping[str, str] = {
    **{
        f"step {shape.name}": f"training step, {shape.layers} layers x {shape.width} wide x {shape.heads} heads"
        for shape in list_shapes()
    },
    "dvae": "DVAE encode, 4 clips of 10 s",
    "decode": "decode 200 codes, one sentence",
    "decode 4 rows": "decode 200 codes, four sentences",
    "decode 16-bit": "decode 200 codes, 16-bit weights",
    "decode 16-bit 4 rows": "decode 200 codes, both",
    "read memory": "read 256 MiB",
}
"""Piece of work -> how it is called in the table."""

PEER_CAN = (*STEPS, "dvae", "decode", "decode 4 rows")


@dataclass(frozen=True)
class Timing:
    """Seconds for one piece of work, in rounds."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """What the work takes when nothing else has the processor: what else runs here can only add to it."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def time_in_turn(contenders: Mapping[str, Callable[[], float]], seconds: float) -> dict[str, Timing]:
    """Timings of contenders that take turns, so that a busy moment hits all: at least three rounds, and about so many
    seconds for each. A contender does its work once and returns the seconds it took."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    begun = time.perf_counter()
    while True:
        for name, contender in contenders.items():
            taken[name].append(contender())
        rounds = len(next(iter(taken.values())))
        if rounds >= LEAST_ROUNDS and time.perf_counter() - begun >= seconds * len(contenders):
            return {name: Timing(tuple(times)) for name, times in taken.items()}


def time_once(work: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@dataclass(frozen=True)
class Verdict:
    """A target, and what became of it."""

    text: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def __str__(self) -> str:
        return f"{self.text}: {self.value:.2f}, {'met' if self.is_met else 'not met'}"


@dataclass(frozen=True)
class SpeedResult:
    """All that was measured."""

    ours: Mapping[str, Timing]
    peer: Mapping[str, Timing]
    """Empty when there was none."""
    read_bytes: int
    load_average: tuple[float, float]
    """Of the machine, before and after."""

    @property
    def bytes_per_s(self) -> float:
        return self.read_bytes / self.ours["read memory"].best

    @property
    def roof_codes_per_s(self) -> float:
        """Codes of one sentence per second if reading the weights were all there is to do."""
        return self.bytes_per_s / list_shapes()[-1].bytes_per_code

    def codes_per_s(self, name: str, *, of_peer: bool = False) -> float:
        """Codes of all rows per second."""
        rows = ROWS if "4 rows" in name else 1
        return rows * CODES / (self.peer if of_peer else self.ours)[name].best

    def ratio(self, name: str) -> float:
        """Our time by the peer's."""
        return self.ours[name].best / self.peer[name].best

    def judge(self) -> Sequence[Verdict]:
        """The targets that this run can judge."""
        roof = self.codes_per_s("decode") / self.roof_codes_per_s
        verdicts = [Verdict(f"one sentence at least {ROOF_SHARE} of the roof", roof, least=ROOF_SHARE)]
        if self.peer:
            verdicts += [
                Verdict(f"{name} at most {STEP_SHARE} of the peer's time", self.ratio(name), most=STEP_SHARE)
                for name in STEPS
            ]
            one = self.codes_per_s("decode", of_peer=True)
            total = max(self.codes_per_s(name) for name in TOTALS) / one
            verdicts += [
                Verdict("DVAE no slower than the peer's", self.ratio("dvae"), most=1.0),
                Verdict(
                    f"one sentence at least {DECODING_GAIN} times the peer's codes/s",
                    self.codes_per_s("decode") / one,
                    least=DECODING_GAIN,
                ),
                Verdict(
                    f"four sentences or 16-bit weights at least {TOTAL_GAIN} times the peer's codes/s",
                    total,
                    least=TOTAL_GAIN,
                ),
            ]
        return verdicts

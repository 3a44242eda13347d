"""What the configurator tries on a machine, and what it sets by rule. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myxtts.config import XTTSConfig

INTRA_OP, INTER_OP = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
GPU_THREAD_MODE, GPU_THREAD_COUNT = "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT"
VARIABLES = (INTRA_OP, INTER_OP, GPU_THREAD_MODE, GPU_THREAD_COUNT)
MOST_READ_SHARE = 0.02
"""Of a step, that may go into waiting for clips before something is tried against it."""
DEEP_BUFFER = 100
"""Batches that may be read ahead where reading is uneven."""
BATCH_TITLE = "batch x accumulation"
_HALVINGS = 3


@dataclass(frozen=True)
class Candidate:
    """Settings to try on top of those found best so far."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key."""
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One thing to choose, by the candidates that are tried for it."""

    title: str
    candidates: tuple[Candidate, ...]
    skipped: str = ""
    """Why nothing is tried."""
    reason: str = ""
    """What speaks for the candidates, before they are tried."""


@dataclass(frozen=True)
class TuningFacts:
    """What decides about candidates."""

    cores: int
    is_gpu: bool
    """Whether a card trains."""
    read_share: float
    """Of a step with the defaults, that went into waiting for clips."""
    fitting: Sequence[tuple[int, int]] = ()
    """Batches x accumulation that fit into memory."""


def is_open(config: XTTSConfig, *keys: str) -> bool:
    """Whether nobody has given these settings: what a user gives stays."""
    return all(config.origins[key] == "default" or config.origins[key].startswith("preset ") for key in keys)


def list_questions(config: XTTSConfig, facts: TuningFacts) -> list[Question]:
    """What is to be chosen by trying, in order."""
    return [
        ask_batch(config, facts.fitting),
        _ask_precision(config, facts),
        _ask_xla(config),
        _ask_threads(config, facts),
        _ask_workers(config, facts),
    ]


def halve_batch(config: XTTSConfig) -> tuple[tuple[int, int], ...]:
    """As many clips per update in batches of a half, a quarter and an eighth, as far as they can be had."""
    batch_size, accumulation = config.data.batch_size, config.training.gradient_accumulation_steps
    parts = [2**number for number in range(1, _HALVINGS + 1)]
    return tuple((batch_size // part, accumulation * part) for part in parts if batch_size % part == 0)


def ask_batch(config: XTTSConfig, fitting: Sequence[tuple[int, int]]) -> Question:
    """Which batch, of those that fit into memory."""
    if not is_open(config, "data.batch_size", "training.gradient_accumulation_steps"):
        return Question(BATCH_TITLE, (), _GIVEN)
    now = (config.data.batch_size, config.training.gradient_accumulation_steps)
    others = [each for each in fitting if each != now]
    if not others:
        return Question(BATCH_TITLE, (), _explain_one_batch(now, fitting))
    return Question(
        BATCH_TITLE,
        tuple(
            Candidate(
                f"{batch_size} x {accumulation}",
                {"data.batch_size": batch_size, "training.gradient_accumulation_steps": accumulation},
            )
            for batch_size, accumulation in others
        ),
    )


def _ask_precision(config: XTTSConfig, facts: TuningFacts) -> Question:
    if not is_open(config, "data.mixed_precision"):
        return Question("precision", (), _GIVEN)
    # Half precision needs loss scaling, bfloat16 does not; a CPU computes neither faster unless it was made for it.
    names = ("mixed_float16", "mixed_bfloat16") if facts.is_gpu else ("mixed_bfloat16",)
    return Question("precision", tuple(Candidate(name, {"data.mixed_precision": name}) for name in names))


def _ask_xla(config: XTTSConfig) -> Question:
    if not is_open(config, "data.enable_xla"):
        return Question("XLA", (), _GIVEN)
    if not config.data.pad_to_fixed_length:
        return Question("XLA", (), "batches have no fixed shapes, so nearly every one would be compiled anew")
    return Question("XLA", (Candidate("on", {"data.enable_xla": True}),))


def _ask_threads(config: XTTSConfig, facts: TuningFacts) -> Question:
    if config.training.deterministic:
        return Question("threads", (), "--deterministic fixes them")
    if facts.is_gpu:
        own = {GPU_THREAD_MODE: "gpu_private", GPU_THREAD_COUNT: "2"}
        return Question("threads", (Candidate("two for each card", environ=own),))
    counts = sorted({facts.cores, max(1, facts.cores // 2)}, reverse=True)
    return Question(
        "threads",
        tuple(
            Candidate(f"{count} inside operations, 2 between", environ={INTRA_OP: str(count), INTER_OP: "2"})
            for count in counts
        ),
    )


def _ask_workers(config: XTTSConfig, facts: TuningFacts) -> Question:
    title = "reader processes"
    if not is_open(config, "data.num_workers"):
        return Question(title, (), _GIVEN)
    if facts.read_share <= MOST_READ_SHARE and (facts.is_gpu or facts.cores > 4):
        return Question(
            title, (), f"a step waits for clips {facts.read_share:.1%} of its time: more would gain nothing"
        )
    # On few cores readers and training take them from each other.
    counts = [1] if facts.read_share <= MOST_READ_SHARE else [facts.cores, 2 * facts.cores]
    return Question(title, tuple(Candidate(str(count), {"data.num_workers": count}) for count in counts))


def choose_buffers(config: XTTSConfig, read_share: float) -> list[tuple[str, Any, str]]:
    """Depths that are set by rule: key, value, and the rule."""
    rows: list[tuple[str, Any, str]] = []
    if is_open(config, "data.pipeline_buffer_size"):
        now = config.data.pipeline_buffer_size
        waits = f"a step waits for clips {read_share:.1%} of its time"
        if read_share > MOST_READ_SHARE:
            rows.append(
                ("data.pipeline_buffer_size", max(now, DEEP_BUFFER), f"rule: {waits}, so it may read further ahead")
            )
        else:
            rows.append(("data.pipeline_buffer_size", now, f"rule: {waits}, so the default is deep enough"))
    if is_open(config, "data.prefetch_buffer_size"):
        rows.append(("data.prefetch_buffer_size", config.data.prefetch_depth, "rule: max(2, min(8, 64 // batch size))"))
    return rows


_GIVEN = "you have given it"


def _explain_one_batch(now: tuple[int, int], fitting: Sequence[tuple[int, int]]) -> str:
    if not fitting:
        return "no other batch is known to fit into memory"
    return f"{now[0]} x {now[1]} fits, and no larger batch makes up the same update"

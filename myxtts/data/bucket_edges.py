"""Where to cut a corpus's lengths into buckets so that padding costs least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLES_PER_CODE

SAMPLES_STEP = 4 * SAMPLES_PER_CODE
"""Bucket lengths are multiples of this, 0.19 s at 22.05 kHz: rounding up to it costs about 1 %."""

TOKENS_STEP = 8

_WORTH_A_SHAPE = 0.01
"""A last bucket for the longest texts must save this share of the computed positions."""

_USUAL_SHARE = 0.95
"""A bucket's text length is expected to hold this share of its clips."""


@dataclass(frozen=True, eq=False)
class LengthTable:
    """How many clips there are of each pair of rounded-up lengths."""

    samples: NDArray[np.int64]
    """The different audio lengths, rising, in samples."""
    tokens: NDArray[np.int64]
    """The different text lengths, rising, in tokens."""
    counts: NDArray[np.int64]
    """Clips by audio length and text length."""


def tabulate_lengths(samples_N: NDArray[np.integer], tokens_N: NDArray[np.integer]) -> LengthTable:
    """The lengths of all clips, rounded up to the steps bucket shapes are made of."""
    samples, row = np.unique(_round_up(samples_N, SAMPLES_STEP), return_inverse=True)
    tokens, column = np.unique(_round_up(tokens_N, TOKENS_STEP), return_inverse=True)
    counts = np.bincount(row * len(tokens) + column, minlength=len(samples) * len(tokens))
    return LengthTable(samples, tokens, counts.reshape(len(samples), len(tokens)))


def _round_up(lengths: NDArray[np.integer], step: int) -> NDArray[np.int64]:
    return np.maximum(1, -(-lengths.astype(np.int64) // step)) * step


def list_sample_edges(table: LengthTable, most: int) -> list[NDArray[np.int64]]:
    """For 1, 2, ... `most` buckets (or as many as there are lengths), the audio lengths that pad these clips least.

    Exact: dynamic programming over the last clip length that each bucket takes.
    """
    lengths, clips = table.samples, table.counts.sum(axis=1)
    until = np.concatenate([[0], np.cumsum(clips)])
    best = until[1:] * lengths
    starts: list[NDArray[np.intp]] = []
    choices = [lengths[-1:]]
    for count in range(2, min(most, len(lengths)) + 1):
        previous, best = best, best.copy()
        start = np.zeros(len(lengths), dtype=np.intp)
        for last in range(count - 1, len(lengths)):
            costs = previous[:last] + (until[last + 1] - until[1 : last + 1]) * lengths[last]
            start[last] = np.argmin(costs)
            best[last] = costs[start[last]]
        starts.append(start)
        choices.append(lengths[_follow_starts(starts)])
    return choices


def _follow_starts(starts: list[NDArray[np.intp]]) -> list[int]:
    edges = [len(starts[-1]) - 1]
    for start in reversed(starts):
        edges.append(int(start[edges[-1]]))
    return edges[::-1]


def choose_token_edges(
    table: LengthTable, sample_edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A text length for each audio length, and perhaps one more bucket for the longest texts.

    Text lengths rise with the audio's. A clip whose text is too long for its bucket moves to a longer one: that is
    cheaper than padding every text of the bucket to the longest.

    Returns:
        Audio and text lengths of the buckets, of equal number.
    """
    longest = int(table.tokens[-1])
    audio_positions = sample_edges / SAMPLES_PER_CODE
    own = np.zeros((len(sample_edges), len(table.tokens)), dtype=np.int64)
    np.add.at(own, np.searchsorted(sample_edges, table.samples), table.counts)
    clips = np.zeros(len(table.tokens), dtype=np.int64)
    token_edges = [int(table.tokens[0])]
    for k, positions in enumerate(audio_positions):
        clips = np.where(table.tokens > token_edges[-1], clips, 0) + own[k]
        is_last = k + 1 == len(audio_positions)
        moving = positions + longest if is_last else audio_positions[k + 1] + _guess_padding(table.tokens, own[k + 1])
        costs = np.cumsum(clips) * (positions + table.tokens) + _sum_after(clips * moving)
        costs[table.tokens < token_edges[-1]] = np.inf
        choice = int(np.argmin(costs))
        if is_last and costs[-1] - costs[choice] < _WORTH_A_SHAPE * _count_positions(table):
            choice = len(table.tokens) - 1
        token_edges.append(int(table.tokens[choice]))
    if token_edges[-1] < longest:
        sample_edges = np.append(sample_edges, sample_edges[-1])
        token_edges.append(longest)
    return sample_edges, np.array(token_edges[1:], dtype=np.int64)


def _guess_padding(tokens: NDArray[np.int64], own: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a text of each length will be padded to in a bucket with these clips, before its text length is chosen."""
    usual = tokens[np.searchsorted(np.cumsum(own), _USUAL_SHARE * own.sum())]
    padded: NDArray[np.int64] = np.maximum(tokens, usual)
    return padded


def _sum_after(values: NDArray[np.float64]) -> NDArray[np.float64]:
    after: NDArray[np.float64] = values.sum() - np.cumsum(values)
    return after


def _count_positions(table: LengthTable) -> float:
    return float(table.counts.sum(axis=1) @ table.samples / SAMPLES_PER_CODE + table.counts.sum(axis=0) @ table.tokens)

"""What is said on the way between a trainer and a tf.data service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myxtts.data.clip_loading import ClipFile


@dataclass(frozen=True)
class Request:
    """Clips that are wanted in the shared memory."""

    number: int
    files: Mapping[int, ClipFile]
    """By row of the batch."""
    first_sample: int
    """Of the batch, in the shared memory."""
    row_samples: int


@dataclass(frozen=True)
class Arrival:
    """A request that was answered."""

    number: int
    loaded: list[int]
    """Rows that hold their clip now."""
    unseen: list[int]
    """Rows whose file the worker could not read."""
    machine: str


@dataclass(frozen=True)
class Progress:
    """What has happened at a service since it was last asked about."""

    arrivals: list[Arrival]
    asked_again: int
    """Requests that were made once more."""
    threads: int
    """That wait for the service. Those that wait for a worker that was lost never end."""
    last_failure: str
    """What the service has said when it last failed; empty if it never did."""


@dataclass(frozen=True)
class FileContents:
    """The answer to a request."""

    number: int
    contents: Mapping[int, bytes]
    """By place in the request; files that the worker could not read are left out."""
    machine: str
    """The worker's; empty if it does not know its name."""


def pack_request(request: Request) -> list[Any]:
    """A request as JSON values."""
    return [request.number, list(request.files.items()), request.first_sample, request.row_samples]


def unpack_request(values: Sequence[Any]) -> Request:
    """The request that was packed."""
    number, files, first_sample, row_samples = values
    return Request(number, {row: ClipFile(*file) for row, file in files}, first_sample, row_samples)


def unpack_progress(values: Sequence[Any]) -> Progress:
    """The progress that a process has told of."""
    arrivals, *counts = values
    return Progress([Arrival(*arrival) for arrival in arrivals], *counts)

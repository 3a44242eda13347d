"""Runs thousands of damaged pickles under an audit hook. For a process of its own: a hook cannot be taken off again."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints.torch_files import ZipRecords
from myxtts.checkpoints.unpickling import PickleMachine, Storage
from myxtts.errors import ModelFileError
from tests.checkpoints.builders import ASSETS, call, text

INSERTED = [
    call("os", "system", text("true")),
    call("builtins", "eval", text("1")),
    *(bytes([opcode]) for opcode in b"bR\x81Q\x930(t"),
]
OWN_EVENTS = ("builtins.id",)


def read_programs() -> list[bytes]:
    programs = []
    for asset in ("values", "coqui_classes", "no_checksums"):
        archive = ZipRecords(ASSETS / f"{asset}.pth")
        programs.append(archive.read_record(f"{asset}/data.pkl"))
    return programs


def mutate(program: bytes, generator: random.Random) -> bytes:
    raw = bytearray(program)
    for _ in range(generator.randint(1, 4)):
        position = generator.randrange(2, len(raw))
        start = generator.randrange(2, len(raw))
        match generator.randrange(5):
            case 0:
                raw[position] = generator.randrange(256)
            case 1:
                raw[position] ^= 1 << generator.randrange(8)
            case 2:
                del raw[position : min(position + generator.randint(1, 20), len(raw) - 1)]
            case 3:
                raw[position:position] = generator.choice(INSERTED)
            case 4:
                raw[position:position] = raw[start : start + generator.randint(1, 60)]
    return bytes(raw)


def load_storage(persistent_id: Any) -> Storage:
    match persistent_id:
        case (_, np.dtype() as dtype, str(), str(), int(count)) if count >= 0:
            return Storage(dtype, count * dtype.itemsize, lambda start, length: bytearray(length))
    raise ValueError("is no storage")


def run(count: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """How many mutated pickles were read and refused, and what Python reported to the audit hook meanwhile."""
    generator = random.Random(seed)
    programs = read_programs()
    counts = {"read": 0, "refused": 0}
    events: set[str] = set()
    is_armed = False

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if is_armed and event not in OWN_EVENTS:
            events.add(event)

    sys.addaudithook(watch)
    for _ in range(count):
        program = mutate(generator.choice(programs), generator)
        is_armed = True
        try:
            PickleMachine(Path("mutated.pth"), program, load_storage).run()
            counts["read"] += 1
        except ModelFileError:
            counts["refused"] += 1
        is_armed = False
    return counts, sorted(events)

"""Pickles of a few MB at most that ask for far more time or memory than any model file needs."""

from __future__ import annotations

import struct

from myxtts.checkpoints.unpickling import MAX_TEXT_BYTES, MAX_WORK
from tests.checkpoints.builders import name, text


def list_programs() -> dict[str, bytes]:
    """What each of them multiplies -> the pickle, without its first two and its last byte."""
    entries = b"".join(text(f"{index:06}") + b"N" for index in range(MAX_WORK // 20))
    numbers = b"K\x01" * (MAX_WORK // 10)
    return {
        "sets": b"(" + b"\x8f" * 10 * MAX_WORK + b"t",
        "dictionaries": b"(" + b"}" * 10 * MAX_WORK + b"t",
        "groups": b"(" * 10 * MAX_WORK,
        "calls": b"(" + name("collections", "OrderedDict") + b"q\x00" + b"h\x00)R" * MAX_WORK + b"t",
        "memory": b"N" + b"".join(b"r" + struct.pack("<I", index) for index in range(MAX_WORK + 5)),
        # The following copy one long value again and again, for a few bytes each.
        "lists": b"](" + numbers + b"eq\x000" + name("builtins", "set") + b"q\x010(" + b"h\x01h\x00\x85R" * 1000 + b"t",
        "pairs": b"](" + b"NN\x86" * (MAX_WORK // 10) + b"eq\x000" + name("collections", "OrderedDict") + b"q\x010("
        + b"h\x01h\x00\x85R" * 1000 + b"t",
        "text": text("x" * MAX_TEXT_BYTES) + b"q\x000" + text("latin1") + b"q\x010" + name("_codecs", "encode") + b"q\x020("
        + b"h\x02h\x00h\x01\x86R" * 5000 + b"t",
        "counters": b"}(" + entries + b"uq\x000" + name("collections", "Counter") + b"q\x010(" + b"h\x01h\x00\x85R" * 1000 + b"t",
        "states": b"}(" + entries + b"uq\x000(" + (name("TTS.tts.models.xtts", "XttsArgs") + b")\x81h\x00b") * 1000 + b"t",
    }  # fmt: skip

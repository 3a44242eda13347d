"""Torch files put together by hand, and weights of the reference."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints.tensors import LazyTensor
from myxtts.checkpoints.torch_files import write_torch
from myxtts.files import open_file_atomically
from tests.support.shared_files import find_parity

ASSETS = Path(__file__).parent / "assets"

STOP = b"."
REDUCE = b"R"
BUILD = b"b"


def read_state(case: str) -> dict[str, np.ndarray]:
    """The weights of a reference case, by checkpoint names."""
    with np.load(find_parity(f"{case}.npz")) as arrays:
        return {name.removeprefix("state/"): arrays[name] for name in arrays.files if name.startswith("state/")}


def write_torch_file(path: Path, content: Any) -> None:
    """A value as a torch file, in the place of what was there: who reads that keeps it."""
    with open_file_atomically(path) as handle:
        write_torch(handle, content, path)


def zip_records(records: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file, as Python writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


def zip_program(program: bytes, storages: Mapping[str, bytes] | None = None, **records: bytes) -> bytes:
    """A torch file with this pickle (without its first two and its last byte) and these storages."""
    content = {"archive/data.pkl": b"\x80\x02" + program + STOP}
    content |= {f"archive/data/{key}": storage for key, storage in (storages or {}).items()}
    content |= {f"archive/{name}": record for name, record in records.items()}
    return zip_records(content)


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def group(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def name(module: str, attribute: str) -> bytes:
    return b"c" + f"{module}\n{attribute}\n".encode()


def call(module: str, attribute: str, *arguments: bytes) -> bytes:
    return name(module, attribute) + group(*arguments) + REDUCE


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    return group(text("storage"), name("torch", kind), text(key), text("cpu"), integer(count)) + b"Q"


def tensor(key: str, count: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bytes:
    return call(
        "torch._utils",
        "_rebuild_tensor_v2",
        storage(key, count),
        integer(offset),
        group(*(integer(extent) for extent in shape)),
        group(*(integer(stride) for stride in strides)),
        b"\x89",
        call("collections", "OrderedDict"),
    )


def describe_tensor(shape: tuple[int, ...]) -> LazyTensor:
    """A tensor that is only a shape: reading it fails the test."""

    def fetch() -> np.ndarray:
        raise AssertionError("nobody should read the values")

    return LazyTensor(tuple(shape), np.dtype(np.float32), fetch)


def describe_record(content: bytes, **changes: int) -> list[int]:
    """Flags, method, date, checksum and sizes of a record, with single fields changed at will."""
    size = len(content)
    fields = {"flags": 0, "method": 0, "time": 0, "date": 0, "crc": zlib.crc32(content), "stored": size, "size": size}
    return list((fields | changes).values())


def local_header(record: str, content: bytes, **changes: int) -> bytes:
    """The header in front of a record."""
    raw = record.encode()
    described = describe_record(content, **changes)
    return struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, *described, len(raw), 0) + raw


def directory_entry(record: str, content: bytes, offset: int, extra: bytes = b"", **changes: int) -> bytes:
    """A record's entry in the directory at the end."""
    raw = record.encode()
    described = describe_record(content, **changes)
    sizes = (len(raw), len(extra), 0, 0, 0, 0, offset)
    return struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, *described, *sizes) + raw + extra


def end_record(body: bytes, directory: bytes, count: int) -> bytes:
    """A whole zip file from its records, its directory and the number of entries it claims."""
    return body + directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(directory), len(body), 0)


PROGRAM = b"\x80\x02N."


def zip_one_more(
    record: str, content: bytes, local: dict[str, int] | None = None, central: dict[str, int] | None = None
) -> bytes:
    """A valid torch file with a second record, whose two descriptions can be changed."""
    first = local_header("archive/data.pkl", PROGRAM) + PROGRAM
    body = first + local_header(record, content, **(local or {})) + content
    directory = directory_entry("archive/data.pkl", PROGRAM, 0)
    directory += directory_entry(record, content, len(first), **(central or {}))
    return end_record(body, directory, 2)

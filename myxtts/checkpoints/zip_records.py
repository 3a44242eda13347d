"""The records of an uncompressed zip file, checked before anything in it is believed.

Stricter than a general zip reader, because only what `torch.save` writes has to pass: records are stored, not
compressed (so a zip bomb has nothing to blow up), lie one after the other inside the file, and are named once. Both
places where zip states a record's name and size must agree; where they may differ, two readers can be shown two files.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from myxtts.checkpoints.errors import ModelFileError
from myxtts.files import FileError, open_file

MAX_RECORDS = 65_536
"""A training checkpoint of XTTS v2 has 2,300."""
MAX_DIRECTORY_BYTES = 16 * 2**20

_CHUNK_BYTES = 2**20

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_DIRECTORY_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_LOCATOR = struct.Struct("<4sLQL")

_FULL_16 = 0xFFFF
_FULL_32 = 0xFFFFFFFF
_ENCRYPTED_FLAGS = 0x0001 | 0x0040 | 0x2000
_SIZES_FOLLOW_FLAG = 0x0008
_ZIP64_FIELD = 0x0001


@dataclass(frozen=True)
class Record:
    """One file inside the zip file."""

    name: str
    start: int
    """Where its bytes begin in the zip file."""
    size: int
    crc32: int
    """0 when the writer recorded none: torch has an option that leaves it out."""


@dataclass(frozen=True)
class _Entry:
    """A record as the directory at the end of the file states it."""

    name: bytes
    flags: int
    crc32: int
    size: int
    header_offset: int


class ZipRecords:
    """The records of one file, by name. Keeps no file open.

    Args:
        path: a zip file whose records are stored without compression.
    """

    def __init__(self, path: Path):
        self.path = path
        self._verified: set[str] = set()
        with self._open() as handle:
            status = os.fstat(handle.fileno())
            self._identity = _identify(status)
            self.size = status.st_size
            self.records = self._read_records(handle)

    def read_record(self, record: Record) -> bytes:
        """All bytes of a record, checked against its checksum."""
        return bytes(self.read_span(record, 0, record.size))

    def read_span(self, record: Record, start: int, length: int) -> bytearray:
        """`length` bytes of a record from byte `start` on. The record's checksum is verified the first time."""
        assert min(start, length) >= 0
        assert start + length <= record.size
        with self._open() as handle:
            if _identify(os.fstat(handle.fileno())) != self._identity:
                raise self._error("was changed while it was being read. Wait until its writer is done, and try again.")
            content = self._read_at(handle, record.start + start, length)
            if record.name not in self._verified and record.crc32 != 0:
                whole = length == record.size
                checksum = zlib.crc32(content) if whole else self._sum_record(handle, record)
                if checksum != record.crc32:
                    raise self._error(f"its record {record.name!r} is damaged (wrong checksum). Get the file again.")
            self._verified.add(record.name)
        return content

    def _sum_record(self, handle: FileIO, record: Record) -> int:
        checksum = 0
        for start in range(0, record.size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, record.size - start)
            checksum = zlib.crc32(self._read_at(handle, record.start + start, length), checksum)
        return checksum

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(self.path, problem)

    def _open(self) -> FileIO:
        try:
            return open_file(self.path)
        except FileError as error:
            raise self._error(error.problem) from None

    def _read_at(self, handle: FileIO, offset: int, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        try:
            handle.seek(offset)
            done = 0
            while done < length:
                # Not one readinto: Linux reads at most 2 GiB at once.
                count = handle.readinto(view[done:])
                if not count:
                    raise self._error("ends before its content does: it is cut short. Get the file again.")
                done += count
        except OSError as error:
            raise self._error(f"cannot be read ({error.strerror}).") from None
        return content

    def _read_records(self, handle: FileIO) -> dict[str, Record]:
        offset, length, count = self._find_directory(handle)
        entries = list(self._parse_directory(self._read_at(handle, offset, length), count))
        records: dict[str, Record] = {}
        end = 0
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            name = self._check_name(entry.name)
            start = self._check_local_header(handle, entry, limit=offset)
            if entry.header_offset < end:
                raise self._error(f"its record {name!r} overlaps the one before it. It was not written by torch.save.")
            end = start + entry.size
            if name.endswith("/"):
                continue
            if name in records:
                raise self._error(f"holds two records named {name!r}. It was not written by torch.save.")
            records[name] = Record(name, start, entry.size, entry.crc32)
        return records

    def _find_directory(self, handle: FileIO) -> tuple[int, int, int]:
        """Offset, length and number of entries of the zip directory, which ends the file."""
        position = self.size - _END.size
        if position < 0:
            raise self._error("is cut short: it is too small for a zip file. Get the file again.")
        fields = _END.unpack(self._read_at(handle, position, _END.size))
        signature, disk, directory_disk, count_here, count, length, offset, comment = fields
        if signature != b"PK\x05\x06" or comment != 0:
            raise self._error("is cut short or damaged: the zip directory at its end is missing. Get the file again.")
        end64 = self._find_end64(handle, position)
        if end64 is not None:
            position, disk, directory_disk, count_here, count64, length64, offset64 = end64
            for short, full, mark in (
                (count, count64, _FULL_16),
                (length, length64, _FULL_32),
                (offset, offset64, _FULL_32),
            ):
                if short not in (full, mark):
                    raise self._error("is damaged: its two zip directories contradict each other.")
            count, length, offset = count64, length64, offset64
        if disk or directory_disk or (end64 and count_here != count):
            raise self._error("is one part of a zip file in several parts. Join them first.")
        if offset + length != position:
            raise self._error("is damaged: its zip directory is not where it should be. Get the file again.")
        if length > MAX_DIRECTORY_BYTES or count > MAX_RECORDS:
            raise self._error(f"holds {count} records; model files have at most {MAX_RECORDS}.")
        return offset, length, count

    def _find_end64(self, handle: FileIO, end: int) -> tuple[int, ...] | None:
        """Position and fields of the 64-bit end record, or None when there is none."""
        locator = end - _END64_LOCATOR.size
        if locator < 0:
            return None
        signature, disk, position, disks = _END64_LOCATOR.unpack(self._read_at(handle, locator, _END64_LOCATOR.size))
        if signature != b"PK\x06\x07":
            return None
        if position + _END64.size != locator or disk != 0 or disks != 1:
            raise self._error("is damaged: its 64-bit zip directory is not where it should be. Get the file again.")
        fields = _END64.unpack(self._read_at(handle, position, _END64.size))
        signature, length, _, _, disk, directory_disk, count_here, count, directory_bytes, offset = fields
        if signature != b"PK\x06\x06" or length != _END64.size - 12:
            raise self._error("is damaged: its 64-bit zip directory cannot be read. Get the file again.")
        return position, disk, directory_disk, count_here, count, directory_bytes, offset

    def _parse_directory(self, content: bytearray, count: int) -> Iterator[_Entry]:
        position = 0
        for _ in range(count):
            if position + _DIRECTORY_ENTRY.size > len(content):
                raise self._error("is damaged: its zip directory is too short. Get the file again.")
            fields = _DIRECTORY_ENTRY.unpack_from(content, position)
            signature, _, _, flags, method, _, _, crc32, stored, size, name_length, extra_length, comment_length = (
                fields[:13]
            )
            position += _DIRECTORY_ENTRY.size
            end = position + name_length + extra_length + comment_length
            if signature != b"PK\x01\x02" or end > len(content):
                raise self._error("is damaged: its zip directory cannot be read. Get the file again.")
            name = bytes(content[position : position + name_length])
            extra = bytes(content[position + name_length : position + name_length + extra_length])
            position = end
            size, stored, offset = self._widen(extra, size, stored, fields[16])
            if flags & _ENCRYPTED_FLAGS:
                raise self._error(f"its record {name!r} is encrypted. Model files are not: get the file again.")
            if method != 0 or size != stored:
                raise self._error(
                    f"its record {name!r} is compressed, which torch.save never does. Unpack the file with `unzip` and "
                    "pack it again without compression (`zip -0 -r`)."
                )
            yield _Entry(name, flags, crc32, size, offset)
        if position != len(content):
            raise self._error("is damaged: its zip directory has more in it than it says. Get the file again.")

    def _widen(self, extra: bytes, size: int, stored: int, offset: int) -> tuple[int, int, int]:
        """Size, stored size and offset, with those that do not fit 32 bits taken from the entry's 64-bit field."""
        wide = _find_extra_field(extra, _ZIP64_FIELD)
        values: list[int] = []
        position = 0
        for value in (size, stored, offset):
            if value == _FULL_32:
                if position + 8 > len(wide):
                    raise self._error("is damaged: a 64-bit size is missing in its zip directory. Get the file again.")
                value = int.from_bytes(wide[position : position + 8], "little")
                position += 8
            values.append(value)
        return values[0], values[1], values[2]

    def _check_name(self, raw: bytes) -> str:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._error(f"its record {raw!r} has a name that is not text.") from None
        parts = name.removesuffix("/").split("/")
        drive = parts[0][1:] == ":"
        if drive or any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
            raise self._error(
                f"its record {name!r} has a name that points outside the file. It may be made to do harm."
            )
        return name

    def _check_local_header(self, handle: FileIO, entry: _Entry, limit: int) -> int:
        """Where the record's bytes begin, once the header in front of them agrees with the directory."""
        if entry.header_offset + _LOCAL_HEADER.size + len(entry.name) > limit:
            raise self._error(f"its record {entry.name!r} lies outside the file. Get the file again.")
        header = self._read_at(handle, entry.header_offset, _LOCAL_HEADER.size + len(entry.name))
        signature, _, flags, method, _, _, crc32, stored, size, name_length, extra_length = _LOCAL_HEADER.unpack_from(
            header
        )
        same = signature == b"PK\x03\x04" and method == 0 and flags == entry.flags and name_length == len(entry.name)
        if not same or bytes(header[_LOCAL_HEADER.size :]) != entry.name:
            raise self._error(f"its record {entry.name!r} is described in two ways. Get the file again.")
        if not flags & _SIZES_FOLLOW_FLAG:
            sizes_agree = all(value in (entry.size, _FULL_32) for value in (stored, size))
            if not sizes_agree or crc32 != entry.crc32:
                raise self._error(f"its record {entry.name!r} has two sizes. Get the file again.")
        start: int = entry.header_offset + len(header) + extra_length
        if start + entry.size > limit:
            raise self._error(f"its record {entry.name!r} is longer than the file. Get the file again.")
        return start


def _identify(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _find_extra_field(extra: bytes, wanted: int) -> bytes:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        position += 4
        if kind == wanted:
            return extra[position : position + length]
        position += length
    return b""

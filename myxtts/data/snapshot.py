"""What a run reads, written to a file by one process and read by another: exact, quick, and without a scan.

A snapshot is an archive of NumPy columns with one JSON document beside them. It holds values only, no code.
"""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.buckets import Bucket, BucketPlan, PaddingWaste
from myxtts.data.columns import NameColumn, TextColumn
from myxtts.data.corpus import Corpus
from myxtts.data.drops import Drop, DropReason, DropReport
from myxtts.data.errors import SnapshotError
from myxtts.data.text_ids import TextIds
from myxtts.files import MissingFileError, open_file, parse_json

Columns = dict[str, NDArray[Any]]
Facts = dict[str, Any]
"""JSON values."""

_FACTS = "facts"


def pack_corpus(corpus: Corpus, ids: TextIds) -> tuple[Columns, Facts]:
    """A corpus and its token ids as columns and facts."""
    columns: Columns = {
        "audio": np.frombuffer(corpus.audio.blob, dtype=np.uint8),
        "audio_offsets": corpus.audio.offsets,
        "text": np.frombuffer(corpus.text.blob, dtype=np.uint8),
        "text_offsets": corpus.text.offsets,
        "speaker": corpus.speaker.codes,
        "language": corpus.language.codes,
        "samples": corpus.samples,
        "tokens": corpus.tokens,
        "size_bytes": corpus.size_bytes,
        "mtime_ns": corpus.mtime_ns,
        "ids": ids.ids,
        "id_offsets": ids.offsets,
    }
    facts = {"root": str(corpus.root), "speakers": corpus.speaker.names, "languages": corpus.language.names}
    return columns, facts


def unpack_corpus(columns: Columns, facts: Facts) -> tuple[Corpus, TextIds]:
    """What `pack_corpus` was given."""
    corpus = Corpus(
        root=Path(facts["root"]),
        audio=TextColumn(columns["audio"].tobytes(), columns["audio_offsets"]),
        text=TextColumn(columns["text"].tobytes(), columns["text_offsets"]),
        speaker=NameColumn(tuple(facts["speakers"]), columns["speaker"]),
        language=NameColumn(tuple(facts["languages"]), columns["language"]),
        samples=columns["samples"],
        tokens=columns["tokens"],
        size_bytes=columns["size_bytes"],
        mtime_ns=columns["mtime_ns"],
    )
    return corpus, TextIds(columns["ids"], columns["id_offsets"])


def pack_plan(plan: BucketPlan) -> tuple[Columns, Facts]:
    """A bucket plan as columns and facts."""
    facts = {
        "buckets": [[bucket.rows, bucket.samples, bucket.tokens] for bucket in plan.buckets],
        "batches": plan.batches_of_bucket,
        "waste": asdict(plan.waste),
    }
    return {"bucket_of_clip": plan.bucket_of_clip}, facts


def unpack_plan(columns: Columns, facts: Facts) -> BucketPlan:
    """What `pack_plan` was given."""
    return BucketPlan(
        buckets=tuple(Bucket(*numbers) for numbers in facts["buckets"]),
        bucket_of_clip=columns["bucket_of_clip"],
        batches_of_bucket=tuple(facts["batches"]),
        waste=PaddingWaste(**facts["waste"]),
    )


def pack_report(report: DropReport) -> Facts:
    """A drop report as facts."""
    return {
        "lines": report.lines,
        "kept_seconds": report.kept_seconds,
        "drops": [_pack_drop(drop) for drop in report.drops],
        "replaced": [_pack_drop(drop) for drop in report.replaced],
    }


def unpack_report(facts: Facts) -> DropReport:
    """What `pack_report` was given."""
    drops = (_unpack_drop(entry) for entry in facts["drops"])
    report = DropReport(lines=facts["lines"], kept_seconds=facts["kept_seconds"], drops=drops)
    report.replaced.extend(_unpack_drop(entry) for entry in facts["replaced"])
    return report


def _pack_drop(drop: Drop) -> list[str]:
    return [drop.reason.value, drop.file, drop.where, drop.detail]


def _unpack_drop(entry: list[str]) -> Drop:
    return Drop(DropReason(entry[0]), *entry[1:])


def write_snapshot(path: Path, columns: Mapping[str, NDArray[Any]], facts: Facts) -> None:
    """Save columns and facts, replacing the file in one step."""
    # Escaped to ASCII: a file name that is no UTF-8 holds surrogates, which only come back that way.
    document = np.frombuffer(json.dumps(facts).encode("ascii"), dtype=np.uint8)
    arrays: dict[str, Any] = {**columns, _FACTS: document}
    assert all(array.dtype != object for array in arrays.values()), "plain columns: objects would be pickled"
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotError(
            f"What the run reads must be written to {path} for the process that prepares it, but that failed: "
            f"{error.strerror}. Make room there, or give another --checkpoint-dir."
        ) from error


def read_snapshot(path: Path) -> tuple[Columns, Facts]:
    """What `write_snapshot` was given. The archive's checksums are verified."""
    try:
        # Opened here: NumPy forgets to close a file that it cannot read.
        with BufferedReader(open_file(path)) as file, np.load(file, allow_pickle=False) as archive:
            columns: Columns = {name: archive[name] for name in archive.files}
        facts: Facts = parse_json(columns.pop(_FACTS).tobytes())
    except MissingFileError:
        raise SnapshotError(f"There is no {path}: the trainer writes it before anything is prepared.") from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise SnapshotError(f"{path} must be a snapshot of what a run reads, but cannot be read: {error}.") from error
    return columns, facts

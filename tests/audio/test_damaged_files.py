"""Files that libsndfile would shorten without a word, or whose decoder would write to the terminal."""

from __future__ import annotations

import io
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from myxtts.audio.reading import MPG123_REMARKS, check_clip, inspect_clip, read_clip
from myxtts.devices.native_stderr import drop_lines
from myxtts.errors import ClipError, DropReason

RATE_HZ = 22050


def make_speechlike(seconds: float = 2.0) -> np.ndarray:
    """Noise that comes and goes, so that lossy encoders vary their bit rate."""
    count = round(seconds * RATE_HZ)
    return np.random.default_rng(0).normal(0, 0.1, count) * (np.sin(np.arange(count) / 3000) > 0)


def encode(format: str, subtype: str | None = None, **options) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, make_speechlike(), RATE_HZ, format=format, subtype=subtype, **options)
    return buffer.getvalue()


def name_problem(path: Path, content: bytes) -> DropReason | None:
    path.write_bytes(content)
    try:
        check_clip(path)
    except ClipError as error:
        return error.reason
    return None


@pytest.mark.parametrize("format", ["WAV", "AIFF", "FLAC", "OGG", "MP3"])
def test_a_file_cut_in_the_middle_is_truncated(tmp_path: Path, format: str) -> None:
    content = encode(format)
    assert name_problem(tmp_path / "whole", content) is None
    assert name_problem(tmp_path / "cut", content[: len(content) * 2 // 3]) is DropReason.TRUNCATED


def change(content: bytes, first: int, new: bytes) -> bytes:
    return content[:first] + new + content[first + len(new) :]


@pytest.mark.parametrize(
    ("format", "damage"),
    [
        ("OGG", lambda content: change(content, len(content) * 2 // 3, bytes([content[len(content) * 2 // 3] ^ 1]))),
        ("FLAC", lambda content: change(content, len(content) // 3, bytes(50))),
        ("MP3", lambda content: change(content, len(content) // 3, bytes(3000))),
        ("WAV", lambda content: change(content, 24, (7).to_bytes(4, "little"))),
        ("WAV", lambda content: content[:12] + bytes(4096)),
    ],
    ids=["a flipped bit", "zeros in a frame", "zeros in several frames", "an absurd rate", "zeros instead of chunks"],
)
def test_a_damaged_file_is_corrupt_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], format: str, damage: Callable[[bytes], bytes]
) -> None:
    assert name_problem(tmp_path / "bad", damage(encode(format))) is DropReason.CORRUPT
    assert capfd.readouterr().err == ""


def test_a_wav_of_unknown_length_from_a_pipe_is_whole(tmp_path: Path) -> None:
    content = bytearray(encode("WAV", "PCM_16"))
    data = content.index(b"data")
    content[4:8] = content[data + 4 : data + 8] = b"\xff" * 4
    path = tmp_path / "piped.wav"
    assert name_problem(path, content) is None
    assert len(read_clip(path)) == 2 * RATE_HZ


def test_a_flac_without_a_length_is_refused_with_the_way_out(tmp_path: Path) -> None:
    content = bytearray(encode("FLAC", "PCM_16"))
    # The last 36 bits before the checksum in the stream's first block are the number of samples.
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    (tmp_path / "piped.flac").write_bytes(content)
    with pytest.raises(ClipError, match="ffmpeg") as caught:
        inspect_clip(tmp_path / "piped.flac")
    assert caught.value.reason is DropReason.UNSUPPORTED


def test_an_mp3_of_varying_rate_without_index_is_not_cut_short(tmp_path: Path) -> None:
    content = encode("MP3", bitrate_mode="VARIABLE", compression_level=0.2)
    index = max(content.find(b"Xing"), content.find(b"Info"))
    assert index > 0
    second_frame = content.index(content[:2], index)
    path = tmp_path / "noindex.mp3"
    path.write_bytes(content[second_frame:])
    # Otherwise this file shows nothing: libsndfile must be wrong about it.
    assert abs(soundfile.info(path).frames - 2 * RATE_HZ) > 5000
    with pytest.raises(ClipError, match="without an index") as caught:
        check_clip(path)
    assert caught.value.reason is DropReason.UNSUPPORTED


def test_an_mp3_of_constant_rate_without_index_is_read(tmp_path: Path) -> None:
    content = encode("MP3", bitrate_mode="CONSTANT", compression_level=0.5)
    index = max(content.find(b"Xing"), content.find(b"Info"))
    if index > 0:
        content = content[content.index(content[:2], index) :]
    path = tmp_path / "noindex.mp3"
    assert name_problem(path, content) is None
    assert len(read_clip(path)) == pytest.approx(2 * RATE_HZ, abs=2400)


def test_damaged_files_raise_nothing_but_clip_errors_and_print_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(5)
    originals = [encode(format) for format in ("WAV", "FLAC", "OGG", "MP3")]
    problems = set()
    for _ in range(120):
        content = bytearray(chance.choice(originals))
        for _ in range(chance.choice((1, 4, 30))):
            content[chance.randrange(min(len(content), chance.choice((64, 10**9))))] = chance.randrange(256)
        problems.add(name_problem(tmp_path / "fuzz", content))
    assert {None, DropReason.CORRUPT, DropReason.TRUNCATED} <= problems
    assert capfd.readouterr().err == ""


def test_what_others_write_meanwhile_is_handed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with drop_lines(MPG123_REMARKS):
        os.write(2, b"[src/libmpg123/layer3.c:1804] error: dequantization failed!\n")
        os.write(2, b"a line of somebody else\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a line of somebody else\n"
    print("later", file=sys.stderr)
    assert capfd.readouterr().err == "later\n"

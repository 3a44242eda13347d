"""Files that libsndfile would shorten without a word, or whose decoder would write to the terminal."""

from __future__ import annotations

import io
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from myxtts.audio.clip_errors import ClipError, ClipProblem
from myxtts.audio.opening import MPG123_REMARKS
from myxtts.audio.reading import check_clip, inspect_clip, read_clip
from myxtts.devices.native_stderr import drop_lines

RATE_HZ = 22050


def make_speechlike(seconds: float = 2.0) -> np.ndarray:
    """Noise that comes and goes, so that lossy encoders vary their bit rate."""
    count = round(seconds * RATE_HZ)
    return np.random.default_rng(0).normal(0, 0.1, count) * (np.sin(np.arange(count) / 3000) > 0)


def encode(format: str, subtype: str | None = None, **options) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, make_speechlike(), RATE_HZ, format=format, subtype=subtype, **options)
    return buffer.getvalue()


def name_problem(path: Path, content: bytes) -> ClipProblem | None:
    path.write_bytes(content)
    try:
        check_clip(path)
    except ClipError as error:
        return error.problem
    return None


@pytest.mark.parametrize("format", ["WAV", "AIFF", "FLAC", "OGG", "MP3"])
def test_a_file_cut_in_the_middle_is_truncated(tmp_path: Path, format: str) -> None:
    content = encode(format)
    assert name_problem(tmp_path / "whole", content) is None
    assert name_problem(tmp_path / "cut", content[: len(content) * 2 // 3]) is ClipProblem.TRUNCATED


def test_a_cut_wav_is_known_by_its_header_alone(tmp_path: Path) -> None:
    content = encode("WAV", "PCM_16")
    (tmp_path / "cut.wav").write_bytes(content[:-500])
    with pytest.raises(ClipError, match="500 more bytes") as caught:
        inspect_clip(tmp_path / "cut.wav")
    assert caught.value.problem is ClipProblem.TRUNCATED


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
    assert caught.value.problem is ClipProblem.UNSUPPORTED


def test_one_flipped_bit_does_not_halve_an_ogg_clip(tmp_path: Path) -> None:
    content = bytearray(encode("OGG", "VORBIS"))
    content[len(content) * 2 // 3] ^= 1
    assert name_problem(tmp_path / "bit.ogg", content) is ClipProblem.CORRUPT


def test_a_damaged_flac_is_corrupt(tmp_path: Path) -> None:
    content = bytearray(encode("FLAC", "PCM_16"))
    content[len(content) // 3 : len(content) // 3 + 50] = bytes(50)
    assert name_problem(tmp_path / "bad.flac", content) is ClipProblem.CORRUPT


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
        inspect_clip(path)
    assert caught.value.problem is ClipProblem.UNSUPPORTED


def test_an_mp3_of_constant_rate_without_index_is_read(tmp_path: Path) -> None:
    content = encode("MP3", bitrate_mode="CONSTANT", compression_level=0.5)
    index = max(content.find(b"Xing"), content.find(b"Info"))
    if index > 0:
        content = content[content.index(content[:2], index) :]
    path = tmp_path / "noindex.mp3"
    assert name_problem(path, content) is None
    assert len(read_clip(path)) == pytest.approx(2 * RATE_HZ, abs=2400)


def test_a_header_with_an_absurd_rate_is_corrupt(tmp_path: Path) -> None:
    content = bytearray(encode("WAV", "PCM_16"))
    content[24:28] = (7).to_bytes(4, "little")
    assert name_problem(tmp_path / "rate.wav", content) is ClipProblem.CORRUPT


def test_zeros_instead_of_chunks_end_the_search(tmp_path: Path) -> None:
    content = encode("WAV", "PCM_16")[:12] + bytes(4096)
    assert name_problem(tmp_path / "zeros.wav", content) is ClipProblem.CORRUPT


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
    assert {None, ClipProblem.CORRUPT, ClipProblem.TRUNCATED} <= problems
    assert capfd.readouterr().err == ""


def test_the_mp3_decoder_does_write_to_the_terminal_when_not_held(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(encode("MP3"))
    content[len(content) // 3 : len(content) // 3 + 3000] = bytes(3000)
    path = tmp_path / "zeroed.mp3"
    path.write_bytes(content)
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.read(path)
    assert "MPEG" in capfd.readouterr().err
    with pytest.raises(ClipError):
        read_clip(path)
    assert capfd.readouterr().err == ""


def test_what_others_write_meanwhile_is_handed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with drop_lines(MPG123_REMARKS):
        os.write(2, b"[src/libmpg123/layer3.c:1804] error: dequantization failed!\n")
        os.write(2, b"a line of somebody else\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a line of somebody else\n"
    print("later", file=sys.stderr)
    assert capfd.readouterr().err == "later\n"


def test_stderr_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="inside"), drop_lines(MPG123_REMARKS):
        raise RuntimeError("inside")
    os.write(2, b"back\n")
    assert capfd.readouterr().err == "back\n"

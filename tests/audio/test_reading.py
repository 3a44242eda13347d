"""What a sound file gives, and which problem is named when it cannot be used."""

from __future__ import annotations

import io
import math
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from myxtts.audio.reading import BLOCK_FRAMES, MPG123_REMARKS, check_clip, inspect_clip, read_clip
from myxtts.devices.native_stderr import drop_lines
from myxtts.errors import ClipError, DropReason
from myxtts.units import SAMPLE_RATE_HZ
from tests.support.shared_files import find_shared


def write_tone(path: Path, *, seconds: float = 0.5, rate_hz: int = SAMPLE_RATE_HZ, **options) -> Path:
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * 440 * time_s), rate_hz, **options)
    return path


def find_problem(path: Path) -> DropReason | None:
    try:
        check_clip(path)
    except ClipError as error:
        return error.reason if str(path) in str(error) else None
    return None


def test_every_file_of_the_format_collection_gives_what_its_manifest_says(capfd: pytest.CaptureFixture[str]) -> None:
    folder = find_shared("data", "formats")
    rows = [line.split("\t") for line in (folder / "manifest.tsv").read_text().splitlines()[1:]]
    outcomes = {name: find_problem(folder / "audio" / name) for name, *_ in rows}
    must_decode = {name for name, expected, *_ in rows if expected == "decode"}
    must_fail = {name for name, expected, *_ in rows if expected == "reject-or-skip"}
    assert len(rows) == 35
    assert {name for name in must_decode if outcomes[name]} == set()
    assert {name for name in must_fail if not outcomes[name]} == {"short_10ms.wav"}, "the limits of a scan are for that"
    assert {name: str(problem) for name, problem in outcomes.items() if problem} == {
        "aac.m4a": "unsupported",
        "webm_opus.webm": "unsupported",
        "zero_samples.wav": "empty",
        "empty.wav": "empty",
        "silence_2s.wav": "silent",
        "truncated.wav": "truncated",
        "not_audio.wav": "corrupt",
    }
    assert capfd.readouterr().err == ""


def test_all_encodings_of_one_recording_sound_the_same() -> None:
    folder = find_shared("data", "formats") / "audio"
    original = read_clip(folder / "flac_22k.flac")
    encodings = [
        *("flac24_48k_stereo.flac", "mp3_cbr64.mp3", "mp3_vbr.mp3", "mp3_named.wav", "vorbis.ogg", "opus.opus"),
        *("wav_44k_stereo.wav", "wav_48k_24bit.wav", "wav_float32.wav", "wav_s32.wav", "wav_u8_8k.wav", "wav_8k.wav"),
        *("wav_mulaw_8k.wav", "wav_96k.wav", "wav_5p1.wav", "aiff.aiff", "quiet_-50db.wav", "dc_offset.wav"),
    ]
    for name in encodings:
        samples = read_clip(folder / name)
        assert samples.dtype == np.float32
        assert samples.ndim == 1
        assert abs(len(samples) - len(original)) <= 2, name
        shared = min(len(samples), len(original))
        similarity = np.corrcoef(samples[:shared], original[:shared])[0, 1]
        assert similarity > 0.96, f"{name}: {similarity:.3f}"


def test_the_header_is_told_without_decoding(tmp_path: Path) -> None:
    path = write_tone(tmp_path / "tone.wav", seconds=2, rate_hz=48000, subtype="PCM_24")
    info = inspect_clip(path)
    assert (info.frames, info.rate_hz, info.channels, info.encoding) == (96000, 48000, 1, "PCM_24")
    assert info.seconds == 2.0
    # Everything behind the header may be rubbish.
    content = bytearray(path.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    path.write_bytes(content)
    assert inspect_clip(path) == info


def test_channels_are_averaged_and_samples_beyond_full_scale_clipped(tmp_path: Path) -> None:
    channels = np.stack([np.full(100, 0.6), np.full(100, -0.2), np.full(100, 0.2)], axis=1)
    soundfile.write(tmp_path / "three.wav", channels, SAMPLE_RATE_HZ, subtype="FLOAT")
    np.testing.assert_allclose(read_clip(tmp_path / "three.wav"), 0.2, atol=1e-6)
    soundfile.write(tmp_path / "hot.wav", np.array([0.5, 1.5, -3.0]), SAMPLE_RATE_HZ, subtype="FLOAT")
    np.testing.assert_array_equal(read_clip(tmp_path / "hot.wav"), np.float32([0.5, 1.0, -1.0]))


def test_a_clip_longer_than_one_block_is_read_whole(tmp_path: Path) -> None:
    ramp = np.arange(BLOCK_FRAMES + 12345, dtype=np.int32) % 1000
    soundfile.write(tmp_path / "long.wav", (ramp << 16), SAMPLE_RATE_HZ, subtype="PCM_16")
    samples = read_clip(tmp_path / "long.wav")
    np.testing.assert_array_equal(np.rint(samples * 32768).astype(int), ramp)


def test_what_gives_no_bytes_is_missing_or_unreadable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    # Can be opened, and gives an error when it is read, as a bad sector does.
    (tmp_path / "bad_disk.wav").symlink_to("/proc/self/mem")
    assert find_problem(tmp_path / "nothing.wav") is DropReason.MISSING
    for name in ("pipe.wav", "folder.wav", "zero\0byte.wav", "loop.wav", "bad_disk.wav", "a" * 5000):
        assert find_problem(tmp_path / name) is DropReason.UNREADABLE, name[:20]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, -32768.0])
def test_what_is_no_sample_is_named(tmp_path: Path, value: float) -> None:
    soundfile.write(tmp_path / "bad.wav", np.array([[0.1, 0.2], [value, value]]), SAMPLE_RATE_HZ, subtype="FLOAT")
    problem = DropReason.CORRUPT if value == -32768.0 else DropReason.NAN
    assert find_problem(tmp_path / "bad.wav") is problem
    with pytest.raises(ClipError) as caught:
        read_clip(tmp_path / "bad.wav")
    assert caught.value.reason is problem


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        (np.zeros(1000), DropReason.SILENT),
        (np.full(1000, 0.25), DropReason.SILENT),
        (np.tile([3 / 32768, 0], 500), DropReason.SILENT),
        (np.tile([5 / 32768, 0], 500), None),
        (np.tile([[0.5, -0.5], [-0.5, 0.5]], (500, 1)), DropReason.SILENT),
    ],
    ids=["zeros", "constant", "dither", "quiet", "opposite channels"],
)
def test_silence_is_what_nobody_could_hear(tmp_path: Path, samples: np.ndarray, problem: DropReason | None) -> None:
    soundfile.write(tmp_path / "clip.wav", samples, SAMPLE_RATE_HZ, subtype="PCM_16")
    assert find_problem(tmp_path / "clip.wav") is problem
    assert check_clip(tmp_path / "clip.wav", most_seconds=0.01).frames == len(samples), "a longer one is not decoded"


# Files that libsndfile would shorten without a word, or whose decoder would write to the terminal.


def make_speechlike(seconds: float = 2.0) -> np.ndarray:
    """Noise that comes and goes, so that lossy encoders vary their bit rate."""
    count = round(seconds * SAMPLE_RATE_HZ)
    return np.random.default_rng(0).normal(0, 0.1, count) * (np.sin(np.arange(count) / 3000) > 0)


def encode(format: str, subtype: str | None = None, **options) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, make_speechlike(), SAMPLE_RATE_HZ, format=format, subtype=subtype, **options)
    return buffer.getvalue()


def name_problem(path: Path, content: bytes) -> DropReason | None:
    path.write_bytes(content)
    return find_problem(path)


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
    assert len(read_clip(path)) == 2 * SAMPLE_RATE_HZ


def test_a_flac_without_a_length_is_refused_with_the_way_out(tmp_path: Path) -> None:
    content = bytearray(encode("FLAC", "PCM_16"))
    # The last 36 bits before the checksum in the stream's first block are the number of samples.
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    (tmp_path / "piped.flac").write_bytes(content)
    with pytest.raises(ClipError, match="ffmpeg") as caught:
        inspect_clip(tmp_path / "piped.flac")
    assert caught.value.reason is DropReason.UNSUPPORTED


def find_index(content: bytes) -> int:
    """Where the index of an MP3 file is; -1 where it has none."""
    return max(content.find(b"Xing"), content.find(b"Info"))


def test_an_mp3_of_varying_rate_without_index_is_not_cut_short(tmp_path: Path) -> None:
    content = encode("MP3", bitrate_mode="VARIABLE", compression_level=0.2)
    path = tmp_path / "noindex.mp3"
    path.write_bytes(content[content.index(content[:2], find_index(content)) :])
    # Otherwise this file shows nothing: libsndfile must be wrong about it.
    assert abs(soundfile.info(path).frames - 2 * SAMPLE_RATE_HZ) > 5000
    with pytest.raises(ClipError, match="without an index") as caught:
        check_clip(path)
    assert caught.value.reason is DropReason.UNSUPPORTED


def test_an_mp3_of_constant_rate_without_index_is_read(tmp_path: Path) -> None:
    content = encode("MP3", bitrate_mode="CONSTANT", compression_level=0.5)
    if find_index(content) > 0:
        content = content[content.index(content[:2], find_index(content)) :]
    path = tmp_path / "noindex.mp3"
    assert name_problem(path, content) is None
    assert len(read_clip(path)) == pytest.approx(2 * SAMPLE_RATE_HZ, abs=2400)


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

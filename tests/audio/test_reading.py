"""What a sound file gives, and which problem is named when it cannot be used."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from myxtts.audio.reading import BLOCK_FRAMES, check_clip, inspect_clip, read_clip
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

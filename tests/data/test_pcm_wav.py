import io

import numpy as np
import pytest
import soundfile

from myxtts.data.pcm_wav import PCM_SCALE, find_samples
from tests.data.wav_files import OTHER, PLAIN
from tests.support.shared_files import find_shared


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files_have_the_decoder_s_samples_bit_for_bit(name):
    expected, rate_hz = soundfile.read(io.BytesIO(PLAIN[name]), dtype="float32")

    samples = find_samples(PLAIN[name])

    assert rate_hz == 22050
    assert (samples * PCM_SCALE).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", OTHER)
def test_other_files_are_left_to_the_decoder(name):
    assert find_samples(OTHER[name]) is None


def test_any_cut_leaves_no_shorter_clip():
    content = PLAIN["with a remark in front, as ffmpeg writes"]
    assert all(find_samples(content[:size]) is None for size in range(len(content)))


def test_real_recordings():
    for path in sorted(find_shared("data", "ljspeech_mini", "wavs").iterdir()):
        expected, _ = soundfile.read(path, dtype="float32")
        samples = find_samples(path.read_bytes())
        assert np.array_equal(samples * PCM_SCALE, expected)

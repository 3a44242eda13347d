"""Voices: from recordings, from files, by name."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile

from myxtts.errors import VoiceError
from myxtts.inference.cloning import VoiceCloner
from myxtts.inference.voices import Voice, find_voice, load_voice, read_references, save_voice
from tests.inference.builders import build_reference_xtts

RNG = np.random.default_rng(1)
VOICE = Voice(RNG.random((32, 64), np.float32), RNG.random(64, np.float32), bytes(range(32)))


def test_a_voice_comes_back_from_its_file(tmp_path):
    save_voice(VOICE, tmp_path / "v.safetensors")
    back = load_voice(tmp_path / "v.safetensors")
    np.testing.assert_array_equal(back.prompt_PC, VOICE.prompt_PC)
    np.testing.assert_array_equal(back.speaker_G, VOICE.speaker_G)
    assert back.maker == VOICE.maker == bytes(range(32))
    assert [path.name for path in tmp_path.iterdir()] == ["v.safetensors"]
    save_voice(replace(VOICE, maker=b""), tmp_path / "v.safetensors")
    assert load_voice(tmp_path / "v.safetensors").maker == b""


def test_a_voice_that_cannot_be_written_says_where(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(VoiceError, match=r"file/v\.safetensors: .*exists"):
        save_voice(VOICE, tmp_path / "file" / "v.safetensors")


def test_named_voices_are_found_or_suggested():
    speakers = {
        "Claribel": {"gpt_cond_latent": VOICE.prompt_PC[None], "speaker_embedding": VOICE.speaker_G[None, :, None]}
    }
    np.testing.assert_array_equal(find_voice(speakers, "Claribel").speaker_G, VOICE.speaker_G)
    with pytest.raises(VoiceError, match="Did you mean 'Claribel'"):
        find_voice(speakers, "Claribell")
    with pytest.raises(VoiceError, match=r"'Claribel', neither as a file nor in the model.*--save-voice, then --voice"):
        find_voice({}, "Claribel")
    with pytest.raises(VoiceError, match="lacks speaker_embedding"):
        find_voice({"half": {"gpt_cond_latent": VOICE.prompt_PC}}, "half")


def write_tone(path, seconds, level=0.3, rate_hz=22050):
    soundfile.write(path, level * np.sin(np.arange(round(seconds * rate_hz)) / 20), rate_hz)
    return path


def test_references_that_give_no_voice_are_refused(tmp_path):
    with pytest.raises(VoiceError, match="silent"):
        read_references([write_tone(tmp_path / "silent.wav", 2.0, level=0.0)])
    with pytest.raises(VoiceError, match="at least one"):
        read_references([])


def test_long_references_are_cut(tmp_path):
    (samples,) = read_references([write_tone(tmp_path / "long.wav", 35.0)])
    assert len(samples) == 30 * 22050


@pytest.fixture(scope="module")
def xtts():
    return build_reference_xtts()


def test_several_references_are_joined_for_the_prompt_and_averaged_for_the_speaker(xtts):
    first, second = (RNG.normal(0, 0.1, seconds * 22050).astype(np.float32) for seconds in (4, 8))
    cloner = VoiceCloner(xtts)
    both, one, other = (cloner.clone(each) for each in ([first, second], [first], [second]))
    # Chunks are 4 s: the first recording is one of the three.
    np.testing.assert_allclose(both.prompt_PC, (one.prompt_PC + 2 * other.prompt_PC) / 3, atol=1e-5)
    np.testing.assert_allclose(both.speaker_G, (one.speaker_G + other.speaker_G) / 2, atol=1e-6)

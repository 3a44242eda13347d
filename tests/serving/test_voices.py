"""The voices of a server: from the model, from a folder, from clients."""

from dataclasses import replace

import numpy as np
import pytest

from myxtts.audio.clip_errors import ClipError
from myxtts.inference.errors import VoiceError
from myxtts.inference.voices import Voice, save_voice
from myxtts.serving import voices as serving_voices
from myxtts.serving.errors import ServerStartError, UnknownVoiceError
from myxtts.serving.voices import Voices, check_voice_files, collect_voices


def make_voice(width=4):
    return Voice(np.ones((32, width), np.float32), np.zeros(0, np.float32))


class Model:
    """Knows one voice, and takes those that are four wide."""

    speakers = ("Claribel",)

    def find_voice(self, name):
        return make_voice()

    def clone_voice(self, paths):
        (self.cloned,) = paths
        return make_voice()

    def check_voice(self, voice):
        if voice.prompt_PC.shape[1] != 4:
            raise VoiceError("The voice must be made by a model like this one.")

    def describe_stranger(self, voice):
        return "Clone it again." if voice.maker else None


def test_voices_come_from_the_model_and_the_folder(tmp_path):
    save_voice(make_voice(), tmp_path / "ana.safetensors")
    (tmp_path / "bea.flac").write_bytes(b"a recording")
    (tmp_path / "notes.txt").write_text("no voice")
    model = Model()
    assert list(collect_voices(model, tmp_path)) == ["Claribel", "ana", "bea"]
    assert model.cloned == tmp_path / "bea.flac"
    assert list(collect_voices(model, None)) == ["Claribel"]


def test_two_voices_of_one_name_are_refused(tmp_path):
    save_voice(make_voice(), tmp_path / "Claribel.safetensors")
    with pytest.raises(ServerStartError, match="is a second 'Claribel'"):
        collect_voices(Model(), tmp_path)


def test_a_voice_of_another_model_is_named(tmp_path):
    save_voice(make_voice(8), tmp_path / "wide.safetensors")
    with pytest.raises(ServerStartError, match=r"wide\.safetensors: The voice must be made by"):
        collect_voices(Model(), tmp_path)


def test_a_voice_of_other_weights_is_taken_with_a_warning(tmp_path, caplog):
    save_voice(make_voice(), tmp_path / "ana.safetensors")
    save_voice(replace(make_voice(), maker=b"other"), tmp_path / "old.safetensors")
    assert list(collect_voices(Model(), tmp_path)) == ["Claribel", "ana", "old"]
    (record,) = caplog.records
    assert record.getMessage() == f"{tmp_path / 'old.safetensors'}: Clone it again."


def test_a_folder_without_voices_says_what_they_are(tmp_path):
    with pytest.raises(ServerStartError, match="--save-voice"):
        collect_voices(Model(), tmp_path)
    with pytest.raises(ServerStartError, match="must be a folder that can be read"):
        collect_voices(Model(), tmp_path / "nowhere")


def test_files_that_give_no_voice_are_seen_without_a_model(tmp_path):
    with pytest.raises(ServerStartError, match="must be a folder that can be read"):
        check_voice_files(tmp_path / "nowhere")
    with pytest.raises(ServerStartError, match="but holds none"):
        check_voice_files(tmp_path)
    save_voice(make_voice(), tmp_path / "ana.safetensors")
    check_voice_files(tmp_path)
    (tmp_path / "ben.safetensors").write_bytes(b"no voice")
    with pytest.raises(VoiceError, match=r"ben\.safetensors"):
        check_voice_files(tmp_path)
    (tmp_path / "ben.safetensors").unlink()
    (tmp_path / "empty.wav").touch()
    with pytest.raises(ClipError, match=r"empty\.wav"):
        check_voice_files(tmp_path)


def test_uploads_are_kept_for_those_who_know_their_names(monkeypatch):
    monkeypatch.setattr(serving_voices, "MOST_UPLOADS", 2)
    kept = Voices({"Ana": make_voice()})
    voices = [make_voice() for _ in range(3)]
    first, second = (kept.keep_upload(voice) for voice in voices[:2])
    assert first != second
    assert kept.names == ("Ana",)
    assert kept.find(first) is voices[0]
    third = kept.keep_upload(voices[2])
    # The second was not used for longest.
    assert kept.find(first) is voices[0]
    assert kept.find(third) is voices[2]
    with pytest.raises(UnknownVoiceError):
        kept.find(second)


def test_a_server_without_voices_of_its_own_asks_for_a_recording():
    with pytest.raises(UnknownVoiceError, match="POST /v1/audio/voices"):
        Voices({}).find("alloy")

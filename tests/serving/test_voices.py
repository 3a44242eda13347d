"""The voices of a server: from the model, from a folder, from clients."""

from dataclasses import replace

import numpy as np
import pytest

from myxtts.errors import ClipError, VoiceError
from myxtts.inference.voices import Voice, save_voice
from myxtts.serving import voices as serving_voices
from myxtts.serving.request import ApiError, ServerStartError
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


def test_voices_come_from_the_model_and_the_folder_those_of_other_weights_with_a_warning(tmp_path, caplog):
    save_voice(make_voice(), tmp_path / "ana.safetensors")
    save_voice(replace(make_voice(), maker=b"other"), tmp_path / "old.safetensors")
    (tmp_path / "bea.flac").write_bytes(b"a recording")
    (tmp_path / "notes.txt").write_text("no voice")
    model = Model()
    assert list(collect_voices(model, tmp_path)) == ["Claribel", "ana", "bea", "old"]
    assert model.cloned == tmp_path / "bea.flac"
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path / 'old.safetensors'}: Clone it again."]
    assert list(collect_voices(model, None)) == ["Claribel"]


@pytest.mark.parametrize(
    ("name", "width", "message"),
    [
        ("Claribel.safetensors", 4, "is a second 'Claribel'"),
        ("wide.safetensors", 8, r"wide\.safetensors: The voice must be made by"),
        ("notes.txt", None, "--save-voice"),
        (None, None, "must be a folder that can be read"),
    ],
)
def test_a_folder_that_gives_no_voices_is_refused(tmp_path, name, width, message):
    folder = tmp_path / "voices"
    if name is not None:
        folder.mkdir()
        save_voice(make_voice(width), folder / name) if width else (folder / name).touch()
    with pytest.raises(ServerStartError, match=message):
        collect_voices(Model(), folder)
    if width is None:
        with pytest.raises(ServerStartError, match=message):
            check_voice_files(folder)


@pytest.mark.parametrize(("name", "error"), [("ben.safetensors", VoiceError), ("empty.wav", ClipError)])
def test_files_that_give_no_voice_are_seen_without_a_model(tmp_path, name, error):
    save_voice(make_voice(), tmp_path / "ana.safetensors")
    check_voice_files(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(error, match=name):
        check_voice_files(tmp_path)


def test_uploads_are_kept_for_those_who_know_their_names(monkeypatch):
    monkeypatch.setattr(serving_voices, "MOST_UPLOADS", 2)
    kept = Voices({"Ana": make_voice()})
    voices = [make_voice() for _ in range(3)]
    first, second = (kept.keep_upload(voice) for voice in voices[:2])
    assert kept.names == ("Ana",)
    assert kept.find(first) is voices[0]
    # The second was not used for longest.
    third = kept.keep_upload(voices[2])
    assert kept.find(first) is voices[0]
    assert kept.find(third) is voices[2]
    with pytest.raises(ApiError, match="There is no voice"):
        kept.find(second)
    with pytest.raises(ApiError, match="POST /v1/audio/voices"):
        Voices({}).find("alloy")

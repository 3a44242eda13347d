"""A model that cannot speak is seen by its files, before anything is loaded."""

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.cli import serve, synthesize
from myxtts.cli.main import main
from myxtts.config import XTTSConfig
from myxtts.inference.errors import UnableToSpeakError
from myxtts.inference.speaking_model import find_speaking_model


def write_model(folder, name, **more):
    write_model_directory(folder, config=XTTSConfig(), model={name: np.ones(80, np.float32)}, **more)
    return folder


def test_what_lacks_a_gpt_or_a_vocabulary_is_refused(tmp_path):
    with pytest.raises(UnableToSpeakError, match="must have a GPT, but is a codec alone"):
        find_speaking_model(write_model(tmp_path / "codec", "mel_stats"))
    with pytest.raises(UnableToSpeakError, match=r"vocab\.json"):
        find_speaking_model(write_model(tmp_path / "mute", "gpt.mel_head.bias"))
    model = write_model(tmp_path / "model", "gpt.mel_head.bias", vocabulary="{}")
    assert find_speaking_model(model) == model


@pytest.mark.parametrize(
    ("module", "words"),
    [(synthesize, ["synthesize", "--text", "Hello.", "--speaker", "Ana", "--stream"]), (serve, ["serve"])],
)
def test_commands_refuse_a_codec_before_the_device_is_opened(tmp_path, monkeypatch, capsys, module, words):
    def open_device(**_):
        raise AssertionError("too late")

    monkeypatch.setattr(module, "open_speaking_device", open_device)
    codec = write_model(tmp_path / "codec", "mel_stats")
    assert main([*words, "--checkpoint", str(codec)]) == 2
    assert "is a codec alone. Give the folder of the run that trained a GPT" in " ".join(
        capsys.readouterr().err.split()
    )

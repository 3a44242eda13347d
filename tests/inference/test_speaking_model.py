"""A model that cannot speak is seen by its files, before anything is loaded."""

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.cli import serve, synthesize
from myxtts.cli.main import main
from myxtts.config import XTTSConfig


def write_model(folder, name, **more):
    write_model_directory(folder, config=XTTSConfig(), model={name: np.ones(80, np.float32)}, **more)
    return folder


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

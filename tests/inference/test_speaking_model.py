"""A model that cannot speak is seen by its files, before anything is loaded."""

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.cli.main import main
from myxtts.config import XTTSConfig


@pytest.mark.parametrize("words", [["synthesize", "--text", "Hello.", "--voice", "Ana", "--stream"], ["serve"]])
def test_commands_refuse_a_codec_before_the_device_is_opened(tmp_path, capsys, words):
    codec = tmp_path / "codec"
    write_model_directory(codec, config=XTTSConfig(), model={"mel_stats": np.ones(80, np.float32)})
    assert main([*words, "--checkpoint", str(codec)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "is a codec alone. Give the folder of the run that trained a GPT" in told
    assert "Device:" not in told

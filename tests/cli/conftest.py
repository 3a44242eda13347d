"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from myxtts.checkpoints.coqui_export import export_coqui
from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.cli.main import run_command
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import list_dvae_weights, list_xtts_weights
from tests.checkpoints.test_import_export import CONFIG, VOCABULARY, draw_tensors


@pytest.fixture(scope="session")
def coqui(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model: ours in `ours`, as Coqui's files in `theirs`."""
    folder = tmp_path_factory.mktemp("coqui")
    sizes = read_sizes(CONFIG.model)
    write_model_directory(
        folder / "ours",
        config=CONFIG,
        model=draw_tensors(list_xtts_weights(sizes.gpt, sizes.decoder, sizes.speaker), 1),
        dvae=draw_tensors(list_dvae_weights(sizes.dvae), 2),
        vocabulary=VOCABULARY.read_text(encoding="utf-8"),
        step=1,
        metrics={"val_loss": 1.0},
    )
    export_coqui(read_model_directory(folder / "ours"), folder / "theirs")
    return folder


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must refuse its words, by one message and exit code 2, and gives the message."""

    def run(command: str, *words: object, prog: str | None = None) -> str:
        name = prog or f"myxtts {command}"
        code = run_command(command, [str(word) for word in words], name)
        said = capsys.readouterr()
        assert code == 2, said.err
        assert said.err.startswith(f"{name}: error: ")
        assert said.err.count("error:") == 1
        assert said.out == ""
        return said.err

    return run

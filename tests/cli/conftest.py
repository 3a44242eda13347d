"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from myxtts.checkpoints.coqui_export import export_coqui
from myxtts.checkpoints.model_directory import read_model_directory
from myxtts.cli.main import run_command
from tests.checkpoints.hostile_models import write_whole_model


@pytest.fixture(scope="session")
def coqui(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model: ours in `ours`, as Coqui's files in `theirs`."""
    folder = tmp_path_factory.mktemp("coqui")
    write_whole_model(folder / "ours", step=1, metrics={"val_loss": 1.0})
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

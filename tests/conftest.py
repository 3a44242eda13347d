"""Fixtures shared by all rooms."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from myxtts.devices.machine import prepare_environment
from tests.support.nvml import COMPILER, NO_COMPILER, StubCard, StubMachine, build_stub
from tests.support.processes import CHANGES_BEHAVIOUR

# Before any test imports TensorFlow: what is tested is what users run.
prepare_environment(os.environ)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user has exported for real runs must not decide about tests."""
    for name in CHANGES_BEHAVIOUR:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered about corpora goes into the user's cache: not in a test. One for all workers, as they share corpora."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield


@pytest.fixture(autouse=True)
def _package_logger_as_before() -> Iterator[None]:
    """A command that is run inside a test sets the logger up for a terminal that is gone afterwards."""
    logger = logging.getLogger("myxtts")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled NVML stub."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    return build_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def make_machine(nvml_library: Path, tmp_path: Path) -> Callable[..., StubMachine]:
    """A machine with these cards, played by the NVML stub."""

    def make(*cards: StubCard, extra: list[str] | None = None) -> StubMachine:
        return StubMachine(nvml_library, tmp_path / "machine.txt", list(cards), extra or [])

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows what long tests have to tell (`record_property("summary", lines)`), however many processes ran them."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, lines in report.user_properties:
                if name == "summary":
                    terminalreporter.section(f"{report.nodeid}: {outcome}")
                    for line in lines:
                        terminalreporter.line(line)


@pytest.fixture
def connections() -> Iterator[Callable[..., Any]]:
    """Opens connections of a client, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def connect(client: Any, said: bytes = b"") -> Any:
            connection = stack.enter_context(client.connect())
            connection.sendall(said)
            return connection

        yield connect

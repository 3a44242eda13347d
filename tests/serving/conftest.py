"""A running server with a tiny model, shared by the tests that need a real one."""

import signal

import pytest

from tests.serving.command import start_server, write_material


@pytest.fixture(scope="session")
def serving_folder(tmp_path_factory):
    return write_material(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="session")
def running(serving_folder):
    with start_server(serving_folder, "--allow-upload", "--rate", "10000") as server:
        yield server
        code, out = server.stop(signal.SIGINT)
    assert code == 0, server.log.read_text()
    assert out.strip().endswith("Stopped.")

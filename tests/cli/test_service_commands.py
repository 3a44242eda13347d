"""`myxtts data-dispatcher`, `data-worker` and `data-prepare`, as far as they need no TensorFlow."""

import contextlib
import os
import signal
import socket
import sys
import weakref

import pytest

from myxtts.cli import service_server
from myxtts.cli.main import main
from myxtts.cli.service_server import run_until_stopped
from myxtts.data.service import address as service_address
from myxtts.devices.environment import VISIBLE_DEVICES


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    monkeypatch.setenv(VISIBLE_DEVICES, "0")


@pytest.fixture
def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def test_a_worker_without_a_dispatcher_waits_for_a_while_and_says_what_to_start(free_port, capsys):
    assert main(["data-worker", "--dispatcher", f"127.0.0.1:{free_port}", "--wait", "0.1"]) == 1
    error = capsys.readouterr().err
    assert f"Nobody answers at 127.0.0.1:{free_port} yet: waiting up to 0.1 s." in error
    assert f"There is no dispatcher at 127.0.0.1:{free_port}. Start it there with `myxtts data-dispatcher`" in error
    assert "Warning" not in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["data-worker"], "--dispatcher"),
        (["data-worker", "--dispatcher", "nowhere"], "must be like 10.0.0.5:5050, but is 'nowhere'"),
        (["data-dispatcher", "--port", "70000"], "--port must be from 0 to 65535, but is 70000"),
        (["data-dispatcher", "--host", "192.0.2.77"], "--host 192.0.2.77 --port 5050 cannot be used"),
        (["data-prepare"], "--out"),
    ],
)
def test_wrong_words_are_explained(words, text, capsys):
    assert main(words) == 2
    assert text in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(capsys):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        assert main(["data-dispatcher", "--port", str(port)]) == 2
    assert f"--port {port} cannot be used: Address already in use" in capsys.readouterr().err


def test_whoever_lets_other_machines_in_is_warned_that_nobody_is_asked_who_they_are(free_port, capsys):
    words = ["data-worker", "--dispatcher", f"127.0.0.1:{free_port}", "--wait", "0", "--host", "0.0.0.0"]
    assert main(words) == 1
    warning = capsys.readouterr().err
    assert "TensorFlow's gRPC asks nobody who\nthey are" in warning
    assert "run\ncode as you" in warning
    assert max(map(len, service_server.UNAUTHENTICATED.splitlines())) <= 80


def test_a_worker_that_only_this_machine_reaches_is_told_so(capsys, monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.5")
    monkeypatch.setattr("myxtts.cli.data_worker.wait_for_answer", lambda *_: False)
    assert main(["data-worker", "--dispatcher", "node7:5050"]) == 1
    assert "only this machine reaches it. If the\ndispatcher at node7:5050" in capsys.readouterr().err


@pytest.fixture
def ending(monkeypatch):
    """The process lives on, with its signals as they were, and the exit code is told as `SystemExit`."""

    def leave(code):
        # Let go, it would wait for its dispatcher.
        assert SERVERS[0]() is not None
        sys.exit(code)

    monkeypatch.setattr(os, "_exit", leave)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


class MadeUpServer:
    def __init__(self):
        self.handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
        SERVERS.append(weakref.ref(self))


SERVERS: list[weakref.ref[MadeUpServer]] = []


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_is_kept_until_a_signal_and_not_waited_for(number, capsys):
    def tell():
        (server,) = SERVERS
        # Python answers no signal while TensorFlow starts a server: the system does.
        assert server().handlers == [signal.SIG_DFL, signal.SIG_DFL]
        # The signal comes as soon as it is said that the server runs.
        signal.raise_signal(number)

    SERVERS.clear()
    with pytest.raises(SystemExit, match=r"^0$"):
        run_until_stopped(MadeUpServer, tell)
    heard = capsys.readouterr()
    assert heard.out == "Stopped.\n"
    assert heard.err == "... starting, which takes TensorFlow some seconds\n"


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b""])
def test_what_is_no_dispatcher_is_not_waited_for(greeting, capsys, monkeypatch):
    monkeypatch.setattr(service_address, "_GREETING_SECONDS", 0.1)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        accepted = []
        connect = socket.create_connection

        def connect_and_greet(*arguments):
            connection = connect(*arguments)
            accepted.append(server.accept()[0])
            accepted[-1].sendall(greeting)
            return connection

        monkeypatch.setattr(socket, "create_connection", connect_and_greet)
        assert main(["data-worker", "--dispatcher", f"127.0.0.1:{port}"]) == 1
        for each in accepted:
            each.close()
    assert f"answers at 127.0.0.1:{port} must be a dispatcher, but it does not speak gRPC" in capsys.readouterr().err


def test_a_dispatcher_whose_name_nobody_knows_is_waited_for_and_then_named(capsys, monkeypatch):
    def fail(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert main(["data-worker", "--dispatcher", "nod7:5050", "--wait", "0.1"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    unknown = "This machine knows no 'nod7' (Name or service not known): check the name."
    assert f"Nobody answers at nod7:5050 yet: waiting up to 0.1 s. {unknown}" in error
    assert f"There is no dispatcher at nod7:5050. {unknown} Start it there with" in error

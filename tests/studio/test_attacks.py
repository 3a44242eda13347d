"""What clients do that want to keep the studio's own page out: the attacks on the speech server, tried here."""

import contextlib
import http.client
import os

import psutil
import pytest

from tests.serving.hosting import give_up, read_answer
from tests.serving.test_limits import send_on
from tests.studio.hosting import BYTES, DEMO, TOKEN, host_studio
from tests.studio.material import write_run
from tests.support.tiny_run import wait_for

CLIP = (DEMO / "slt_01.flac").read_bytes()
HALF_HEADERS = b"GET /recordings HTTP/1.1\r\nHost:"


def make_head(client, path, length, kind, method="POST", cookie=None):
    cookie = f"myxtts-studio-{client.port}={TOKEN}" if cookie is None else cookie
    lines = [f"Host: 127.0.0.1:{client.port}", f"Origin: {client.origin}", f"Cookie: {cookie}", f"Content-Type: {kind}"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, f"Content-Length: {length}", "\r\n"]).encode()


def count_connections(client):
    """That the server has with clients."""
    return sum(
        each.laddr.port == client.port and each.status == psutil.CONN_ESTABLISHED
        for each in psutil.Process().net_connections("tcp")
    )


def make_upload(client, length=5_000_000):
    return make_head(client, "/recordings?title=a", length, BYTES["Content-Type"])


@pytest.mark.parametrize("said", [b"", HALF_HEADERS], ids=["silence", "half headers"])
def test_headers_must_come_within_their_time(tmp_path, connections, said):
    with host_studio(tmp_path, headers_s=0.1) as (client, _):
        connection = connections(client, said)
        answer = read_answer(connection)
        assert (answer.status, "within 0.1 s" in answer.error["message"]) == (408, True)
        assert connection.recv(1) == b""


def test_one_client_that_does_not_finish_asking_locks_nobody_else_out(tmp_path, connections):
    with host_studio(tmp_path, headers_s=600.0) as (client, _):
        form = make_head(client, "/training/plan", 50, "application/x-www-form-urlencoded") + b"name="
        for index in range(64):
            connections(client, (b"", HALF_HEADERS, form)[index % 3])
        assert client.ask("GET", "/recordings").status == 429
        other = type(client)(client.port, address="127.0.0.2")
        assert other.ask("GET", "/recordings").status == 200


def test_a_form_that_does_not_come_is_not_waited_for(tmp_path, connections, monkeypatch):
    monkeypatch.setattr("myxtts.studio.door.FORM_S", 0.2)
    with host_studio(tmp_path) as (client, _):
        form = make_head(client, "/training/plan", 50, "application/x-www-form-urlencoded") + b"name="
        assert read_answer(connections(client, form)).status == 408
        large = make_head(client, "/training/plan", 1 << 30, "application/x-www-form-urlencoded")
        assert read_answer(connections(client, large)).status == 413


def test_recordings_that_come_at_a_time_are_few_and_the_rest_is_refused_before_it_is_read(tmp_path, connections):
    before = psutil.Process().memory_info().rss
    with host_studio(tmp_path) as (client, studio):
        opened = [connections(client, make_upload(client) + b"x" * 1000) for _ in range(3)]
        wait_for(lambda: len(os.listdir(studio.workspace.recordings)) == 3, lambda: True, "no three recordings come")
        for _ in range(40):
            connection = connections(client, make_upload(client))
            answer = read_answer(connection)
            assert (answer.status, "4 recordings at a time" in answer.error["message"]) == (503, True)
        assert psutil.Process().memory_info().rss - before < 60_000_000
        assert len(os.listdir(studio.workspace.recordings)) == 3
        for connection in opened:
            connection.close()
        wait_for(lambda: not os.listdir(studio.workspace.recordings), lambda: True, "what was given up stays")
        assert client.upload(CLIP).status == 201


def test_an_upload_goes_to_the_disk_and_not_into_memory(tmp_path, connections):
    with host_studio(tmp_path) as (client, studio):
        before = psutil.Process().memory_info().rss
        connection = connections(client, make_upload(client, 200 << 20))
        part = b"x" * (1 << 20)
        for _ in range(199):
            connection.sendall(part)
        (coming,) = studio.workspace.recordings.iterdir()
        wait_for(lambda: coming.stat().st_size == 199 << 20, lambda: True, "it does not come")
        assert psutil.Process().memory_info().rss - before < 60_000_000, "of 199 MB"
        connection.sendall(part)
        assert read_answer(connection).status == 400
        assert list(studio.workspace.recordings.iterdir()) == []


def test_wrong_tokens_are_told_to_wait_and_lock_nobody_out(tmp_path):
    with host_studio(tmp_path) as (client, _):
        wrong = [client.ask("GET", f"/?token={n}", Cookie="").status for n in range(20)]
        wrong += [
            client.ask("GET", "/recordings", Cookie=f"myxtts-studio-{client.port}=x{n}").status for n in range(20)
        ]
        assert wrong == [401] * 30 + [429] * 10
        assert client.ask("GET", "/recordings").status == 200
        entered = client.ask("GET", f"/?token={TOKEN}", Cookie="")
        assert (entered.status, TOKEN in entered.headers["Set-Cookie"]) == (200, True)


def test_without_the_token_no_body_is_taken(tmp_path, connections):
    with host_studio(tmp_path, headers_s=0.2) as (client, studio):
        head = make_head(client, "/recordings?title=a", 5_000_000, BYTES["Content-Type"], cookie="x=y")
        connection = connections(client, head)
        assert read_answer(connection).status == 401
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_on(connection, b"x" * 1000, lambda: client.ask("GET", "/studio.css"))
        assert list(studio.workspace.recordings.iterdir()) == []


def test_who_reads_nothing_loses_the_connection_and_others_are_served(tmp_path):
    with host_studio(tmp_path, send_s=0.3) as (client, studio):
        assert client.upload(CLIP).status == 201
        (recording,) = studio.workspace.list_recordings()
        sound = studio.workspace.find_recording(recording.id)[1]
        sound.write_bytes(bytes(50 << 20))
        idle = [client.start("GET", f"/recordings/{recording.id}/sound") for _ in range(5)]
        assert client.ask("GET", "/recordings").status == 200
        wait_for(lambda: count_connections(client) == 0, lambda: True, "who reads nothing is kept")
        for connection in idle:
            with contextlib.closing(connection), pytest.raises((http.client.IncompleteRead, ConnectionError)):
                connection.getresponse().read()
        with contextlib.closing(client.open("GET", f"/recordings/{recording.id}/sound")) as response:
            assert len(response.read()) == 50 << 20


def test_pages_of_a_run_that_are_closed_are_no_longer_told(tmp_path):
    with host_studio(tmp_path) as (client, studio):
        write_run(studio.workspace.runs / "run")
        for _ in range(70):
            response = client.open("GET", "/runs/run/events")
            assert response.readline().startswith(b"event:")
            give_up(response)
        assert client.ask("GET", "/recordings").status == 200

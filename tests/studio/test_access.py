"""Who is let into a studio, what may be brought in, and that nothing outside its workspace is reached."""

import errno
import os
import socket

import pytest

from myxtts.studio import door
from tests.serving.hosting import read_answer
from tests.studio.hosting import BYTES, DEMO, TOKEN, host_studio
from tests.support.tiny_run import wait_for

CLIP = (DEMO / "slt_01.flac").read_bytes()


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    with host_studio(tmp_path_factory.mktemp("studio") / "workspace", most_upload_bytes=1 << 20) as (client, studio):
        yield client, studio


@pytest.fixture
def client(hosted):
    return hosted[0]


@pytest.fixture
def root(hosted):
    return hosted[1].workspace.root


def list_files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_the_address_with_the_token_opens_the_door_and_leaves_a_cookie_that_scripts_cannot_read(client):
    entered = client.ask("GET", f"/?token={TOKEN}", Cookie="", Origin="")
    assert entered.status == 200
    cookie = entered.headers["Set-Cookie"]
    assert f"myxtts-studio-{client.port}={TOKEN}" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    page = client.ask("GET", "/recordings", Cookie=cookie.split(";")[0], Origin="")
    assert page.status == 200
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/", "/recordings", "/speak", "/studio.css", "/static/studio.js", "/?token=wrong"])
@pytest.mark.parametrize("cookie", ["", "myxtts-studio={}", "myxtts-studio-{}=wrong", "myxtts-studio-{}="])
def test_without_the_token_nobody_sees_anything(client, path, cookie):
    answer = client.ask("GET", path, Cookie=cookie.format(client.port))
    assert answer.status == 401
    assert b"myxtts studio" in answer.body


def test_a_page_that_has_pointed_its_own_name_at_this_machine_is_refused(client):
    for host in ("evil.example", f"evil.example:{client.port}", "127.0.0.1.evil.example", ""):
        assert client.ask("GET", "/recordings", Host=host or " ").status in (400, 421), host
    assert client.ask("GET", "/recordings", Host=f"localhost:{client.port}").status == 200


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{}"])
def test_other_origins_change_nothing(client, root, origin):
    before = list_files(root)
    answer = client.upload(CLIP, Origin=origin.format(client.port))
    assert answer.status == 403
    assert answer.error["code"] == "foreign_origin"
    assert list_files(root) == before


def test_a_recording_is_kept_under_a_name_of_ours_whatever_its_own_is(client, root):
    title = "../../../etc/cron.d/x\u202e<script>alert(1)</script>"
    answer = client.upload(CLIP, title)
    assert answer.status == 201
    assert b"<script>" not in answer.body
    (sound,) = (root / "recordings").glob("*.flac")
    assert list_files(root.parent) == [sound, sound.with_suffix(".json")]
    got = client.ask("GET", f"/recordings/{sound.stem}/sound", Range="bytes=0-3")
    assert (got.status, got.body) == (206, b"fLaC")
    assert client.ask("DELETE", f"/recordings/{sound.stem}").status == 200
    assert list_files(root) == []


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "..%2f..%2fsecret", "%2fetc%2fpasswd", "a%00b", "A", "x" * 300, "\u0661"]
)
def test_no_name_leads_out_of_the_workspace(client, root, name):
    (root.parent / "secret").mkdir(exist_ok=True)
    quoted = name if name.isascii() else "%D9%A1"
    for path in ("/recordings/{}/sound", "/static/{}", "/static/../{}"):
        assert client.ask("GET", path.format(quoted)).status in (400, 404), path
    assert client.ask("GET", f"/speak/voices?model=runs/{quoted}").status == 404
    assert client.ask("DELETE", f"/recordings/{quoted}").status in (404, 405)


def test_a_link_out_of_the_workspace_is_not_followed(client, root):
    assert client.upload(CLIP).status == 201
    (sound,) = (root / "recordings").glob("*.flac")
    sound.unlink()
    sound.symlink_to("/etc/hostname")
    assert client.ask("GET", f"/recordings/{sound.stem}/sound").status == 404
    for path in (sound, sound.with_suffix(".json")):
        path.unlink()


@pytest.mark.parametrize(
    "content",
    [b"", b"MZ" + bytes(100), b"#!/bin/sh\nrm -rf /\n", b"\x1aE\xdf\xa3" + bytes(500), b"RIFF\xff\xff\xff\xffWAVEfmt ", b"<html>"],
)  # fmt: skip
def test_what_is_no_sound_is_refused_by_its_content(client, root, content):
    answer = client.upload(content, "song.wav")
    assert answer.status == 400
    assert str(root) not in answer.error["message"]
    assert list_files(root) == []


def test_too_much_is_refused_before_it_has_come_and_while_it_comes(client, root):
    with client.connect() as connection:
        connection.sendall(make_head(client, "Content-Length: 999999999"))
        assert read_answer(connection).status == 413
    with client.connect() as connection:
        connection.sendall(make_head(client, "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        for _ in range(17):
            connection.sendall(chunk)
        assert read_answer(connection).status == 413
    assert list_files(root) == []


def make_head(client, *lines):
    own = [f"Host: 127.0.0.1:{client.port}", f"Origin: {client.origin}", f"Cookie: myxtts-studio-{client.port}={TOKEN}"]
    return "\r\n".join(["POST /recordings?title=a HTTP/1.1", *own, "Content-Type: application/octet-stream", *lines, "\r\n"]).encode()  # fmt: skip


def test_a_client_that_stops_sending_is_left_and_nothing_stays(client, root, monkeypatch):
    monkeypatch.setattr(door, "STALLED_BODY_S", 0.3)
    with client.connect() as connection:
        connection.sendall(make_head(client, "Content-Length: 5000") + CLIP[:100])
        assert read_answer(connection).status == 408
    with client.connect() as connection:
        connection.sendall(make_head(client, "Content-Length: 5000") + CLIP[:100])
        connection.shutdown(socket.SHUT_RDWR)
    assert client.ask("GET", "/recordings").status == 200
    wait_for(lambda: list_files(root) == [], lambda: True, "what a lost client had sent stays")


def test_a_full_disk_is_told_and_nothing_stays(client, root, monkeypatch):
    def write(descriptor, part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(door.os, "write", write)
    answer = client.upload(CLIP)
    assert answer.status == 507
    assert "disk of the workspace is full" in answer.error["message"]
    assert list_files(root) == []


def test_a_form_of_another_site_has_the_wrong_type(client):
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        assert client.upload(CLIP, **{"Content-Type": kind}).status == 415
    assert BYTES["Content-Type"] == "application/octet-stream"

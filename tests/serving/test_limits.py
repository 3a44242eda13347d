"""How much, how often, how many at once; and what clients do that want to keep others out."""

import contextlib
import http.client
import time
from collections import deque

import psutil
import pytest

from myxtts.serving.limits import RateLimiter, name_client
from myxtts.serving.request import ApiError
from tests.serving.hosting import CHUNK_SAMPLES, VOICE, GatedSynthesizer, host, read_answer

SPEECH = "/v1/audio/speech"
ORDER = {"input": "Hello.", "voice": "Ana", "stream": True}
HALF_HEADERS = b"GET /healthz HTTP/1.1\r\nHost:"
HALF_BODY = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
UPLOAD = b"POST /v1/audio/voices?consent=yes HTTP/1.1\r\nHost: localhost\r\nContent-Type: audio/wav\r\nContent-Length: 4000000\r\n\r\n"


def host_willing(chunks=5, **limits):
    """A server whose model says at once what it is asked for."""
    synthesizer = GatedSynthesizer(chunks)
    synthesizer.open_gate()
    return host(synthesizer, {"Ana": VOICE}, **limits)


def send_on(connection, part, ask=lambda: None):
    """Sends a few megabytes in parts, for a server that shall not take them all."""
    for _ in range(4000):
        connection.sendall(part)
        ask()


def check_refusal(answer, status, words):
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
    assert words in answer.error["message"]
    assert int(answer.headers["Retry-After"]) > 0


def test_one_client_that_does_not_finish_asking_locks_nobody_else_out(connections):
    with host_willing(headers_s=600, body_s=600) as client:
        for index in range(64):
            connections(client, (b"", HALF_HEADERS, HALF_BODY)[index % 3])
        check_refusal(client.ask("GET", "/healthz"), 429, "64 connections, but this is one more")
        assert client.move("127.0.0.2").speak().status == 200


@pytest.mark.parametrize(
    ("limits", "status", "words"),
    [({"connections_per_client": 1}, 429, "1 connections"), ({"connections": 1}, 503, "1 connections at most")],
)
def test_a_connection_with_a_request_in_hand_stays_and_one_more_is_refused(limits, status, words):
    synthesizer = GatedSynthesizer()
    with host(synthesizer, {"Ana": VOICE}, **limits) as client:
        synthesizer.gate.release()
        response = client.open("POST", SPEECH, ORDER)
        check_refusal(client.ask("GET", "/healthz"), status, words)
        check_refusal(client.speak(), status, words)
        if status == 429:
            assert client.move("127.0.0.2").count_requests() == 1
        synthesizer.open_gate()
        assert len(response.read()) == 44 + 5 * 2 * CHUNK_SAMPLES


@pytest.mark.parametrize(
    "said",
    [b"", HALF_HEADERS, HALF_HEADERS + b" localhost\r\n\r\n" + HALF_HEADERS],
    ids=["silence", "half headers", "half headers after a request"],
)
def test_headers_must_come_within_their_time(connections, said):
    with host_willing(headers_s=0.1) as client:
        connection = connections(client, said)
        if len(said) > len(HALF_HEADERS):
            assert read_answer(connection).status == 200
        check_refusal(read_answer(connection), 408, "within 0.1 s")
        assert connection.recv(1) == b""


def test_a_body_that_goes_on_after_its_refusal_is_ended(connections):
    with host_willing(headers_s=0.1) as client:
        connection = connections(client, UPLOAD)
        assert read_answer(connection).status == 403
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_on(connection, b"x" * 1000, lambda: client.ask("GET", "/healthz"))


@pytest.mark.parametrize("said", [b"\0\0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: " + b"x" * 20_000], ids=["noise", "long"])
def test_what_is_no_request_is_told_in_json(connections, said):
    with host_willing() as client:
        answer = read_answer(connections(client, said))
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert "must be HTTP/1.1 with headers up to 16384 bytes" in answer.error["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_read_nothing_lose_their_places(stream):
    synthesizer = GatedSynthesizer(chunks=400)
    with host(synthesizer, {"Ana": VOICE}, send_s=0.2) as client:
        order = {**ORDER, "stream": stream, "response_format": "wav"}
        others = [client.move(f"127.0.0.{2 + index // 7}") for index in range(8)]
        idle = [other.start("POST", SPEECH, order) for other in others]
        client.wait_for_requests(8)
        synthesizer.open_gate()
        client.wait_for_requests(0)
        assert client.speak().status == 200
        for connection in idle:
            with contextlib.closing(connection), pytest.raises((http.client.IncompleteRead, ConnectionError)):
                connection.getresponse().read()


def test_a_client_that_asks_on_and_on_and_reads_nothing_is_ended(connections):
    with host_willing(send_s=0.2) as client:
        connection = connections(client)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_on(connection, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)


def test_a_client_that_reads_much_slower_than_it_could_listen_loses_its_place():
    synthesizer = GatedSynthesizer(chunks=4000)
    synthesizer.rate_hz = 100 * CHUNK_SAMPLES * 100
    synthesizer.open_gate()
    with host(synthesizer, {"Ana": VOICE}, send_s=1.0) as client:
        # It never stops reading, so only the time for all of it tells.
        with (
            contextlib.closing(client.open("POST", SPEECH, ORDER)) as response,
            pytest.raises(http.client.IncompleteRead),
        ):
            deque(iter(lambda: time.sleep(0.02) or response.read(1 << 16), b""), maxlen=0)
        client.wait_for_requests(0)


def test_unfinished_recordings_are_few_and_the_rest_is_refused_before_it_is_read(connections):
    before = psutil.Process().memory_info().rss
    with host_willing(allow_upload=True, body_s=600) as client:
        opened = [connections(client, UPLOAD) for _ in range(60)]
        part = b"x" * 2_000_000
        for connection in opened:
            connection.sendall(part)
        for connection in opened[3:]:
            check_refusal(read_answer(connection), 503, "4 recordings at a time, and the last place is for another")
        grown = psutil.Process().memory_info().rss - before
        assert grown < 60_000_000, "of 120 MB that were sent"
        assert client.speak().status == 200
        other = client.move("127.0.0.2")
        answer = other.ask("POST", "/v1/audio/voices?consent=yes", b"x", **{"Content-Type": "audio/wav"})
        assert (answer.status, "cannot be read as sound" in answer.error["message"]) == (400, True)


def test_a_client_has_so_many_requests_a_minute_and_others_have_theirs():
    now = [0.0]
    limiter = RateLimiter(2, clock=lambda: now[0])
    limiter.count("10.0.0.1")
    now[0] = 20.0
    limiter.count("10.0.0.1")
    limiter.count("10.0.0.2")
    with pytest.raises(ApiError, match=r"2 requests a minute.*Wait 40 s") as caught:
        limiter.count("10.0.0.1")
    assert caught.value.kind.headers == {"Retry-After": "40"}
    now[0] = 60.0
    limiter.count("10.0.0.1")
    with pytest.raises(ApiError, match="2 requests a minute"):
        limiter.count("10.0.0.1")
    now[0] = 121.0
    limiter.count("10.0.1.1")
    assert list(limiter._times) == ["10.0.1.1"], "clients of the past are forgotten"


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_client(address, client):
    assert name_client(address) == client

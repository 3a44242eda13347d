"""A thousand requests, many of which nobody waits for: nothing is lost, nothing breaks, memory stays."""

import contextlib
import json
import random
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.serving.command import start_server
from tests.serving.hosting import give_up

REQUESTS, WARM_UP, CLIENTS = 1000, 200, 6
MOST_GROWTH = 40 << 20
"""Bytes over 800 requests: 50 KB for each would be a leak of the size of its sound."""
TEXTS = ("No.", "Hello there, you.", "Good morning to us all, and to those who wait. Hello.")


def read_metrics(client):
    lines = client.ask("GET", "/metrics").body.decode().splitlines()
    return {name: float(figure) for name, figure in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def send(client, number):
    """One request of any kind, read to its end or left at some moment; whether it was to be heard whole."""
    draw = random.Random(number)
    is_streamed, leaves = draw.random() < 0.7, draw.choice(["no", "no", "before", "within"])
    fields = {"input": draw.choice(TEXTS), "voice": "narrator", "seed": number, "stream": is_streamed, "max_codes": 40}
    other = client.move(f"127.0.0.{2 + number % CLIENTS}")
    connection = other.start("POST", "/v1/audio/speech", fields)
    if leaves == "before":
        connection.close()
        return False
    response = connection.getresponse()
    assert response.status == 200, (number, response.read())
    if leaves == "within" and is_streamed:
        response.read(draw.choice([1, 44, 5000]))
        # A short one may have come whole meanwhile.
        if not response.isclosed():
            give_up(response)
            return False
    with contextlib.closing(response):
        assert len(response.read()) > 44
    return True


@pytest.mark.soak
def test_a_thousand_requests_with_aborts_leave_nothing_behind(serving_folder):
    with (
        start_server(serving_folder, "--rate", "100000", "--queue", "64") as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        client, process = server.client, psutil.Process(server.process.pid)
        whole = sum(pool.map(lambda number: send(client, number), range(WARM_UP)))
        client.wait_for_requests(0)
        before = process.memory_info().rss
        whole += sum(pool.map(lambda number: send(client, number), range(WARM_UP, REQUESTS)))
        client.wait_for_requests(0)
        grown = process.memory_info().rss - before
        figures = read_metrics(client)
        outcomes = {
            name: figures[f'myxtts_requests_total{{outcome="{name}"}}'] for name in ("spoken", "left", "cut_off")
        }
        print(f"grown by {grown >> 10} KiB in {REQUESTS - WARM_UP} requests; {outcomes}")
        # One that was left before its body had come was never asked.
        assert REQUESTS * 0.8 < sum(outcomes.values()) <= REQUESTS
        assert (
            figures['myxtts_requests_total{outcome="failed"}']
            == figures['myxtts_requests_total{outcome="refused"}']
            == 0
        )
        assert whole <= outcomes["spoken"]
        assert outcomes["left"] + outcomes["cut_off"] > 50
        assert figures["myxtts_rows_in_flight"] == figures["myxtts_rows_waiting"] == 0
        assert grown < MOST_GROWTH
        assert json.loads(client.ask("GET", "/healthz").body)["status"] == "ok"
        assert "Traceback" not in server.log.read_text()

"""A thousand requests, many of which nobody waits for: nothing is lost, nothing breaks, memory stays."""

import contextlib
import json
import random
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from myxtts.serving.metrics import OUTCOMES
from tests.serving.command import start_server
from tests.serving.hosting import give_up

REQUESTS, WARM_UP, CLIENTS, SEEDS = 1000, 200, 6, 5
MOST_GROWTH = 8 << 20
"""Bytes over 800 requests: 10 KB for each. The sound of one is 20 to 200 KB."""
TEXTS = ("No.", "Hello there, you.", "Good morning to us all, and to those who wait. Hello.")


def read_metrics(client):
    lines = client.ask("GET", "/metrics").body.decode().splitlines()
    return {name: float(figure) for name, figure in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def send(client, number):
    """One request of any kind, read to its end or left at some moment; how it was left, and what was said with how many bytes."""
    draw = random.Random(number)
    is_streamed, leaves = draw.random() < 0.7, draw.choice(["no", "no", "before", "within"])
    fields = {"input": draw.choice(TEXTS), "voice": "narrator", "seed": draw.randrange(SEEDS), "max_codes": 40}
    other = client.move(f"127.0.0.{2 + number % CLIENTS}")
    order = {**fields, "stream": is_streamed, "response_format": "wav"}
    connection = other.start("POST", "/v1/audio/speech", order)
    if leaves == "before":
        connection.close()
        return leaves, None, 0
    response = connection.getresponse()
    assert response.status == 200, (number, response.read())
    if leaves == "within" and is_streamed:
        response.read(draw.choice([1, 44, 5000]))
        # A short one may have come whole meanwhile.
        if not response.isclosed():
            give_up(response)
            return leaves, None, 0
    with contextlib.closing(response):
        rest = response.read()
    return "no", (fields["input"], fields["seed"]) if leaves == "no" else None, len(rest)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["int8", "float32"])
def test_a_thousand_requests_with_aborts_leave_nothing_behind(serving_folder, engine):
    with (
        start_server(serving_folder, "--rate", "100000", "--queue", "64", "--engine", engine) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        client, process = server.client, psutil.Process(server.process.pid)
        sent = list(pool.map(lambda number: send(client, number), range(WARM_UP)))
        client.wait_for_requests(0)
        before = process.memory_info().rss
        sent += pool.map(lambda number: send(client, number), range(WARM_UP, REQUESTS))
        client.wait_for_requests(0)
        after = process.memory_info().rss
        figures = read_metrics(client)
        outcomes = {name: figures[f'myxtts_requests_total{{outcome="{name}"}}'] for name in OUTCOMES}
        ways = Counter(way for way, _, _ in sent)
        print(
            f"{engine}: {before >> 10} KiB before, {after >> 10} after {REQUESTS - WARM_UP} requests; {ways}, {outcomes}"
        )
        assert sum(outcomes.values()) == REQUESTS
        assert outcomes["failed"] == outcomes["refused"] == 0
        # All who waited got all of it; of the others a short one may have been said before its client was missed.
        assert ways["no"] <= outcomes["spoken"] <= REQUESTS - outcomes["left"] - outcomes["cut_off"]
        assert 0 < outcomes["left"] <= ways["before"]
        assert 0 < outcomes["cut_off"] <= ways["before"] + ways["within"]
        lengths = defaultdict(set)
        for _, said, length in sent:
            if said:
                lengths[said].add(length)
        assert len(lengths) == len(TEXTS) * SEEDS
        assert {said: found for said, found in lengths.items() if len(found) != 1} == {}
        assert min(map(min, lengths.values())) > 44
        assert figures["myxtts_rows_in_flight"] == figures["myxtts_rows_waiting"] == 0
        assert after - before < MOST_GROWTH
        assert json.loads(client.ask("GET", "/healthz").body)["status"] == "ok"
        assert "Traceback" not in server.log.read_text()

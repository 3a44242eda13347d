"""The process between a trainer and a service, with services that lose, repeat and fail."""

import json
import queue
import threading
import time

import numpy as np
import pytest

from myxtts.data.clip_loading import ClipFile
from myxtts.data.float_wav import write_float_wav
from myxtts.data.service.client import ServiceClient, find_served_samples
from myxtts.data.service.messages import (
    Arrival,
    FileContents,
    Progress,
    Request,
    pack_request,
    unpack_progress,
    unpack_request,
)
from tests.data.shared import make_tone
from tests.data.wav_files import OTHER, PLAIN, SAMPLES

WIDTH = 6144
WAIT_S = 30.0
CONTENT = PLAIN["plain"]
CLIP = ClipFile("a.wav", len(SAMPLES), len(CONTENT), 0)


class Service:
    """Answers as told, and notes what it is asked for."""

    def __init__(self, *replies):
        self.asked = queue.Queue()
        self._replies = list(replies)

    def read(self, paths):
        self.asked.put(sorted(paths))
        reply = self._replies.pop(0) if self._replies else list(paths)
        for number in reply:
            if isinstance(number, Exception):
                raise number
            if isinstance(number, threading.Event):
                assert number.wait(WAIT_S)
                continue
            yield FileContents(number, dict(enumerate([CONTENT] * len(paths.get(number, "x")))), "node7")


def make_client(service, rows=4, patience_s=0.2):
    memory = np.full(rows * WIDTH, 7.0, np.float32)
    return ServiceClient(memory, service.read, patience_s=patience_s, failures=(OSError,)), memory


def make_request(number, file=CLIP):
    return Request(number, {0: file}, number * WIDTH, WIDTH)


def take(client, count):
    """So many arrivals, and how often something was asked for again."""
    arrivals, again = [], 0
    end_s = time.monotonic() + WAIT_S
    while len(arrivals) < count:
        assert time.monotonic() < end_s, f"{count - len(arrivals)} requests were never answered"
        progress = client.take_progress(0.05)
        arrivals += progress.arrivals
        again += progress.asked_again
    return arrivals, again


def test_rows_are_filled_with_samples_and_zeros_behind_them():
    client, memory = make_client(Service([1, 0]))
    client.ask([make_request(0), make_request(1)])
    arrivals, again = take(client, 2)
    assert arrivals == [Arrival(1, [0], [], "node7"), Arrival(0, [0], [], "node7")]
    assert again == 0
    expected = np.pad(SAMPLES * np.float32(2.0**-15), (0, WIDTH - len(SAMPLES)))
    assert np.array_equal(memory[:WIDTH], expected)
    assert np.array_equal(memory[WIDTH : 2 * WIDTH], expected)
    assert (memory[2 * WIDTH :] == 7.0).all()


def test_what_is_lost_is_asked_for_again_and_what_comes_twice_is_dropped():
    hang = threading.Event()
    # Its worker dies with 1 and 2 in hand: the answer never ends.
    service = Service([0, 0, hang, 1], [2, 1, 2])
    client, memory = make_client(service)
    client.ask([make_request(number) for number in range(3)])
    arrivals, again = take(client, 3)
    assert sorted(arrival.number for arrival in arrivals) == [0, 1, 2]
    assert again == 2
    assert service.asked.get_nowait() == [0, 1, 2]
    assert service.asked.get_nowait() == [1, 2]
    # The worker was only slow. Its rows may belong to others by now.
    memory[:] = 7.0
    hang.set()
    while client.take_progress(0.05).threads:
        pass
    assert (memory == 7.0).all()
    assert client.take_progress(0.0).arrivals == []


@pytest.mark.parametrize("reply", [[0], [0, OSError("the dispatcher has gone")]])
def test_an_answer_that_ends_too_early_is_asked_for_again_without_waiting_for_its_patience(reply):
    client, _ = make_client(Service(reply), patience_s=WAIT_S)
    client.ask([make_request(0), make_request(1)])
    arrivals, again = take(client, 2)
    assert [arrival.number for arrival in arrivals] == [0, 1]
    assert again == 1
    failure = client.take_progress(0.0).last_failure
    assert failure == ("OSError: the dispatcher has gone" if len(reply) == 2 else "")


def test_nothing_is_written_for_what_was_forgotten():
    hold = threading.Event()
    client, memory = make_client(Service([hold, 0, 1]))
    client.ask([make_request(0), make_request(1)])
    client.forget([0])
    hold.set()
    arrivals, _ = take(client, 1)
    assert [arrival.number for arrival in arrivals] == [1]
    assert (memory[:WIDTH] == 7.0).all()


@pytest.mark.parametrize("file", [CLIP._replace(samples=5), CLIP._replace(size_bytes=CLIP.size_bytes + 2)])
def test_a_file_that_is_not_the_one_that_was_scanned_is_not_loaded(file):
    client, _ = make_client(Service())
    client.ask([make_request(0, file)])
    assert take(client, 1)[0] == [Arrival(0, [], [], "node7")]


def test_files_that_a_worker_could_not_read_are_told_apart():
    class Blind(Service):
        def read(self, paths):
            yield FileContents(0, {1: OTHER["stereo"], 2: CONTENT}, "node7")

    client, _ = make_client(Blind())
    client.ask([Request(0, {0: CLIP, 2: CLIP, 3: CLIP}, 0, WIDTH)])
    assert take(client, 1)[0] == [Arrival(0, [3], [0], "node7")]


def test_requests_and_progress_survive_the_way_through_json():
    request = Request(3, {2: CLIP, 5: CLIP._replace(path="/a/\udcff.wav")}, 7, 9)
    assert unpack_request(json.loads(json.dumps(pack_request(request)))) == request
    assert unpack_progress([[[1, [0], [2], "n"]], 2, 3, "x"]) == Progress([Arrival(1, [0], [2], "n")], 2, 3, "x")


def test_served_formats(tmp_path):
    samples = (3 * make_tone(0.1)).astype(np.float32)
    write_float_wav(tmp_path / "a.wav", samples)
    assert np.array_equal(find_served_samples((tmp_path / "a.wav").read_bytes()), samples)
    for content in PLAIN.values():
        assert find_served_samples(content) is not None
    for content in OTHER.values():
        assert find_served_samples(content) is None


@pytest.mark.parametrize("value", [1.5, np.nan, -np.inf])
def test_numbers_that_are_no_sound_are_left_to_the_decoder(tmp_path, value):
    write_float_wav(tmp_path / "a.wav", np.array([0.1, value, 0.2], np.float32))
    assert find_served_samples((tmp_path / "a.wav").read_bytes()) is None

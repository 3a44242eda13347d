"""The engine in front of a service, with a service that is made up."""

import contextlib
import logging
import os
import socket

import numpy as np
import pytest

from myxtts.audio.reading import read_clip
from myxtts.config.address import Address
from myxtts.data.clip_loading import ClipFile
from myxtts.data.drops import DropReason
from myxtts.data.errors import ServiceUnavailableError, UnseenFilesError, WorkerError
from myxtts.data.service import engine as loading_service
from myxtts.data.service.engine import ServiceEngine
from myxtts.data.service.messages import Arrival, Progress
from tests.data.shared import make_tone, write_clips

WIDTH = 1 << 16
DEPTH = 6


class MadeUpProcess:
    """Notes what it is asked for, and tells what it is told to."""

    def __init__(self, address, memory, patience_s):
        self.is_stopped = False
        self.patience_s = patience_s
        self.asked, self.forgotten, self.progress = [], [], []
        PROCESSES.append(self)

    def ask(self, requests):
        self.asked.append(requests)

    def forget(self, number):
        self.forgotten.append(number)

    def take_progress(self, wait_s):
        return self.progress.pop(0) if self.progress else Progress([], 0, 1, "")

    def find_death_signal(self):
        return 9

    def stop(self):
        self.is_stopped = True


PROCESSES: list[MadeUpProcess] = []


@pytest.fixture
def dispatcher(monkeypatch):
    monkeypatch.setattr(loading_service, "ServiceProcess", MadeUpProcess)
    PROCESSES.clear()
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield Address(*server.getsockname())


@pytest.fixture
def engine(dispatcher):
    with ServiceEngine(dispatcher, DEPTH, 2 * WIDTH, limit_s=0.2) as engine:
        yield engine


@pytest.fixture
def files(tmp_path):
    write_clips(tmp_path, "ab")
    paths = [tmp_path / "wavs" / f"{name}.wav" for name in "ab"]
    return [ClipFile(str(path), len(make_tone()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def tell(*arrivals, threads=1):
    PROCESSES[-1].progress.append(Progress(list(arrivals), 0, threads, ""))


@pytest.mark.parametrize(("limit_s", "patience_s"), [(8.0, 2.0), (120.0, loading_service.PATIENCE_SECONDS)])
def test_what_is_missing_is_asked_for_again_before_the_run_gives_up(dispatcher, limit_s, patience_s):
    with ServiceEngine(dispatcher, DEPTH, 2 * WIDTH, limit_s=limit_s):
        assert [process.patience_s for process in PROCESSES] == [patience_s]


def test_loads_are_asked_for_in_segments_and_at_the_latest_when_one_is_needed(engine, files):
    loads = [engine.start([file, None], WIDTH) for file in (*files, files[0])]
    (process,) = PROCESSES
    assert [[request.number for request in requests] for requests in process.asked] == [[0, 1]]
    tell(Arrival(2, [0], [], "node7"))
    engine.finish(loads[2])
    assert [[request.number for request in requests] for requests in process.asked] == [[0, 1], [2]]
    first, second = process.asked[0]
    assert (first.files, second.files) == ({0: files[0]}, {0: files[1]})
    assert second.first_sample - first.first_sample == 2 * WIDTH
    assert not engine.take(loads[2])[1].any()


def test_what_a_worker_could_not_load_is_loaded_here(engine, files):
    load = engine.start(files, WIDTH)
    tell(Arrival(0, [], [1], "node7"))
    engine.finish(load)
    assert not load.failures
    for row, file in zip(engine.take(load), files, strict=True):
        samples = read_clip(file.path)
        assert np.array_equal(row[: len(samples)], samples)
        assert not row[len(samples) :].any()


def test_a_clip_that_was_changed_since_the_scan_has_failed_whatever_a_worker_says(engine, files):
    load = engine.start(files, WIDTH)
    os.utime(files[0].path, ns=(5, 5))
    tell(Arrival(0, [0, 1], [], "node7"))
    engine.finish(load)
    assert {row: failure.reason for row, failure in load.failures.items()} == {0: DropReason.CHANGED}


def test_a_cancelled_load_is_forgotten_before_its_memory_is_used_again(engine, files):
    loads = [engine.start(files, WIDTH) for _ in range(3)]
    for load in loads:
        engine.cancel(load)
    assert PROCESSES[-1].forgotten == [0, 1]
    # It had arrived when it was cancelled, and is told of afterwards.
    tell(Arrival(0, [0], [], "node7"), Arrival(3, [0, 1], [], "node7"))
    engine.finish(engine.start(files, WIDTH))


def test_silence_is_a_typed_error_that_names_the_address_and_what_to_start(
    engine, files, dispatcher, monkeypatch, caplog
):
    monkeypatch.setattr(loading_service, "_WARN_SECONDS", 0.05)
    load = engine.start(files, WIDTH)
    words = f"service at {dispatcher} answers, but none of its workers.*`myxtts data-worker --dispatcher {dispatcher}`"
    with caplog.at_level(logging.WARNING), pytest.raises(ServiceUnavailableError, match=words):
        engine.finish(load)
    assert caplog.text.count("ends after 0.2 s without an answer (--data-service-timeout)") == 1


def test_a_dispatcher_that_is_not_there_is_waited_for_and_then_named():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = Address(*server.getsockname())
    words = f"There is no data service at {address}. Start it there with `myxtts data-dispatcher --port {address.port}`"
    with pytest.raises(ServiceUnavailableError, match=words):
        ServiceEngine(address, DEPTH, WIDTH, limit_s=0.1)


def test_a_process_that_dies_is_replaced_and_asked_for_what_has_not_arrived(engine, files):
    loads = [engine.start(files, WIDTH) for _ in range(2)]
    tell(Arrival(1, [0, 1], [], "node7"))
    engine.finish(loads[1])
    PROCESSES[0].progress.append(None)
    engine._receive()
    assert [[request.number for request in requests] for requests in PROCESSES[1].asked] == [[0]]


def test_processes_that_keep_dying_are_an_error(engine, files, monkeypatch):
    load = engine.start(files, WIDTH)
    monkeypatch.setattr(MadeUpProcess, "take_progress", lambda self, wait_s: None)
    with pytest.raises(WorkerError, match="5 processes in a row that ask the data service died of signal 9"):
        engine.finish(load)


def test_threads_that_lost_workers_have_left_behind_are_ended_with_their_process(engine, files):
    load = engine.start(files, WIDTH)
    tell(threads=65)
    with pytest.raises(ServiceUnavailableError):
        engine.finish(load)
    assert [process.is_stopped for process in PROCESSES] == [True, False]
    assert len(PROCESSES[1].asked) == 1


def test_a_worker_that_sees_none_of_the_files_is_named(engine, files, caplog):
    loads = [engine.start(files, WIDTH) for _ in range(4)]
    for number in range(3):
        tell(Arrival(number, [], [0, 1], "node7"))
        engine.finish(loads[number])
    assert f"The data worker on node7 cannot read {files[0].path}: it is read on this machine." in caplog.text
    tell(Arrival(3, [], [0, 1], "node7"))
    with pytest.raises(UnseenFilesError, match=f"on node7 cannot read {files[0].path}, though this machine can"):
        engine.finish(loads[3])


def test_files_that_this_machine_does_not_see_either_are_no_fault_of_the_worker(engine, files):
    os.remove(files[0].path)
    for number in range(5):
        load = engine.start([files[0], files[0]], WIDTH)
        tell(Arrival(number, [], [0, 1], "node7"))
        engine.finish(load)
        assert {failure.reason for failure in load.failures.values()} == {DropReason.MISSING}
        engine.cancel(load)

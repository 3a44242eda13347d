"""Workers meet, tell each other numbers, and notice deaths: over real sockets of loopback, each worker in a thread."""

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from myxtts.cluster.lifeline import Lifeline, send_frame
from myxtts.cluster.meeting import CHANNELS, GREETING, Link, meet
from myxtts.cluster.spec import ClusterSpec
from myxtts.config.settings import Address
from myxtts.errors import ClusterError, OutOfStepError, RendezvousError, WorkerLostError

PATIENCE_S = 60


def find_ports(count):
    ends = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [end.getsockname()[1] for end in ends]
    for end in ends:
        end.close()
    return ports


def make_specs(size=2, **settings):
    control, *ports = find_ports(size + 1)
    workers = tuple(Address("127.0.0.1", port) for port in ports)
    spec = ClusterSpec(workers, 0, Address("127.0.0.1", control), **{"rendezvous_s": 30.0, **settings})
    return [replace(spec, index=index) for index in range(size)]


def run_all(*functions):
    """What functions give that run at the same time; their errors as values."""

    def run(function):
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - every worker's outcome is looked at
            return error

    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(PATIENCE_S) for each in [pool.submit(run, function) for function in functions]]


@pytest.fixture
def links():
    opened = []

    def open_links(size=2, **settings):
        specs = make_specs(size, **settings)
        found = run_all(*(lambda spec=spec: Link(spec, meet(spec)) for spec in specs))
        opened.extend(found)
        return found

    yield open_links
    run_all(*(lambda link=link: link.close() for link in opened))


def test_all_get_the_same_sums_and_what_the_chief_has_and_the_chief_what_all_have(links):
    numbers, found = [[0.1, 1], [0.2, 2], [0.3, 4]], links(3)

    def tell(link):
        index = link.spec.index
        return link.add_up("here", numbers[index]), link.hand_out("x", index + 5), link.gather("y", index)

    sums, given, gathered = zip(*run_all(*(lambda link=link: tell(link) for link in found)), strict=True)
    assert sums[0] == sums[1] == sums[2] == [pytest.approx(0.6), 7]
    assert given == (5, 5, 5)
    assert gathered == ([0, 1, 2], [], [])


def test_workers_at_different_places_are_a_fault(links):
    chief, other = links()
    errors = run_all(lambda: chief.add_up("batch 3", [1]), lambda: other.gather("batch 4", [1]))
    assert isinstance(errors[0], OutOfStepError)
    assert "worker 0 is at 'batch 3' and worker 1 at 'batch 4'" in str(errors[0])


def test_those_who_wait_hear_why_another_has_failed(links):
    chief, failing, third = links(3)
    errors = run_all(
        lambda: chief.add_up("batch 9", [1]),
        lambda: failing.close("out of memory"),
        lambda: third.add_up("batch 9", [1]),
    )
    for error in (errors[0], errors[2]):
        assert isinstance(error, WorkerLostError)
        assert str(failing.spec.workers[1]) in str(error)
        assert "is lost: out of memory. Start the whole cluster again" in str(error)
        assert str(error).count("is lost") == 1, "as the chief has heard it"


def test_silence_is_death():
    """A machine without power closes no connection."""
    specs = make_specs(silence_s=1.0)
    ours, theirs = socket.socketpair()
    lifeline = Lifeline(specs[0], {1: ours})
    heard = []
    lifeline.on_loss(heard.append)
    assert "nothing was heard of it for 1 s" in lifeline.read_loss(PATIENCE_S)
    # Whoever listens after a loss hears of it at once.
    lifeline.on_loss(heard.append)
    lifeline.close(None)
    assert heard == [lifeline.read_loss()] * 2
    theirs.close()


def test_a_thread_that_cannot_be_reached_takes_its_process_with_it():
    codes = queue.Queue()
    ours, theirs = socket.socketpair()
    lifeline = Lifeline(make_specs()[0], {1: ours}, grace_s=0.05, end_process=codes.put)
    theirs.close()
    assert codes.get(timeout=PATIENCE_S) == 1
    lifeline.close(None)


def test_whoever_is_missing_is_named_to_all_who_came():
    specs = make_specs(3, rendezvous_s=1.5)
    errors = run_all(*(lambda spec=spec: meet(spec) for spec in specs[:2]))
    for error in errors:
        assert isinstance(error, RendezvousError)
        assert f"Missing: worker 2 at {specs[2].workers[2]}." in str(error)
        assert "within 1.5 s" in str(error)
        assert str(specs[0].workers[1]) not in str(error), "only those who are missing"


def test_a_chief_that_is_not_there_is_named():
    spec = make_specs(rendezvous_s=1.0)[1]
    with pytest.raises(
        RendezvousError, match=r"Worker 0 \(the chief\) at .* nobody answers at 127\.0\.0\.1:\d+ \(Connection refused\)"
    ):
        meet(spec)


def test_a_worker_of_another_cluster_is_refused():
    specs = make_specs(rendezvous_s=2.0)
    strange = replace(specs[1], workers=(*specs[1].workers[:1], Address("10.0.0.9", 1)))
    errors = run_all(lambda: meet(specs[0]), lambda: meet(strange))
    assert isinstance(errors[0], RendezvousError)
    assert isinstance(errors[1], ClusterError)
    assert "all need the same cluster file" in str(errors[1])


def try_often(connect):
    """What is given once the chief listens."""
    for _ in range(1000):
        try:
            return connect()
        except ConnectionRefusedError:
            threading.Event().wait(0.02)
    raise AssertionError("the chief does not listen")


def close_all(connections):
    for each in connections:
        each.close()


def test_a_stranger_at_the_door_disturbs_nobody():
    specs = make_specs()

    def knock():
        for content in (b"GET / HTTP/1.1\r\n\r\n", b"", b"\xff" * 64):
            with socket.create_connection(specs[0].control, timeout=5) as end:
                end.sendall(content)
        with socket.create_connection(specs[0].control, timeout=5) as end:
            send_frame(end, ["not", "a", "greeting"])
        return meet(specs[1])

    close_all(run_all(lambda: meet(specs[0]), lambda: try_often(knock)))


def list_listeners(port):
    """The addresses that something listens on at a port, as the kernel writes them."""
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


def test_the_chief_listens_on_the_interface_it_was_told():
    """Nothing is reachable from outside unless an address outside was given."""
    specs = make_specs()

    def look():
        while not (found := list_listeners(specs[0].control.port)):
            threading.Event().wait(0.01)
        meet(specs[1]).close()
        return found

    connections, found = run_all(lambda: meet(specs[0]), look)
    connections.close()
    assert found == ["0100007F"], "127.0.0.1 and nothing else"


def test_a_block_that_takes_too_long_ends_all(links):
    chief, other = links()
    with chief.lifeline.limit(0.05, "Too early."):
        pass
    assert chief.lifeline.read_loss(0.5) is None, "one that ends in time is forgotten"

    def wait_for_ever():
        with chief.lifeline.limit(0.2, "Nothing came."):
            return chief.hand_out("x", chief.gather("x", 0))

    for error in run_all(wait_for_ever, lambda: other.hand_out("x", 0)):
        assert isinstance(error, WorkerLostError)
        assert str(error).startswith("Nothing came. Start the whole cluster again")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyboardInterrupt(), "it was interrupted (Ctrl-C)"),
        (RuntimeError("out of memory.\nmore"), "out of memory"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_why_a_worker_ends_is_told_in_words(links, error, words):
    chief, other = links()
    with pytest.raises(type(error)), other:
        raise error
    assert f"is lost: {words}. Start" in chief.lifeline.read_loss(PATIENCE_S)


def join_and_die(spec):
    """A worker that dies after it has said who it is."""
    ends = try_often(lambda: [socket.create_connection(spec.control, timeout=5) for _ in CHANNELS])
    for channel, end in zip(CHANNELS, ends, strict=True):
        workers = [str(address) for address in spec.workers]
        send_frame(end, {"greeting": GREETING, "channel": channel, "worker": spec.index, "workers": workers})
    close_all(ends)


def test_a_worker_that_died_at_the_door_may_be_started_again():
    specs = make_specs(3)
    has_died = threading.Event()

    def die_and_come_again():
        join_and_die(specs[1])
        has_died.set()
        return meet(specs[1])

    def come_later():
        assert has_died.wait(PATIENCE_S)
        return meet(specs[2])

    close_all(run_all(lambda: meet(specs[0]), die_and_come_again, come_later))


def test_a_chief_whose_name_is_loopback_asks_for_its_address():
    spec = replace(make_specs()[0], workers=(Address("localhost", 5000), Address("192.0.2.7", 5000)))
    with pytest.raises(RendezvousError, match=r"127\.0\.0\.1 is a name of loopback on this machine\. .* as `bind`"):
        meet(spec)


def test_a_name_may_become_known_while_the_workers_gather(monkeypatch):
    resolve, asked = socket.getaddrinfo, []

    def resolve_later(host, *more, **options):
        if host == "late-name":
            asked.append(host)
            if len(asked) < 3:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return resolve(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_later)
    chief, other = make_specs()
    close_all(
        run_all(lambda: meet(chief), lambda: meet(replace(other, control=Address("late-name", other.control.port))))
    )
    assert len(asked) >= 3

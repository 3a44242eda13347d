"""A real tf.data service on loopback, with workers in processes of their own."""

import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from myxtts.config.address import Address, parse_address
from myxtts.data.errors import ServiceAddressError, UnseenFilesError
from myxtts.data.positions import Position
from myxtts.data.service.address import LOOPBACK, check_own_address, is_answering, is_grpc_server
from tests.data.reading import copy_corpus, freeze, freeze_all, make_sampler, open_reader, read_steps, scan_small
from tests.data.service.servers import Server, find_own_address, run_servers, start_service


@contextmanager
def open_dispatcher():
    """The address of a dispatcher in this process, and what ends it."""
    from myxtts.data.service.servers import start_dispatcher

    own = check_own_address(LOOPBACK, 0)
    with ExitStack() as stack:
        # Held by nobody else, so that it ends with the stack.
        stack.callback(lambda server: None, start_dispatcher(own))
        yield str(Address(LOOPBACK, own.port)), stack.close


def test_batches_are_those_of_this_process_while_one_worker_is_added_and_another_killed(lj):
    sampler = make_sampler(lj.corpus, batch_size=4, accumulation=2)
    options = {"sampler": sampler, "prompts_from_speaker": True, "end_step": 10}
    with open_reader(lj, **options) as reader:
        expected = freeze_all(read_steps(reader, 0, 10))
    with run_servers() as servers, open_dispatcher() as (address, close_dispatcher):
        assert is_grpc_server(parse_address(address))
        servers += [Server("data-worker", "--dispatcher", address) for _ in range(2)]
        early, late = servers
        early.wait_until_ready()
        late.process.send_signal(signal.SIGSTOP)
        seen = []
        with open_reader(lj, f"service {address}", **options) as reader:
            for batch in read_steps(reader, 0, 10):
                seen.append(freeze(batch))
                if len(seen) == 3:
                    late.process.send_signal(signal.SIGCONT)
                    late.wait_until_ready()
                if len(seen) == 8:
                    early.stop(signal.SIGKILL)
        assert seen == expected
        close_dispatcher()
        # It does not wait for a dispatcher that will not come back.
        assert late.stop() == (0, "Stopped.\n")


def test_a_dispatcher_of_loopback_answers_nowhere_else():
    with open_dispatcher() as (address, _):
        assert is_answering(parse_address(address))
        assert not is_answering(Address(find_own_address(), parse_address(address).port))


def test_a_server_that_cannot_be_kept_to_its_address_is_refused(monkeypatch):
    from myxtts.data.service import servers as service_servers

    monkeypatch.setattr(service_servers, "fence_port", lambda port, host: 0)
    with pytest.raises(ServiceAddressError, match=r"must answer at 127\.0\.0\.1 only, but its sockets were not found"):
        service_servers.start_dispatcher(check_own_address(LOOPBACK, 0))


@pytest.mark.soak
def test_the_commands_serve_two_trainers_at_once_and_end_when_they_are_asked_to(lj):
    with open_reader(lj, end_step=8) as reader:
        expected = freeze_all(read_steps(reader, 0, 8))
    with run_servers() as servers:
        address = start_service(servers, workers=2)
        kind = f"service {address}"
        with open_reader(lj, kind, end_step=8) as one, open_reader(lj, kind, depth=2, end_step=8) as other:
            pairs = zip(read_steps(one, 0, 8), read_steps(other, 0, 8), strict=True)
            assert [(freeze(first), freeze(second)) for first, second in pairs] == [(each, each) for each in expected]
        code, output = servers[0].stop(signal.SIGINT)
        assert code == 0
        assert output.endswith("Stopped.\n")
        assert [server.stop() for server in servers[1:]] == [(0, "Stopped.\n")] * 2


@pytest.mark.soak
def test_a_dispatcher_that_is_started_again_is_found_by_all(lj):
    with open_reader(lj, end_step=8) as reader:
        expected = freeze_all(read_steps(reader, 0, 8))
    with run_servers() as servers:
        address = start_service(servers, workers=1)
        with open_reader(lj, f"service {address}", depth=2, end_step=8) as reader:
            seen = [freeze(reader.read(Position(step))) for step in range(3)]
            servers[0].stop(signal.SIGKILL)
            servers.append(Server("data-dispatcher", "--port", address.rpartition(":")[2]))
            seen += [freeze(reader.read(Position(step))) for step in range(3, 8)]
        assert seen == expected


@pytest.mark.soak
def test_a_worker_that_does_not_see_the_corpus_is_named(tmp_path, monkeypatch):
    # The same path for both, but it leads to the working folder of whoever follows it.
    monkeypatch.chdir(tmp_path)
    copy_corpus(tmp_path / "corpus", wavs=12)
    texted = scan_small(Path("/proc/self/cwd/corpus"), tmp_path / "index")
    with run_servers() as servers:
        address = start_service(servers, workers=1, cwd=Path("/"))
        with open_reader(texted, f"service {address}") as reader, pytest.raises(UnseenFilesError) as caught:
            freeze_all(read_steps(reader, 0, 2))
    assert "cannot read /proc/self/cwd/corpus/wavs/" in str(caught.value)
    assert "storage that all machines share" in str(caught.value)

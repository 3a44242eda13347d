"""The producer process while all goes well, and when it is left, interrupted or misused; and what both sides agree on."""

import os
import socket

import psutil
import pytest

from myxtts.errors import MachineError, ProducerFailedError
from myxtts.pipeline.producer import send_exit_message
from myxtts.pipeline.threads import EndOfStream, Stopped
from myxtts.processes import ChildConnection, MessageError
from tests.pipeline.producers import ENVIRONMENT, assert_all_right, list_kinds, open_producer, take_all
from tests.support.processes import run_code


@pytest.mark.parametrize(("first", "end"), [(0, 0), (0, 1), (5, 7), (100, 140)])
def test_batches_arrive_once_and_in_order(first, end):
    with open_producer(first_position=first, end_position=end) as producer:
        assert_all_right(take_all(producer), range(first, end))
        with pytest.raises(EndOfStream):
            producer.take()


def test_a_stream_without_end_can_be_left_and_nothing_comes_after_closing():
    with open_producer(end_position=None) as producer:
        for expected in range(5):
            assert producer.take().position == expected
            producer.release()
        assert os.getsid(producer.pid) == producer.pid, "a session of its own: Ctrl-C is for the trainer"
    producer.close()
    producer.stop()
    with pytest.raises(Stopped):
        producer.take()


def test_facts_are_measured_in_both_processes():
    with open_producer(end_position=6, more={"pause_s": 0.05}) as producer:
        take_all(producer)
        facts = producer.read_facts()
    assert (facts.name, facts.items) == ("producer", 6)
    assert facts.taker_wait_s > 1, "every batch has to be waited for"
    assert 0 <= facts.readiness < 0.5
    assert facts.giver_wait_s < 0.75, "its work is no waiting"


def test_a_failing_task_is_told_with_its_traceback():
    with open_producer({"do": "raise", "position": 4, "stage": "prepare"}) as producer:
        with pytest.raises(ProducerFailedError) as caught:
            take_all(producer)
        assert list_kinds(producer).count("started") == 1, "an error that would only repeat itself is not tried again"
    message = str(caught.value)
    assert message.startswith("The producer failed in stage 'prepare' of batch 4: ValueError: the clip is upside down")
    assert "in _raise" in message, "the producer's traceback"


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("tests.pipeline.no_such_module:make", "No module named 'tests.pipeline.no_such_module'"),
        ("tests.pipeline.tasks:no_such_function", "no_such_function"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_an_error_at_once_and_again(task, text):
    with open_producer(task=task) as producer:
        for _ in range(2):
            with pytest.raises(ProducerFailedError, match="in stage 'import'") as caught:
                producer.take()
            assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "arguments", "text"),
    [
        ({"do": "thread", "position": 2, "stage": "prepare"}, {}, "still running"),
        ({"do": "leave", "position": 2, "stage": "prepare"}, {}, "SystemExit: 0"),
        ({"do": "nothing"}, {"slot_bytes": 4096}, r"in stage 'pack' of batch 0: .*A batch must fit.*noise float32"),
    ],
)
def test_a_task_cannot_end_the_process_unnoticed(fault, arguments, text):
    with open_producer(fault, **arguments) as producer, pytest.raises(ProducerFailedError, match=text):
        take_all(producer)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [({"slot_bytes": 1 << 50}, MachineError, "--batch-size"), ({"more": {"t": "x" * 10**5}}, MessageError, "at most")],
)
def test_what_cannot_be_started_is_an_error_and_leaves_nothing_behind(arguments, error, text):
    with pytest.raises(error, match=text), open_producer(**arguments):
        pass


def test_what_a_task_prints_does_not_stop_it_and_the_environment_is_the_one_given():
    chatter = {"do": "chatter", "stage": "prepare"}
    with open_producer(chatter, end_position=20, environment={**ENVIRONMENT, "MYXTTS_TEST_MARK": "yes"}) as producer:
        assert_all_right(take_all(producer), range(20))
        assert psutil.Process(producer.pid).environ()["MYXTTS_TEST_MARK"] == "yes"


def test_the_engine_imports_no_tensorflow_and_no_other_room():
    code = "import myxtts.pipeline.producer_client, sys; report(sorted(sys.modules))"
    assert not {"tensorflow", "keras", "myxtts.data", "myxtts.models"} & set(run_code(code))


def test_the_longest_exit_message_fits_and_keeps_its_end():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        error = ValueError("\udc80" * 100_000 + "end")
        assert send_exit_message(ChildConnection(theirs, blocking=True), error, "prepare", 1, is_limited=False) != 0
        event = ChildConnection(ours, blocking=False).receive()
    assert event["summary"].startswith("ValueError: ")
    assert event["traceback"].endswith("end\n")

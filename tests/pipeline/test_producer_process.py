"""The producer process while all goes well, and when it is left, interrupted or misused."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import psutil
import pytest

from myxtts.errors import ProducerFailedError
from myxtts.pipeline.errors import RingMemoryError
from myxtts.pipeline.handoff import EndOfStream, Handoff, Stopped
from myxtts.pipeline.producer import TaskSpec
from myxtts.pipeline.producer_client import ProducerProcess
from myxtts.pipeline.ring import copy_arrays
from myxtts.pipeline.stage import Stage, stop_stages
from myxtts.processes import MessageError
from tests.pipeline.producers import ENVIRONMENT, assert_all_right, list_kinds, make_producer, take_all
from tests.pipeline.tasks import ROWS, make_expected
from tests.support.processes import ROOT


@pytest.mark.parametrize(("first", "end"), [(0, 0), (0, 1), (5, 7), (100, 140)])
def test_batches_arrive_once_and_in_order(first, end):
    with make_producer(first_position=first, end_position=end) as producer:
        assert_all_right(take_all(producer), range(first, end))
        with pytest.raises(EndOfStream):
            producer.take()


def test_a_stream_without_end_can_be_left():
    with make_producer(end_position=None) as producer:
        for expected in range(5):
            assert producer.take().position == expected
            producer.release()


def test_a_producer_that_was_never_started_is_closed():
    make_producer().close()


def test_closing_twice_and_stopping_after_closing():
    producer = make_producer()
    producer.start()
    producer.close()
    producer.close()
    producer.stop()
    with pytest.raises(Stopped):
        producer.take()


def test_closing_at_once_does_not_wait_for_the_task():
    with make_producer({"do": "hang", "stage": "warm-up"}) as producer:
        process = psutil.Process(producer.pid)
    assert not process.is_running()


def test_facts_are_measured_in_both_processes():
    with make_producer() as producer:
        take_all(producer)
        facts = producer.read_facts(reset=True)
        assert facts.name == "producer"
        assert facts.items == 12
        assert facts.taker_wait_s > 0, "the first batch has to be waited for"
        assert 0 <= facts.readiness < 1
        assert facts.giver_wait_s >= 0
        assert producer.read_facts().items == 0


def test_the_process_has_a_session_of_its_own():
    with make_producer() as producer:
        producer.take()
        assert os.getsid(producer.pid) == producer.pid
        assert os.getsid(0) != producer.pid


def test_stop_ends_a_wait_from_another_thread():
    producer = make_producer({"do": "hang", "stage": "warm-up"})
    outcome = []

    def take():
        try:
            producer.take()
        except Stopped as error:
            outcome.append(error)

    with producer:
        thread = threading.Thread(target=take)
        thread.start()
        while producer.read_facts().taker_wait_s == 0:
            pass
        producer.stop()
        thread.join(20)
    assert len(outcome) == 1


def test_it_feeds_a_stage_and_slots_are_copied_before_they_are_released():
    with make_producer(end_position=40) as producer:
        sink = Handoff("transfer")
        stage = Stage("transfer", lambda batch: (batch.position, copy_arrays(batch.arrays, np.array)), producer, sink)
        stage.start()
        batches = {}
        while True:
            try:
                position, arrays = sink.take()
            except EndOfStream:
                break
            batches[position] = arrays
            sink.release()
        stop_stages([stage])
    assert_all_right(batches, range(40))


def test_a_failing_task_reaches_the_consumer_of_the_stage_after_it():
    with make_producer({"do": "raise", "position": 4, "stage": "prepare"}) as producer:
        sink = Handoff("transfer")
        stage = Stage("transfer", lambda batch: batch.position, producer, sink)
        stage.start()
        taken = []

        def take_on():
            while True:
                taken.append(sink.take())
                sink.release()

        with pytest.raises(ProducerFailedError) as caught:
            take_on()
        stop_stages([stage])
    message = str(caught.value)
    assert message.startswith("The producer failed in stage 'prepare' of batch 4: ValueError: the clip is upside down")
    assert "_raise_value_error" in message, "the producer's traceback"
    assert taken == list(range(len(taken)))
    assert list_kinds(producer).count("started") == 1, "an error that would only repeat itself is not tried again"


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        ("tests.pipeline.no_such_module:make", "No module named 'tests.pipeline.no_such_module'"),
        ("tests.pipeline.tasks:no_such_function", "no_such_function"),
        ("no colon", "package.module:function; this is 'no colon'"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_an_error_at_once(factory, text):
    with make_producer(factory=factory) as producer:
        with pytest.raises(ProducerFailedError, match="in stage 'import'") as caught:
            producer.take()
        assert text in str(caught.value)
        with pytest.raises(ProducerFailedError, match="in stage 'import'"):
            producer.take()


@pytest.mark.parametrize(("fault", "text"), [("thread", "still running"), ("leave", "SystemExit: 0")])
def test_a_task_cannot_end_the_process_unnoticed(fault, text):
    with (
        make_producer({"do": fault, "position": 2, "stage": "prepare"}) as producer,
        pytest.raises(ProducerFailedError, match=text),
    ):
        take_all(producer)


def test_a_slot_that_is_too_small_is_an_error_with_sizes():
    with (
        make_producer(slot_bytes=4096) as producer,
        pytest.raises(
            ProducerFailedError, match=r"in stage 'pack' of batch 0: SlotTooSmallError: A batch must fit.*noise float32"
        ),
    ):
        producer.take()


def test_a_ring_that_is_too_big_is_an_error_before_anything_is_started():
    with pytest.raises(RingMemoryError, match="--batch-size"):
        make_producer(slot_bytes=1 << 50)


def test_settings_that_do_not_fit_into_a_message_leave_nothing_behind():
    with (
        pytest.raises(MessageError, match="at most"),
        ProducerProcess(TaskSpec("a:b", {"text": "x" * 100_000}), slot_bytes=1, environment=ENVIRONMENT),
    ):
        pass


def test_taking_without_releasing_is_a_mistake_of_ours():
    with make_producer() as producer:
        for _ in range(3):
            producer.take()
        with pytest.raises(AssertionError, match="every slot is taken"):
            producer.take()


def test_what_a_task_prints_neither_stops_it_nor_is_kept_for_ever():
    with make_producer({"do": "chatter", "stage": "prepare"}, end_position=20) as producer:
        assert_all_right(take_all(producer), range(20))
        assert os.fstat(producer._process._child._output).st_size < 2 << 20


def test_the_environment_is_the_one_given():
    with make_producer(environment={**ENVIRONMENT, "MYXTTS_TEST_MARK": "yes"}) as producer:
        producer.take()
        assert psutil.Process(producer.pid).environ()["MYXTTS_TEST_MARK"] == "yes"


SCRIPT = """
import sys
from myxtts.pipeline.handoff import EndOfStream
from myxtts.pipeline.producer import TaskSpec
from myxtts.pipeline.producer_client import ProducerProcess

print("main runs", flush=True)
with ProducerProcess(TaskSpec("tests.pipeline.tasks:make_plain", SETTINGS), slot_bytes=1 << 16, end_position=END) as producer:
    while True:
        try:
            position, arrays = producer.take()
        except EndOfStream:
            break
        print(position, int(arrays["clips"][0]), producer.pid, flush=True)
        del arrays
        producer.release()
"""


def start_script(path, settings, end):
    """Starts a script that uses a producer process, has no main guard, and lies outside the project."""
    # Tests that run in the background have Ctrl-C switched off, and what they start has too.
    listen = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    path.write_text(listen + textwrap.dedent(SCRIPT).replace("SETTINGS", repr(settings)).replace("END", repr(end)))
    return subprocess.Popen(
        [sys.executable, path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=path.parent,
    )  # fmt: skip


def test_a_script_without_a_main_guard_works(tmp_path):
    with start_script(tmp_path / "script.py", {}, 4) as script:
        out, err = script.communicate(timeout=120)
    assert err == ""
    lines = out.splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == [
        "main",
        *(f"{position} {position * ROWS}" for position in range(4)),
    ]


def test_a_task_may_lie_beside_the_script_and_other_files_there_do_no_harm(tmp_path):
    (tmp_path / "my_task.py").write_text("from tests.pipeline.tasks import make_plain as make\n")
    (tmp_path / "numpy.py").write_text("raise ImportError('imported by chance')\n")
    path = tmp_path / "elsewhere" / "script.py"
    path.parent.mkdir()
    path.write_text(
        f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        + textwrap.dedent(SCRIPT).replace("SETTINGS", "{}").replace("END", "1").replace("tests.pipeline.tasks:make_plain", "my_task:make")
    )  # fmt: skip
    result = subprocess.run([sys.executable, path], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert result.stderr == ""
    assert result.stdout.splitlines()[1].startswith("0 0 ")


def test_ctrl_c_ends_the_trainer_and_with_it_the_producer(tmp_path):
    with start_script(tmp_path / "script.py", {}, None) as script:
        pid = read_producer_pid(script)
        os.kill(script.pid, signal.SIGINT)
        _, err = script.communicate(timeout=120)
    assert "KeyboardInterrupt" in err
    assert_gone(pid)


@pytest.mark.parametrize("hang", ["hang", "hang natively"])
def test_the_producer_ends_when_its_trainer_is_killed_whatever_it_does(tmp_path, hang):
    # Not the second batch: a process that holds its interpreter's lock may do so before it has handed over the first.
    settings = {"faults": [{"do": hang, "position": 8, "stage": "prepare"}]}
    with start_script(tmp_path / "script.py", settings, None) as script:
        pid = read_producer_pid(script)
        script.kill()
        script.communicate(timeout=120)
    assert_gone(pid)


def read_producer_pid(script):
    assert script.stdout.readline() == "main runs\n"
    return int(script.stdout.readline().split()[2])


def assert_gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=30)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_engine_imports_no_tensorflow_and_no_other_room():
    code = "import myxtts.pipeline.producer_client, myxtts.pipeline.stage, sys; print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    modules = eval(result.stdout)
    others = {name for name in modules if name.startswith("myxtts.") and not name.startswith("myxtts.pipeline")}
    assert others == {"myxtts.errors", "myxtts.processes", "myxtts.devices", "myxtts.devices.host_memory"}
    assert not {"tensorflow", "keras"} & set(modules)


def test_expected_batches_differ_so_that_a_mix_up_would_be_seen():
    assert not np.array_equal(make_expected(0)["noise"], make_expected(1)["noise"])
    assert not np.array_equal(make_expected(0)["noise"], make_expected(0, [0])["noise"])

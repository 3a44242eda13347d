"""Signals that ask for an end."""

import os
import signal

import pytest

from myxtts.training.interrupts import StopNow, StopRequests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_nothing_dies(number):
    before = signal.getsignal(number)
    with StopRequests() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal is number
    assert signal.getsignal(number) is before


def test_a_second_interrupt_interrupts():
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGINT


def kill_idly(stop, number):
    """Kills this process in an idle block, as a part of the program would that takes every error for its own."""
    with stop.while_idle():
        try:
            os.kill(os.getpid(), number)
        except Exception as error:  # noqa: BLE001  (a stop is none of them)
            pytest.fail(f"taken for {error!r}")
        pytest.fail("the block must have ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_block_at_once(number):
    with StopRequests() as stop:
        with pytest.raises(StopNow):
            kill_idly(stop, number)
        assert stop.signal is number
        # What is closed on the way out is not interrupted.
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_came_before_ends_an_idle_block_at_its_beginning():
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopNow), stop.while_idle():
            pytest.fail("the block must not begin")

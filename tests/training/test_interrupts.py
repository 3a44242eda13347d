"""Signals that ask for an end."""

import os
import signal

import pytest

from myxtts.training.interrupts import StopRequests


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

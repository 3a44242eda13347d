"""Signals that ask for an end."""

import contextlib
import os
import signal

import pytest

from myxtts.config import XTTSConfig
from myxtts.errors import RunStoppedError
from myxtts.training.stopping import StopNow, StopRequests, stops_politely


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_nothing_dies_before_a_second_interrupt(number):
    before = signal.getsignal(number)
    with StopRequests() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal is number
        with pytest.raises(StopNow), stop.while_idle():
            pytest.fail("the block must not begin")
        if number is signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_busy_block_inside_an_idle_one_is_not_ended():
    with StopRequests() as stop, stop.while_idle():
        with stop.while_busy():
            pass
        # No part of the program that takes every error for its own swallows it.
        with pytest.raises(StopNow), contextlib.suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)
    with StopRequests() as stop, stop.while_idle():
        with stop.while_busy():
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.signal is signal.SIGTERM
        # What follows it may still have to be saved or closed.
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopNow):
            stop.check()


def test_signals_that_something_else_has_taken_are_taken_again():
    """As TensorFlow's server does with SIGTERM when it starts."""
    with StopRequests() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.take()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal is signal.SIGTERM


def test_a_library_that_swallows_the_stop_does_not_hide_it(tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def load_library():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:  # noqa: BLE001  (as some do while they are imported)
            return

    config = XTTSConfig(training={"checkpoint_dir": str(tmp_path / "run")})
    with (
        pytest.raises(RunStoppedError, match="Stopped by SIGTERM while it loads"),
        stops_politely(config, ["train"], "while it loads"),
    ):
        load_library()
    assert signal.getsignal(signal.SIGTERM) is before

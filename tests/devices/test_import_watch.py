"""Imports that do not end."""

import os

from myxtts.devices.import_watch import watch_import


def read_stacks_while_importing(descriptor):
    """What is written, up to the stack of this function: those of other threads may come first, in several pieces."""
    stacks = b""
    while b"in read_stacks_while_importing" not in stacks:
        stacks += os.read(descriptor, 4000)
    return stacks.decode()


def test_an_import_that_takes_too_long_shows_where_it_is_and_goes_on():
    reading, writing = os.pipe()
    with watch_import(0.05, writing):
        # Reading waits for what the watcher writes.
        stacks = read_stacks_while_importing(reading)
    assert stacks.startswith("Timeout")
    os.close(writing)
    while os.read(reading, 4000):
        # What was written again before it was over.
        pass
    os.close(reading)


def test_an_import_that_ends_in_time_says_nothing():
    reading, writing = os.pipe()
    with watch_import(1000, writing):
        pass
    os.close(writing)
    assert os.read(reading, 4000) == b""
    os.close(reading)

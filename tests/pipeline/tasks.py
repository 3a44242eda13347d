"""Tasks for producer processes: numbers instead of speech, and every way in which a task can go wrong."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from myxtts import pipeline, processes

ROWS = 5
SUBSTITUTE = 1_000_000
ENGINE = (str(Path(pipeline.__file__).parent), processes.__file__)


class ResourceExhaustedError(Exception):
    """As TensorFlow's is called."""


class NumbersTask:
    """A batch is the numbers of its clips and noise that depends on them.

    Settings:
        pause_s: how long each row takes.
        faults: what goes wrong; each is a dictionary with `do`, and optionally `clip` or `position` for where it happens,
            `stage` for when (`row` unless told), `above` for preparation batches from which on, and `once` for a file
            that remembers that it has happened.
    """

    def __init__(self, settings, report):
        self._settings = settings
        self._report = report
        self._replaced = Counter()
        self._fail("load")

    def warm_up(self):
        self._fail("warm-up")

    def prepare(self, position):
        self._fail("prepare", position=position)
        clips = self._list_clips(position)
        for clip in clips:
            time.sleep(self._settings.get("pause_s", 0.0))
            self._fail("row", position=position, clip=clip)
        rows = [make_row(clip) for clip in clips]
        return {"clips": np.array(clips, np.int32), "noise": np.stack(rows), "position": np.array(position)}

    def replace_batch(self, position):
        names = [f"clip {clip}" for clip in self._list_clips(position)]
        self._replaced[position] += 1
        return names

    def _list_clips(self, position):
        return [position * ROWS + row + SUBSTITUTE * self._replaced[position] for row in range(ROWS)]

    def _fail(self, stage, **here):
        for fault in self._settings.get("faults", []):
            wanted = {key: fault[key] for key in ("clip", "position") if key in fault}
            if fault.get("stage", "row") != stage or any(here.get(key) != value for key, value in wanted.items()):
                continue
            if (self._settings.get("preparation_batch") or 1) <= fault.get("above", 0):
                continue
            if "once" in fault:
                path = Path(fault["once"])
                if path.exists():
                    continue
                path.touch()
            self._report(fault.get("report", stage))
            DEEDS[fault["do"]]()


def make_row(clip):
    return np.random.default_rng(clip).standard_normal(500).astype(np.float32)


def make_expected(position, replaced=()):
    """The batch as it must arrive."""
    task = NumbersTask({}, lambda doing: None)
    for each in replaced:
        task.replace_batch(each)
    return task.prepare(position)


def make_mortal(settings, report):
    """A task whose process is killed before the n-th line of the engine that it executes from here on.

    Settings:
        line: the n.
        once: a file that is made when that happens; the next process lives.
    """
    if not Path(settings["once"]).exists():
        _die_before_line(settings["line"], Path(settings["once"]))
    return NumbersTask(settings, report)


def _die_before_line(line, done):
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                done.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    threading.settrace(trace)
    frame = sys._getframe()
    while frame is not None:
        frame.f_trace = trace
        frame = frame.f_back


def _hang_natively():
    # With the interpreter's lock held, as a driver call can: no Python code of this process runs any more.
    ctypes.PyDLL(None).sleep(600)


def hang_aloud():
    print("here", flush=True)
    while True:
        # Again: a signal ends the sleep.
        _hang_natively()


def _raise(error):
    raise error


def _raise_resource_exhausted():
    try:
        raise ResourceExhaustedError("OOM when allocating tensor with shape[1024,80,4096]")
    except ResourceExhaustedError as error:
        raise RuntimeError("preparing failed") from error


def _leave_a_thread_behind():
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("with a thread still running")


def _allocate():
    # Never written to, so it costs nothing where it is allowed.
    np.empty(1 << 27, np.float64)


HELD = []


def _hold():
    HELD.append(np.ones(4 << 20, np.float64))


def _fork_and_die():
    if os.fork() == 0:
        # Holds the inherited end of the connection for a while.
        time.sleep(1)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


DEEDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "leave": lambda: sys.exit(0),
    "hang": lambda: time.sleep(600),
    "hang natively": _hang_natively,
    "raise": lambda: _raise(ValueError("the clip is upside down")),
    "memory": lambda: _raise(MemoryError()),
    "exhaust": _raise_resource_exhausted,
    "thread": _leave_a_thread_behind,
    "allocate": _allocate,
    "hold": _hold,
    "fork": _fork_and_die,
    "nothing": lambda: None,
    "chatter": lambda: print("x" * 200_000, flush=True),
}

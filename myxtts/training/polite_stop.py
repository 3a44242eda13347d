"""A signal that comes before a run is open: where it stopped, and how to go on. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from signal import Signals

from myxtts.config import XTTSConfig
from myxtts.training.errors import RunStoppedError
from myxtts.training.interrupts import StopNow, StopRequests
from myxtts.training.run_folder import describe_progress, locate_run, make_resume_command


@contextmanager
def stops_politely(config: XTTSConfig, command: Sequence[str], doing: str) -> Iterator[None]:
    """A block that SIGTERM and Ctrl-C end at once, with a `RunStoppedError` that says how to go on.

    Args:
        command: the words that started the program.
        doing: what the block does, as in "while TensorFlow was imported".
    """
    with StopRequests() as stop:
        try:
            with stop.while_idle():
                yield
            # A library that is being loaded may have taken the stop for an error of its own.
            stop.check()
        except StopNow:
            assert stop.signal is not None
            raise explain_stop_before_run(config, command, stop.signal, doing) from None


def explain_stop_before_run(
    config: XTTSConfig, command: Sequence[str], signal: Signals, doing: str | None = None
) -> RunStoppedError:
    """The error for a stop before the run was open. An earlier session of the run may have trained something.

    Args:
        command: the words that started the program.
        doing: see `stops_politely`.
    """
    where = signal.name if doing is None else f"{signal.name} {doing},"
    folder = locate_run(config)
    # What --reset-training asks to be kept aside is not gone on with.
    done = None if config.training.resume == "reset" else describe_progress(folder)
    stopped = f"Stopped by {where} before anything was trained in this session."
    if done is None:
        return RunStoppedError(f"{stopped} Start it again with the same command.", signal, None)
    return RunStoppedError(
        f"{stopped} Nothing is lost of the run in {folder}: {done}.", signal, make_resume_command(command)
    )

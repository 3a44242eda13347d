"""What the training thread is doing, in words, for whoever asks whether it hangs."""

from __future__ import annotations

from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.batches import Batches
from myxtts.pipeline.worker import Work
from myxtts.training.run_watch import RunWatch

_NAMES = {
    Cause.STEP: "step",
    Cause.TRACE: "step",
    # The stages that make it are looked at while it is waited for; this is for the case that none of them works.
    Cause.DATA_STALL: "waiting for a batch",
    Cause.TRANSFER: "transfer",
    Cause.CHECKPOINT: "checkpoint",
    Cause.VALIDATION: "validation",
    Cause.RECOVERY: "recovery",
    Cause.OTHER_WORKERS: "waiting for other workers",
    # On an asynchronous device a step that hangs shows when its loss is read.
    Cause.OTHER: "reading the losses",
}
_START_UP, _ENDING = "start-up", "the end of the run"
_STEADY = frozenset({Cause.STEP, Cause.TRANSFER, Cause.VALIDATION})
"""All else may take long without hanging: large files, first calls, a producer that is started again, and all the steps that an
asynchronous device still has to do before it can tell a loss."""


def read_run_work(watch: RunWatch, source: Batches | None, start_s: float) -> Work:
    """What the thread that trains is doing now. For any thread.

    Args:
        start_s: how long a part of the start-up may take.
    """
    own = None if source is None else source.read_work()
    if own is not None:
        return own
    span, since_s = watch.ledger.peek()
    if span.cause is Cause.START_UP:
        return read_start_work(watch.ledger, start_s)
    is_first = span.is_first or span.cause not in _STEADY or watch.clock.ended == 0
    return Work(span.name or _NAMES[span.cause], span.item, since_s, is_first)


def read_start_work(ledger: TimeLedger, limit_s: float) -> Work:
    """What the thread is doing before there is anything to train, or after. For any thread."""
    span, since_s = ledger.peek()
    name = span.name or (_START_UP if span.cause is Cause.START_UP else _ENDING)
    return Work(name, span.item, since_s, limit_s=limit_s)

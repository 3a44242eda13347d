"""Rows of a run that never was, made from a few numbers, so that every figure of it is known."""

import math

from myxtts.monitoring.clock import Cause, Flow
from myxtts.monitoring.metrics import EventRow, MachineRow, MemoryUse, RunRow, SummaryRow, TrainRow, ValidationRow
from myxtts.monitoring.sampler import CardSummary, HostSummary
from myxtts.pipeline.threads import HandoffFacts, WorkFacts

GIB = 2**30
START_S = 1_700_000_000.0
SETTINGS = {
    "data": {
        "batch_size": 8,
        "num_workers": 2,
        "pipeline_buffer_size": 50,
        "prefetch_buffer_size": 4,
        "cache": "off",
        "mixed_precision": "float32",
        "enable_xla": False,
        "pad_to_fixed_length": True,
        "max_clip_seconds": 12.0,
    },
    "training": {
        "gradient_accumulation_steps": 2,
        "rehearsal": False,
        "checkpoint_interval": 100,
        "validation_interval": 50,
    },
}


def make_run_row(step=0, **changes):
    values = {
        "time_s": START_S + step, "step": step, "end_step": 400, "stage": "gpt", "mode": "isolated",
        "devices": {"data": "/GPU:0", "model": "/GPU:1"}, "settings": SETTINGS, "environment": {"tensorflow": "2.21.0"},
        "around": {"cards": [0, 1], "processors": 16},
    }  # fmt: skip
    return RunRow(**(values | changes))


def make_flow(elapsed_s=10.0, train_waits=0.02, transfer_waits=0.5, busy=0.5):
    """Reading and preparing, transferring, training: waiting, and reading and preparing, as shares of the time."""
    return Flow(
        elapsed_s,
        (
            WorkFacts("read", 20, 0.1 * busy * elapsed_s),
            WorkFacts("prepare", 20, 0.9 * busy * elapsed_s),
            WorkFacts("transfer", 20, 0.05 * elapsed_s),
        ),
        (
            HandoffFacts("producer", 20, 0.4 * elapsed_s, transfer_waits * elapsed_s, 1 - transfer_waits),
            HandoffFacts("on the model device", 20, 0.3 * elapsed_s, train_waits * elapsed_s, 1 - train_waits),
        ),
    )


def make_train_row(step, steps=10, **changes):
    """Ten steps of 0.9 s and one second of other things."""
    values = {
        "time_s": START_S + step, "step": step, "epoch": step // 100,
        "losses": tuple(3 + 2 * math.exp(-(step - steps + 1 + n) / 80) for n in range(steps)), "learning_rate": 2e-4,
        "step_times_s": tuple(0.9 + 0.01 * (n % 5) for n in range(steps)), "left_out": 0,
        "spent": {Cause.STEP: 9.0, Cause.DATA_STALL: 0.5, Cause.OTHER: 0.5}, "batches": 2 * steps, "clips": 16 * steps,
        "samples": 16 * steps * 80_000, "padded_samples": 16 * steps * 100_000, "clips_per_s": 16.0, "audio_seconds_per_s": 58.0,
        "retraces": 0, "flow": make_flow(), "memory": (MemoryUse("/GPU:1", 9 * GIB, 16 * GIB), MemoryUse("/GPU:0", None, 8 * GIB)),
    }  # fmt: skip
    return TrainRow(**(values | changes))


def make_machine_row(step):
    """One card that tells everything, and one that tells nothing."""
    told = CardSummary(1, 0.9, 310.0, 350.0, 1700.0, 1980, 81.0, ("power limit",))
    silent = CardSummary(0, None, None, None, None, None, None, None)
    host = HostSummary(0.4, 3 * GIB, 8 * GIB)
    return MachineRow(time_s=START_S + step, step=step, cards=(silent, told), host=host)


def make_rows(steps=400):
    """A run with start-up, validation, checkpoints and one death of the producer."""
    rows = [make_run_row()]
    for step in range(10, steps + 1, 10):
        spent = {Cause.STEP: 9.0, Cause.DATA_STALL: 0.5, Cause.OTHER: 0.5}
        if step == 10:
            spent = {Cause.START_UP: 20.0, Cause.TRACE: 10.0, Cause.STEP: 5.0}
        flow = make_flow(train_waits=0.05 + 0.04 * math.sin(step / 40), transfer_waits=0.3 + 0.2 * math.cos(step / 60))
        rows.append(make_train_row(step, spent=spent, flow=flow))
        if step % 50 == 0:
            loss = 3.1 + 2 * math.exp(-step / 80)
            rows.append(ValidationRow(time_s=START_S + step, step=step, loss=loss, is_best=True))
        if step % 100 == 0:
            rows.append(EventRow(time_s=START_S + step, step=step, name="checkpoint", text=f"step-{step}, 1.2 GB"))
    died = EventRow(time_s=START_S + 150, step=150, name="producer died", text="killed by <SIGKILL> & restarted")
    rows.insert(20, died)
    rows += [make_machine_row(steps - 10), make_machine_row(steps)]
    rows.append(
        SummaryRow(time_s=1_700_000_500.0, step=steps, status="finished", spent={Cause.CHECKPOINT: 5.0, Cause.VALIDATION: 5.0})
    )  # fmt: skip
    return rows

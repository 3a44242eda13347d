"""Small training checkpoints whose every value follows from their step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints.store import Checkpoint, CheckpointStore, TrainingState, read_training_checkpoint
from myxtts.config import XTTSConfig

CONFIG = XTTSConfig(model={"size": "tiny"})


def make_content(step: int, size: int = 100) -> dict[str, Any]:
    """The arguments of `CheckpointStore.save`."""
    return {
        "model": {
            "config": CONFIG,
            "model": {"gpt.w": np.full(size, step, np.float32)},
            "dvae": {"codebook": np.full(3, -step, np.float32)},
            "vocabulary": f'{{"made at": {step}}}',
        },
        "tensors": {"adam/m/gpt.w": np.full(size, step + 0.5, np.float32), "loss_scale": np.array(2.0**15, np.float32)},
    }


def make_state(step: int, **metrics: float) -> TrainingState:
    return TrainingState(
        step=step, metrics=metrics, position={"step": step, "failures": [[step, 1, 2]]}, extra={"patience": step % 3}
    )


def open_store(folder: Path, keep_last: int = 2, keep_best: int = 1) -> CheckpointStore:
    return CheckpointStore(folder, keep_last=keep_last, keep_best=keep_best, best_metric="val_loss")


def save(store: CheckpointStore, step: int, **metrics: float) -> Checkpoint:
    return store.save(**make_content(step), state=make_state(step, **metrics))


def assert_content(checkpoint: Checkpoint) -> None:
    """Fails unless every value in the checkpoint is that of its step."""
    model, tensors, state = read_training_checkpoint(checkpoint.path)
    content = make_content(checkpoint.step)
    for actual, expected in (
        (model.model, content["model"]["model"]),
        (model.dvae, content["model"]["dvae"]),
        (tensors, content["tensors"]),
    ):
        assert actual is not None
        assert actual.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name].read(), array, err_msg=name, strict=True)
    assert model.vocabulary == content["model"]["vocabulary"]
    assert state == make_state(checkpoint.step, **checkpoint.metrics)


def list_steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.list()]


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """What `myxtts` warns of in the block."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("myxtts")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)

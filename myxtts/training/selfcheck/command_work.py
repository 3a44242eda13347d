"""Checks that train as a user does, by `myxtts train`: what several processes do, and what is chosen before there is a plan."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from myxtts.cluster.private_network import has_private_network
from myxtts.cluster.process_group import Command, ProcessGroup
from myxtts.config import XTTSConfig
from myxtts.processes import make_importable
from myxtts.training.run_record import read_record
from myxtts.training.selfcheck.situation import Situation
from myxtts.training.selfcheck.small_run import make_config, read_falling_losses
from myxtts.training.selfcheck.work import CheckFailedError, Seen
from myxtts.utils.commons import setup_logging

_log = logging.getLogger(__name__)

LAST_LINES = 12
CLOSED = (
    "its workers can have no network of their own here, as in most containers. Where nobody else has a login, "
    "`myxtts selfcheck --open-ports` lets them use the machine's"
)


def train_parallel(situation: Situation, *, name: str) -> Seen:
    """A short training by `--model-gpus`: both devices train, and share every batch."""
    if not situation.opens_ports and not has_private_network():
        return Seen(CLOSED, {}, is_done=False)
    said = _train(situation, name, training={"model_gpus": f"{situation.model_gpu},{situation.data_gpu}"})
    losses = read_falling_losses(situation.root / name)
    if not (situation.root / name / "worker-1").is_dir():
        raise CheckFailedError(f"Two workers were to train, but only one did:\n{said}")
    return _describe(losses, "two workers")


def train_auto(situation: Situation, *, name: str) -> Seen:
    """A short training by `--mode auto`: the mode is chosen by a measurement, and kept with the run."""
    ids = {} if situation.rehearsal else {"data_gpu": situation.data_gpu, "model_gpu": situation.model_gpu}
    said = _train(situation, name, training={"mode": "auto"}, data=ids)
    record = read_record(situation.root / name)
    if record is None or record.choice is None:
        raise CheckFailedError(f"A mode was to be chosen and kept with the run, but {name} has none:\n{said}")
    return _describe(read_falling_losses(situation.root / name), f"it chose the {record.choice['layout']} mode")


def _describe(losses: list[float], how: str) -> Seen:
    return Seen(
        f"{len(losses)} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}; {how}", {"losses": losses, "how": how}
    )


def _train(situation: Situation, name: str, **sections: Any) -> str:
    """The end of what `myxtts train` said. Raises `CheckFailedError` where it did not train to its end."""
    setup_logging()
    config = make_config(situation, name, is_deterministic=situation.rehearsal).replace(**sections)
    lines: list[str] = []

    def hear(_: int, line: str) -> None:
        _log.info("%s", line)
        lines.append(line)

    ports = ["--open-ports"] if situation.opens_ports else []
    words = [sys.executable, "-P", "-m", "myxtts.cli.main", "train", *ports]
    words += ["--config", str(_write(situation, name, config))]
    (code,) = ProcessGroup([Command(words, make_importable(os.environ))], hear).run()
    said = "\n".join(lines[-LAST_LINES:])
    if code != 0:
        raise CheckFailedError(f"`myxtts train` ended with exit code {code}:\n{said}")
    return said


def _write(situation: Situation, name: str, config: XTTSConfig) -> Path:
    path = situation.root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config.given_values()), encoding="utf-8")
    return path

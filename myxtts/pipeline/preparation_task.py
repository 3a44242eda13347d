"""What the producer process does: makes the batches of a run on its own device.

Besides its batches it has lines of its log and clips that failed to tell, which are carried with a batch (`NoteTaker`): its
own standard error is read only when it dies, and a run must not hide in which way it prepares.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.data.drops import Drop, DropReason, DropReport
from myxtts.data.run_data import load_run_data
from myxtts.devices.plan import DevicePlan, Process
from myxtts.devices.plan_json import dump_plan, load_plan
from myxtts.devices.runtime import Execution, apply_execution, apply_plan, read_execution
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.producer import ProducerTask, ReportStage, TaskSpec
from myxtts.pipeline.production import read_production
from myxtts.pipeline.ring import Arrays
from myxtts.utils.commons import setup_logging

PRODUCTION_NAME = "production.json"
NOTES = "notes_U"
MOST_NOTE_BYTES = 1 << 15
"""Of a batch. What does not fit goes with the next one."""

_LONGEST_LINE = 2000


def describe_task(plan: DevicePlan, folder: Path, preparation_batch: int) -> TaskSpec:
    """The task of a producer that runs operations as this process does.

    Args:
        folder: holds the run's data and production.
        preparation_batch: rows prepared at a time, to begin with.
    """
    settings = {
        "plan": dump_plan(plan),
        "execution": asdict(read_execution()),
        "folder": str(folder),
        "preparation_batch": preparation_batch,
    }
    return TaskSpec(f"{__name__}:{make_task.__name__}", settings)


def make_task(settings: Mapping[str, Any], report_stage: ReportStage) -> ProducerTask:
    """The task, loaded; from here on this process sees only its part of the plan."""
    plan = load_plan(settings["plan"])
    setup_logging()
    apply_execution(Execution(**settings["execution"]))
    folder = Path(settings["folder"])
    production = read_production(folder / PRODUCTION_NAME)
    production = replace(
        production, preparation=replace(production.preparation, rows_at_a_time=settings["preparation_batch"])
    )
    data = load_run_data(folder)
    notes = NoteTaker(data.report)
    logging.getLogger("myxtts").addHandler(notes)
    apply_plan(plan, Process.PRODUCER)
    return PreparationTask(BatchFactory(data, production, plan.data.device, report_stage), notes)


class PreparationTask:
    """A factory as a `ProducerTask`, with what it has to say."""

    def __init__(self, factory: BatchFactory, notes: NoteTaker):
        self._factory = factory
        self._notes = notes

    def warm_up(self) -> None:
        self._factory.warm_up()

    def prepare(self, position: int) -> Arrays:
        return {**self._factory.fetch(self._factory.make(position)), NOTES: self._notes.dump()}

    def replace_batch(self, position: int) -> list[str]:
        return self._factory.replace_batch(position, "the producer died twice at its batch")


class NoteTaker(logging.Handler):
    """Collects what this process's code logs, and what is added to a drop report.

    Args:
        report: of clips that fail.
    """

    def __init__(self, report: DropReport):
        super().__init__(logging.INFO)
        self._notes: deque[list[Any]] = deque()
        self._report = report
        self._reported = len(report.replaced)

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(["log", record.levelno, record.name, record.getMessage()[:_LONGEST_LINE]])

    def dump(self) -> NDArray[np.uint8]:
        """What was noted since the last call, as `notes_U`."""
        for drop in self._report.replaced[self._reported :]:
            self._notes.append(["drop", drop.reason, drop.file, drop.where, drop.detail[:_LONGEST_LINE]])
        self._reported = len(self._report.replaced)
        lines: list[bytes] = []
        room = MOST_NOTE_BYTES
        while self._notes:
            line = json.dumps(self._notes[0]).encode()
            room -= len(line) + 1
            if room < 0:
                break
            lines.append(line)
            self._notes.popleft()
        return np.frombuffer(b"\n".join(lines), np.uint8)


class NoteReader:
    """Puts what a producer noted where it would be had it happened here.

    A producer that is started anew says most of it again; only what is new counts.

    Args:
        report: of clips that fail.
    """

    def __init__(self, report: DropReport):
        self._report = report
        self._known: set[tuple[Any, ...]] = set()

    def read(self, notes_U: NDArray[np.uint8]) -> None:
        """Logs and reports what is in `notes_U`."""
        for line in notes_U.tobytes().splitlines():
            note = tuple(json.loads(line))
            if note in self._known:
                continue
            self._known.add(note)
            match note:
                case ("log", int(level), str(name), str(text)):
                    logging.getLogger(name).log(level, "%s", text)
                case ("drop", str(reason), *rest):
                    self._report.replaced.append(Drop(DropReason(reason), *rest))

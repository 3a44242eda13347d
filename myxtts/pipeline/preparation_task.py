"""What the producer process does: makes the batches of a run on its own device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from myxtts.data.run_data import load_run_data
from myxtts.devices.plan import DevicePlan, Process
from myxtts.devices.plan_json import dump_plan, load_plan
from myxtts.devices.runtime import Execution, apply_execution, apply_plan, read_execution
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.messages import TaskSpec
from myxtts.pipeline.producer_notes import NOTES, NoteTaker
from myxtts.pipeline.production import read_production
from myxtts.pipeline.ring import Arrays
from myxtts.pipeline.task import ProducerTask, ReportStage
from myxtts.utils.commons import setup_logging

PRODUCTION_NAME = "production.json"


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

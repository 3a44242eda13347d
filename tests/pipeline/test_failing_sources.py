"""What goes wrong in a pipeline is raised where batches are taken, by the name of its stage, and nothing survives it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock as Mock

import pytest

from myxtts.devices.plan import DevicePlan, Mode, Process, ProcessPlan, Role, RolePlan
from myxtts.errors import ProducerFailedError, StageFailedError
from myxtts.pipeline.order import RunOrder
from myxtts.pipeline.preparation import Preparer
from myxtts.pipeline.sources import BatchSource, SourceRequest, open_source
from myxtts.pipeline.stage import Stage
from tests.pipeline.small_runs import damage_clip, make_production, make_run_folder
from tests.pipeline.source_program import list_what_is_left


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=16)


def make_plan(mode: Mode) -> DevicePlan:
    """A plan on the devices that every process has, so that it need not be applied."""
    producer = Process.PRODUCER if mode is Mode.ISOLATED else Process.TRAINER
    return DevicePlan(
        mode,
        True,
        RolePlan(Role.DATA, producer, "/CPU:0", None, None),
        RolePlan(Role.MODEL, Process.TRAINER, "/CPU:0", None, None),
        tuple(ProcessPlan(process, ()) for process in Process),
    )


def open_small(folder: Path, mode: Mode, data: dict[str, Any] | None = None, **options: Any) -> BatchSource:
    run_data, production = make_production(folder, data={"num_workers": 0, "batch_size": 5, **(data or {})})
    order = RunOrder(run_data.sampler, run_data.validation_batches, validation_interval=4, end_step=8)
    return open_source(SourceRequest(make_plan(mode), run_data, order, production, folder / "producer", **options))


def take_three(source: BatchSource) -> None:
    for _ in range(3):
        source.take()
        source.release()


@pytest.fixture
def failing_prepare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The third batch cannot be prepared."""
    real, calls = Preparer.prepare, []

    def prepare(self: Preparer, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("no such mel")
        return real(self, *arguments)

    monkeypatch.setattr(Preparer, "prepare", prepare)
    yield
    assert len(calls) == 3


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.DUAL])
@pytest.mark.usefixtures("failing_prepare")
def test_an_error_in_preparing_names_the_stage_and_the_batch(mode: Mode, folder: Path) -> None:
    source = open_small(folder, mode)
    try:
        with pytest.raises(
            StageFailedError, match="Stage 'prepare' failed at batch 2: ZeroDivisionError: no such"
        ) as error:
            take_three(source)
        assert isinstance(error.value.__cause__, ZeroDivisionError)
    finally:
        source.close()


def test_an_error_in_the_producer_names_the_stage(folder: Path) -> None:
    data, production = make_production(folder, data={"num_workers": 0})
    order = RunOrder(data.sampler, data.validation_batches, validation_interval=4, end_step=8)
    broken = replace(production, preparation=replace(production.preparation, mel_norms=(1.0, 2.0)))
    source = open_source(SourceRequest(make_plan(Mode.ISOLATED), data, order, broken, folder / "producer"))
    try:
        with pytest.raises(ProducerFailedError, match="The producer failed in stage 'warm-up'"):
            source.take()
    finally:
        source.close()


def test_an_error_in_reading_names_the_stage(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path, clips=16)
    source = open_small(folder, Mode.DUAL)
    source.close()
    for path in (folder / "corpus" / "wavs").iterdir():
        damage_clip(path)
    source = open_small(folder, Mode.DUAL)
    try:
        with pytest.raises(StageFailedError, match="Stage 'read' failed at batch 0: TooManyFailuresError"):
            source.take()
    finally:
        source.close()


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.DUAL])
def test_a_source_may_be_closed_at_any_time(mode: Mode, folder: Path) -> None:
    open_small(folder, mode).close()
    source = open_small(folder, mode, {"num_workers": 1})
    source.take()
    source.advance()
    source.close()


@pytest.mark.parametrize("mode", [Mode.DUAL, Mode.ISOLATED])
def test_a_source_that_is_broken_off_while_it_is_opened_leaves_nothing(
    mode: Mode, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Stage.start

    def start(stage: Stage[Any, Any]) -> None:
        if stage.name == "transfer":
            raise KeyboardInterrupt
        real(stage)

    monkeypatch.setattr(Stage, "start", start)
    with pytest.raises(KeyboardInterrupt):
        open_small(folder, mode, {"num_workers": 1})
    assert list_what_is_left() == []


def test_a_source_that_is_broken_off_while_it_warms_up_leaves_nothing(folder: Path) -> None:
    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    waiting = Mock(__enter__=break_off, __exit__=lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        open_small(folder, Mode.SINGLE, {"num_workers": 1}, waiting=lambda: waiting)
    assert list_what_is_left() == []


def test_facts_begin_anew_after_a_reset(folder: Path) -> None:
    source = open_small(folder, Mode.DUAL, {"prefetch_buffer_size": 1})
    try:
        for _ in range(4):
            source.take()
            source.release()
        before = source.read_facts(reset=True)
        after = source.read_facts()
    finally:
        source.close()
    assert before.handoffs[1].items == 4
    assert after.handoffs[1].items == 0
    assert sum(stage.items for stage in before.stages) > sum(stage.items for stage in after.stages)


def test_a_codec_folder_without_a_codec_is_refused(folder: Path) -> None:
    data, production = make_production(folder)
    order = RunOrder(data.sampler, data.validation_batches, validation_interval=4, end_step=8)
    wrong = replace(production, codec_folder=folder / "corpus")
    with pytest.raises(ValueError, match="corpus"):
        open_source(SourceRequest(make_plan(Mode.SINGLE), data, order, wrong, folder / "producer"))

"""The profiler against pipelines whose slow stage is known: stages that only take time, in the real threads and slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from myxtts.checkpoints import write_model_directory
from myxtts.config import ModelConfig, XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.memory import Growth, Limit, Memory
from myxtts.devices.nvml import MIB, PhysicalId
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.monitoring.profile_facts import Part, Profile
from myxtts.monitoring.profile_verdict import Verdict, judge_profile
from myxtts.monitoring.settings_in_force import Settings, Surroundings
from myxtts.pipeline import single_source, staged_source, transfer
from myxtts.pipeline.batch_facts import FACTS
from myxtts.pipeline.batch_source import BatchSource, SourceRequest
from myxtts.pipeline.producer_client import FilledSlot
from myxtts.pipeline.stage import Feed, Stage
from myxtts.pipeline.staged_source import StagedSource
from myxtts.training.errors import CodecMissingError, ProfileError
from myxtts.training.profiling import run as profile_run
from myxtts.training.profiling import setup as profile_setup
from myxtts.training.profiling.run import ProfileLengths, Profiler, measure_profile
from myxtts.training.profiling.setup import ProfileSetup, set_up_profile
from myxtts.training.starting_point import StartingPoint, fit_model_config
from myxtts.utils import gpu_memory
from myxtts.utils.gpu_memory import GpuMemory
from tests.monitoring.profiles import make_run
from tests.training.paced_stages import CLOCK, Pace, PacedFactory, PacedHandoff, make_producer

STEPS = 16


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures reads the clock that the stages put on."""
    CLOCK.now_s = 0.0
    for module in (profile_run, single_source, staged_source, transfer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=CLOCK.read))
    monkeypatch.setattr(staged_source, "Handoff", PacedHandoff)


def open_dual(pace: Pace) -> StagedSource:
    factory, prepared = PacedFactory(pace), PacedHandoff[Any]("prepared")

    def unpack(arrays: dict[str, Any]) -> dict[str, Any]:
        pace.hold("transfer", int(arrays[FACTS][0]))
        return dict(arrays)

    return StagedSource(
        prepared,
        unpack=unpack,
        stages=[Stage("prepare", factory.make, Feed(iter(range(10**6))), prepared)],
        resources=ExitStack(),
        device="/CPU:0",
        start_delay_s=0.0,
    )


def open_isolated(pace: Pace) -> StagedSource:
    """With a producer process that only takes time."""

    def unpack(slot: FilledSlot) -> dict[str, Any]:
        pace.hold("transfer", int(slot.arrays[FACTS][0]))
        return dict(slot.arrays)

    with ExitStack() as resources:
        producer = make_producer(pace)
        resources.callback(producer.close)
        producer.start()
        return StagedSource(
            producer,
            unpack=unpack,
            stages=[],
            resources=resources,
            device="/CPU:0",
            start_delay_s=0.0,
            producer=producer,
        )


OPEN = {"dual": open_dual, "isolated": open_isolated}


@pytest.fixture
def open_single(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pace], BatchSource]:
    """Opens the real source of the single mode over a paced factory."""

    def open_it(pace: Pace) -> BatchSource:
        monkeypatch.setattr(single_source, "BatchFactory", lambda *_: PacedFactory(pace))
        place = single_source.place_batch

        def place_slowly(arrays: dict[str, Any], device: str) -> Any:
            began = CLOCK.read()
            pace.hold("transfer", int(arrays[FACTS][0]))
            return place(arrays, device, began)

        monkeypatch.setattr(single_source, "place_batch", place_slowly)
        order = type("Order", (), {"first_number": 0, "end_number": 10**6})
        return single_source.SingleSource(SourceRequest(make_plan("single"), None, order, None, None))  # type: ignore[arg-type]

    return open_it


def make_plan(mode: str) -> Any:
    config = XTTSConfig(training={"rehearsal": True, "mode": mode})
    plan = plan_devices(PlanRequest.from_config(config), read_machine())
    # The only device of a process whose devices were not set up.
    return replace(plan, data=replace(plan.data, device="/CPU:0"), model=replace(plan.model, device="/CPU:0"))


def profile(source: BatchSource, pace: Pace, mode: str) -> tuple[Profile, Verdict]:
    with closing(source):

        def train(batch: Any) -> bool:
            pace.hold("train", batch.facts.number)
            return False

        profiler = Profiler(source, train, ProfileLengths(STEPS, read_ahead=4, shapes=2))
        measured = measure_profile(profiler, make_run(mode), make_plan(mode), lambda _: None)
    return measured, judge_profile(measured, Settings.of_config(XTTSConfig(), Surroundings((), 8)))


SLOW = [
    (Pace(read=0.030), "read", "DATA LOADING BOTTLENECK"),
    (Pace(prepare=0.030), "prepare", "DATA DEVICE SATURATED"),
    (Pace(transfer=0.030), "transfer", "GPU TRANSFER BOTTLENECK"),
    (Pace(train=0.040), "train", None),
]


@pytest.mark.parametrize("mode", list(OPEN))
@pytest.mark.parametrize(("pace", "stage", "title"), SLOW, ids=lambda value: value if isinstance(value, str) else "")
def test_the_slow_stage_of_a_pipeline_is_named(mode: str, pace: Pace, stage: str, title: str | None) -> None:
    measured, verdict = profile(OPEN[mode](pace), pace, mode)
    assert verdict.stage == stage
    assert verdict.is_balanced == (stage == "train")
    if title is not None:
        assert verdict.rules[0].title == title
    own = {part: measured.costs[part].own_s for part in (Part.LOAD, Part.PREPARE, Part.TRANSFER, Part.TRAIN)}
    asked = {Part.LOAD: pace.read, Part.PREPARE: pace.prepare, Part.TRANSFER: pace.transfer, Part.TRAIN: pace.train}
    assert own == pytest.approx(asked)
    assert measured.cached_mean_s == pytest.approx(pace.train)
    assert len(measured.real) == STEPS


@pytest.mark.parametrize(("pace", "stage", "title"), SLOW, ids=lambda value: value if isinstance(value, str) else "")
def test_the_slow_stage_of_a_single_device_is_named(
    open_single: Callable[[Pace], BatchSource], pace: Pace, stage: str, title: str | None
) -> None:
    measured, verdict = profile(open_single(pace), pace, "single")
    expected = {"prepare": "PREPROCESSING BOTTLENECK"}.get(stage, title)
    assert [rule.title for rule in verdict.rules[:1]] == ([expected] if expected else [])
    assert verdict.is_balanced == (stage == "train")
    assert verdict.stage == stage
    # In series a step is the sum of everything.
    assert measured.times.mean_s == pytest.approx(pace.read + pace.prepare + pace.transfer + pace.train)


@pytest.mark.parametrize("mode", [*OPEN, "single"])
@pytest.mark.parametrize("stage", ["read", "prepare", "transfer", "train"])
def test_jitter_is_named_with_the_stage_it_comes_from(
    open_single: Callable[[Pace], BatchSource], mode: str, stage: str
) -> None:
    pace = Pace(rare=(stage, 0.120))
    _, verdict = profile({**OPEN, "single": open_single}[mode](pace), pace, mode)
    (rule,) = [rule for rule in verdict.rules if rule.title == "HIGH TIMING VARIATION"]
    names = {"read": Part.LOAD, "prepare": Part.PREPARE, "transfer": Part.TRANSFER, "train": Part.TRAIN}
    assert rule.part is names[stage]


def test_what_was_read_ahead_while_the_step_was_traced_does_not_hide_a_slow_disk() -> None:
    """Twenty batches come at once, as from a full buffer; then every one has to be waited for."""
    slow, fast = Pace(read=0.030), Pace(read=0.0)
    factory, prepared = PacedFactory(slow), PacedHandoff[Any]("prepared")
    ready = PacedFactory(fast)
    source = StagedSource(
        prepared,
        unpack=dict,
        stages=[Stage("prepare", lambda n: (ready if n < 20 else factory).make(n), Feed(iter(range(10**6))), prepared)],
        resources=ExitStack(),
        device="/CPU:0",
        start_delay_s=0.0,
    )
    with closing(source):
        profiler = Profiler(source, lambda _: CLOCK.hold(0.008) or False, ProfileLengths(10, read_ahead=40))  # type: ignore[func-returns-value]
        profiler.warm_up()
        pipeline = profiler.run_pipeline()
    assert all(batch.spans.read.seconds == pytest.approx(0.030) for batch in pipeline)


def test_steps_that_trace_are_left_out_with_those_that_follow() -> None:
    traced: Iterator[bool] = iter([True] + [False] * 14 + [True] + [False] * 1000)
    with closing(open_dual(Pace())) as source:
        profiler = Profiler(source, lambda _: next(traced), ProfileLengths(10, read_ahead=0))
        run = profiler.run_real()
    # Eight to fill the pipeline; after the sixteenth, which traced, it is full again and has to be emptied.
    assert len(run.times) == 10
    assert run.left_out == 8 + 4


def test_a_run_that_traces_every_step_cannot_be_profiled() -> None:
    with closing(open_dual(Pace())) as source:
        profiler = Profiler(source, lambda _: True, ProfileLengths(5, read_ahead=0))
        with pytest.raises(ProfileError, match="--enable-static-shapes"):
            profiler.run_real()


def test_the_size_is_that_of_the_model_that_is_fine_tuned(tmp_path: Path) -> None:
    start = StartingPoint(tmp_path, ModelConfig(size="tiny"), {})
    config = fit_model_config(XTTSConfig(), start, start.config, start.config.text_tokens)
    data, codec = MagicMock(), Mock()
    data.sampler.plan.waste.audio_share = 0.1
    setup = ProfileSetup(config, make_plan("single"), data, codec, start, tmp_path, ())
    assert config.model.size == "base", "the label that was asked for"
    assert setup.describe().model.startswith("tiny gpt, ")
    own = replace(setup, config=config.replace(model={"gpt_layers": 7}))
    assert own.describe().model.startswith("custom gpt, ")


def test_a_model_without_its_codec_is_refused_with_the_advice_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model_directory(tmp_path / "model", config=XTTSConfig(), model={"gpt.weight": np.zeros(1, np.float32)})
    monkeypatch.setattr(profile_setup, "collect_run_data", Mock())
    config = XTTSConfig(training={"init_from": str(tmp_path / "model"), "rehearsal": True})
    with pytest.raises(CodecMissingError, match=r"has no codec .* give that one with --codec\."):
        set_up_profile(config, make_plan("single"), tmp_path)


def test_a_decoder_cannot_be_set_up(tmp_path: Path) -> None:
    config = XTTSConfig(training={"stage": "decoder", "init_from": "somewhere", "rehearsal": True})
    with pytest.raises(ProfileError, match="--stage is decoder"):
        set_up_profile(config, make_plan("single"), tmp_path)


@pytest.mark.parametrize(
    ("limit", "apart"),
    [(Limit(8192), (3000, 9000, 808)), (Growth(), (3000, 9000, None))],
)
def test_memory_is_told_apart_by_pool_process_and_context(
    monkeypatch: pytest.MonkeyPatch, limit: Memory, apart: tuple[int | None, ...]
) -> None:
    reading = GpuMemory(0, 24564, 9500, 15064, pool_used_mb=3000, pool_peak_mb=3500, process_mb=9000)
    monkeypatch.setattr(gpu_memory, "monitor_gpu_memory", lambda *_: (reading,))
    plan = make_plan("single")
    role = replace(plan.model, device="/GPU:0", physical_id=PhysicalId(0), memory=limit)
    (memory,) = profile_run.read_memory(replace(plan, rehearsal=False, model=role, data=role))
    found = (memory.pool_bytes, memory.process_bytes, memory.context_bytes)
    assert found == tuple(None if mib is None else mib * MIB for mib in apart)

"""What is profiled: the devices of the run it stands for, and pipelines whose slow stage is known.

Their stages only take time, in the real threads and slots.
"""

import json
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from myxtts.checkpoints import write_model_directory
from myxtts.cli.main import run_command
from myxtts.config import XTTSConfig
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.nvml import MIB, Card, CardScan, PhysicalId
from myxtts.devices.plan import Growth, Limit, Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import CodecMissingError, UserError
from myxtts.monitoring.findings import MachineFacts, Settings
from myxtts.monitoring.profile_facts import StepPart, judge_profile
from myxtts.pipeline import batches
from myxtts.pipeline import batches as transfer
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import PipedBatches
from myxtts.pipeline.threads import Feed, WorkerThread
from myxtts.training.mode import Layout, ModeChoice, PlannedRun
from myxtts.training.starting_point import StartingPoint, fit_model_config
from myxtts.tuning import profile as profiling
from myxtts.tuning import profiling as profile_run
from myxtts.tuning import profiling as profile_setup
from myxtts.tuning.profile import describe_run, measure_three_runs, plan_profile, read_memory
from myxtts.tuning.profiling import Profiler, ProfileSetup, set_up_profile
from myxtts.utils import gpu_memory
from myxtts.utils.gpu_memory import GpuMemory
from tests.monitoring.profiles import make_run
from tests.tuning.paced_stages import CLOCK, Pace, PacedFactory, PacedHandoff, make_producer

NO_CARDS = Machine(CardScan((), (), None), 16000)
FOUR_CARDS = Machine(
    CardScan(tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000) for id in range(4)), (), None),
    16000,
)  # fmt: skip
TWO_WORKERS = {
    "cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]},
    "task": {"type": "worker", "index": 0},
}
STEPS = 16


def plan(training, machine=NO_CARDS):
    return plan_profile(XTTSConfig(training=training), machine, lambda _: None)


def test_a_decoder_is_refused_before_tensorflow_is_loaded(capsys):
    words = ["--rehearsal", "--stage", "decoder", "--init-from", "somewhere"]
    assert run_command("profile", words, "myxtts profile") == 2
    told = capsys.readouterr().err
    assert "Only the training of a codec or a GPT can be measured, but --stage is decoder." in told
    assert "Leave --stage out" in told


@pytest.mark.parametrize(
    ("layout", "workers", "is_faster", "words"),
    [
        (Layout.DATA_PARALLEL, (0, 1), False, "A training with --mode auto has both devices train (data-parallel). One rank is"),
        (Layout.SINGLE, (), True, "What is measured is single. Tested."),
        (Layout.ISOLATED, (), False, None),
    ],
)  # fmt: skip
def test_auto_is_chosen_as_a_training_would_and_what_is_not_measured_is_told(
    monkeypatch, layout, workers, is_faster, words
):
    mode = "isolated" if layout is Layout.ISOLATED else "single"
    chosen = plan_devices(PlanRequest(mode=mode, rehearsal=True), NO_CARDS)
    choice = ModeChoice(layout, True, 0.1, "Tested.", ("a", "b"), cache="memory", is_parallel_faster=is_faster)
    asked = []

    def plan_run(*_, launches, **__):
        asked.append(launches)
        return PlannedRun(chosen, choice, workers)

    monkeypatch.setattr(profiling, "plan_run", plan_run)
    planned = plan({"mode": "auto", "rehearsal": True})
    assert asked == [True], "a training may start workers"
    assert planned.plan is chosen
    # It was chosen for codes that are kept there.
    assert planned.config.data.cache == "memory"
    assert [note.startswith(words or "") for note in planned.notes] == ([True] if words else [])
    monkeypatch.undo()
    # One device is no choice: nothing is measured.
    assert plan({"mode": "auto"}).plan.mode is Mode.SINGLE


def test_of_several_workers_one_is_measured_and_that_is_said(monkeypatch):
    planned = plan({"model_gpus": "2,3"}, FOUR_CARDS)
    assert (planned.plan.mode, planned.plan.model.physical_id) == (Mode.SINGLE, 2)
    assert planned.notes == (
        "One rank is measured, alone and with whole batches. With --model-gpus 2,3, 2 workers share every batch and exchange "
        "their gradients; neither is in these figures.",
    )
    assert plan({"model_gpus": "2,3", "rehearsal": True}).plan.mode is Mode.SINGLE
    assert plan({}).notes == ()
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO_WORKERS))
    assert "With the cluster, 2 workers share every batch" in plan({}).notes[0]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Whoever measures reads the clock that the stages put on."""
    CLOCK.now_s = 0.0
    for module in (profile_run, batches, transfer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=CLOCK.read))
    monkeypatch.setattr(batches, "Handoff", PacedHandoff)


def open_piped(taken, threads=(), close=lambda: None, pace=None):
    """The batches of a mode with two devices; `pace` is that of copying."""

    def unpack(item):
        batch = item if isinstance(item, Batch) else Batch.unpack(item.arrays)
        if pace is not None:
            pace.hold("transfer", batch.info.facts.number)
        return batch

    return PipedBatches(make_recipe("dual"), taken, unpack=unpack, threads=threads, close_source=close)


def open_dual(pace, make=None):
    prepared = PacedHandoff("prepared")
    make = make or PacedFactory(pace).make
    return open_piped(prepared, [WorkerThread("prepare", make, Feed(iter(range(10**6))), prepared)], pace=pace)


def open_isolated(pace):
    """With a producer process that only takes time."""
    producer = make_producer(pace)
    return open_piped(producer, close=producer.close, pace=pace)


@pytest.fixture
def openers(monkeypatch):
    """By mode; that of the single one is the real one over a paced factory."""

    def open_single(pace):
        monkeypatch.setattr(batches, "BatchFactory", lambda *_: PacedFactory(pace))
        place = batches.place_batch

        def place_slowly(batch, device):
            began = CLOCK.read()
            pace.hold("transfer", batch.info.facts.number)
            return place(batch, device, began)

        monkeypatch.setattr(batches, "place_batch", place_slowly)
        return batches.open_batches(make_recipe("single"), None, folder=None)

    return {"dual": open_dual, "isolated": open_isolated, "single": open_single}


def make_recipe(mode):
    """What of a recipe counts here."""
    order = SimpleNamespace(first_number=0, end_number=10**6)
    config = XTTSConfig(data={"model_start_delay": 0.0})
    return SimpleNamespace(plan=make_plan(mode), config=config, make_order=lambda data: order)


def make_plan(mode):
    config = XTTSConfig(training={"rehearsal": True, "mode": mode})
    plan = plan_devices(PlanRequest.from_config(config), read_machine())
    # The only device of a process whose devices were not set up.
    return replace(plan, data=replace(plan.data, device="/CPU:0"), model=replace(plan.model, device="/CPU:0"))


def make_profiler(source, train, **lengths):
    return Profiler(source, SimpleNamespace(train=train), **lengths)


def profile(source, pace, mode):
    with closing(source):

        def train(batch):
            pace.hold("train", batch.info.facts.number)
            return False

        profiler = make_profiler(source, train, steps=STEPS, read_ahead=4, shapes=2)
        measured = measure_three_runs(profiler, make_run(mode), make_plan(mode), lambda _: None)
    return measured, judge_profile(measured, Settings.of_config(XTTSConfig(), MachineFacts((), 8)))


SLOW = [
    (Pace(read=0.030), "read", "DATA LOADING BOTTLENECK"),
    (Pace(prepare=0.030), "prepare", "DATA DEVICE SATURATED"),
    (Pace(transfer=0.030), "transfer", "GPU TRANSFER BOTTLENECK"),
    (Pace(train=0.040), "train", None),
]


@pytest.mark.parametrize("mode", ["dual", "isolated", "single"])
@pytest.mark.parametrize(("pace", "stage", "title"), SLOW, ids=lambda value: value if isinstance(value, str) else "")
def test_the_slow_stage_of_a_pipeline_is_named(openers, mode, pace, stage, title):
    measured, verdict = profile(openers[mode](pace), pace, mode)
    if mode == "single" and stage == "prepare":
        title = "PREPROCESSING BOTTLENECK"
    assert verdict.stage == stage
    assert verdict.is_balanced == (stage == "train")
    assert [rule.title for rule in verdict.rules[:1]] == ([title] if title else [])
    own = {
        part: measured.costs[part].own_s
        for part in (StepPart.LOAD, StepPart.PREPARE, StepPart.TRANSFER, StepPart.TRAIN)
    }
    asked = {
        StepPart.LOAD: pace.read,
        StepPart.PREPARE: pace.prepare,
        StepPart.TRANSFER: pace.transfer,
        StepPart.TRAIN: pace.train,
    }
    assert own == pytest.approx(asked)
    assert measured.cached_mean_s == pytest.approx(pace.train)
    assert len(measured.real) == STEPS
    if mode == "single":
        # In series a step is the sum of everything.
        assert measured.times.mean_s == pytest.approx(sum(asked.values()))


@pytest.mark.parametrize("mode", ["dual", "isolated", "single"])
@pytest.mark.parametrize("stage", ["read", "prepare", "transfer", "train"])
def test_jitter_is_named_with_the_stage_it_comes_from(openers, mode, stage):
    pace = Pace(rare=(stage, 0.120))
    _, verdict = profile(openers[mode](pace), pace, mode)
    (rule,) = [rule for rule in verdict.rules if rule.title == "HIGH TIMING VARIATION"]
    names = {"read": StepPart.LOAD, "prepare": StepPart.PREPARE, "transfer": StepPart.TRANSFER, "train": StepPart.TRAIN}
    assert rule.part is names[stage]


def test_what_was_read_ahead_while_the_step_was_traced_does_not_hide_a_slow_disk():
    """Twenty batches come at once, as from a full buffer; then every one has to be waited for."""
    ready, slow = PacedFactory(Pace(read=0.0)), PacedFactory(Pace(read=0.030))
    source = open_dual(Pace(), lambda number: (ready if number < 20 else slow).make(number))
    with closing(source):
        profiler = make_profiler(source, lambda _: CLOCK.hold(0.008) or False, steps=10, read_ahead=40)
        profiler.warm_up()
        pipeline = profiler.run_pipeline()
    assert all(batch.spans.read.seconds == pytest.approx(0.030) for batch in pipeline)


def test_steps_that_trace_are_left_out_with_those_that_follow():
    traced = iter([True] + [False] * 14 + [True] + [False] * 1000)
    with closing(open_dual(Pace())) as source:
        profiler = make_profiler(source, lambda _: next(traced), steps=10)
        times, left_out, _ = profiler.run_real()
    # Eight to fill the pipeline; after the sixteenth, which traced, it is full again and has to be emptied.
    assert len(times) == 10
    assert left_out == 8 + 4


def test_a_run_that_traces_every_step_cannot_be_profiled():
    with closing(open_dual(Pace())) as source:
        profiler = make_profiler(source, lambda _: True, steps=5)
        with pytest.raises(UserError, match="--enable-static-shapes"):
            profiler.run_real()


def test_the_size_is_that_of_the_model_that_is_fine_tuned(tmp_path):
    start = StartingPoint(SimpleNamespace(path=tmp_path, config=XTTSConfig(model={"size": "tiny"}), model={}))
    config = fit_model_config(XTTSConfig(), start, start.config, start.config.text_tokens)
    data, codec = MagicMock(), Mock()
    data.sampler.plan.waste.audio_share = 0.1
    setup = ProfileSetup(config, make_plan("single"), data, codec, start, tmp_path)
    assert config.model.size == "base", "the label that was asked for"
    assert describe_run(setup).model.startswith("tiny gpt, ")
    own = replace(setup, config=config.replace(model={"gpt_layers": 7}))
    assert describe_run(own).model.startswith("custom gpt, ")


def test_a_model_without_its_codec_is_refused_with_the_advice_of_a_run(tmp_path, monkeypatch):
    write_model_directory(tmp_path / "model", config=XTTSConfig(), model={"gpt.weight": np.zeros(1, np.float32)})
    start = StartingPoint(Mock(path=tmp_path / "model", dvae=None))
    monkeypatch.setattr(profile_setup, "read_starting_point", lambda *_, **__: start)
    monkeypatch.setattr(profile_setup, "collect_run_data", Mock())
    config = XTTSConfig(training={"init_from": str(tmp_path / "model"), "rehearsal": True})
    with pytest.raises(CodecMissingError, match=r"has no codec .* give that one with --codec\."):
        set_up_profile(config, make_plan("single"), tmp_path)


@pytest.mark.parametrize(
    ("limit", "apart"),
    [(Limit(8192), (3000, 9000, 808)), (Growth(), (3000, 9000, None))],
)
def test_memory_is_told_apart_by_pool_process_and_context(monkeypatch, limit, apart):
    reading = GpuMemory(0, 24564, 9500, 15064, pool_used_mb=3000, pool_peak_mb=3500, process_mb=9000)
    monkeypatch.setattr(gpu_memory, "monitor_gpu_memory", lambda *_: (reading,))
    plan = make_plan("single")
    role = replace(plan.model, device="/GPU:0", physical_id=PhysicalId(0), memory=limit)
    (memory,) = read_memory(replace(plan, rehearsal=False, model=role, data=role))
    found = (memory.pool_bytes, memory.process_bytes, memory.context_bytes)
    assert found == tuple(None if mib is None else mib * MIB for mib in apart)

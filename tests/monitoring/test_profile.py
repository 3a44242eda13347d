"""What a profile makes of its measurements: costs, rules, verdict, and how they are told."""

import html
import json
import re
from dataclasses import replace

import pytest

from myxtts.devices.nvml import CardActivity
from myxtts.monitoring.findings import MachineFacts, Settings
from myxtts.monitoring.metrics import MemoryUse
from myxtts.monitoring.profile_facts import Launches, StepPart, judge_profile
from myxtts.monitoring.sampler import HostActivity, MachineSample
from myxtts.tuning.profile import LANES, format_json, format_page, format_profile, format_trace
from tests.monitoring.profiles import Stages, make_profile, make_run

SETTINGS = Settings(
    {"data": {"num_workers": 2, "cache": "off", "prefetch_buffer_size": 4, "pipeline_buffer_size": 50, "max_clip_seconds": 12}},
    MachineFacts((), 8),
)  # fmt: skip
HOST = HostActivity(0.5, 3 << 30, 8 << 30)
BUSY_CARD = CardActivity(1, 95, 9000, 300.0, 350.0, 1700, 1980, 81, ("power limit",))
SILENT_CARD = CardActivity(0, None, None, None, None, None, None, None, None)


def judge(profile):
    return judge_profile(profile, SETTINGS)


def alternate(usual, rare, every=8):
    return [rare if number % every == 0 else usual for number in range(40)]


def test_a_wait_is_charged_to_what_was_done_to_the_batch_meanwhile():
    # Preparing takes 30 of every 31 ms of the data thread; the training needs 20 and waits for the rest.
    profile = make_profile(Stages(read=1, prepare=30, transfer=1, train=20))
    costs = profile.costs
    assert profile.times.mean_s == pytest.approx(0.031)
    # The transfer of 1 ms follows the preparation, so each batch is waited for in reading, preparing and copying.
    assert costs[StepPart.TRAIN].step_s == pytest.approx(0.020)
    assert costs[StepPart.TRANSFER].step_s == pytest.approx(0.001)
    assert costs[StepPart.PREPARE].step_s == pytest.approx(0.010)
    assert costs[StepPart.LOAD].step_s == pytest.approx(0.0)
    assert costs[StepPart.PREPARE].own_s == pytest.approx(0.030)
    assert sum(cost.share for cost in costs.values()) == pytest.approx(1.0)
    assert profile.data_share == pytest.approx(30 / 31)


def test_three_runs_give_headspace_and_the_bound():
    profile = make_profile(Stages(read=0, prepare=30, transfer=0, train=20))
    assert profile.cached_mean_s == pytest.approx(0.020)
    assert profile.pipeline_mean_s == pytest.approx(0.030)
    assert profile.headspace == pytest.approx(1 / 3)
    assert profile.speed_up.bound == pytest.approx(1 + 20 / 30)
    assert profile.speed_up.reached == pytest.approx(50 / 30)
    assert make_profile(Stages(), mode="single").data_share is None


def test_a_slow_model_breaks_no_rule():
    profile = make_profile(Stages(train=60))
    verdict = judge(profile)
    assert (verdict.stage, verdict.rules, verdict.is_balanced) == ("train", (), True)
    text = format_profile(profile, verdict)
    assert text.endswith("NO MAJOR BOTTLENECKS DETECTED\nPipeline appears well-balanced\nTraining utilization: 100.0%")


def test_rules_begin_exactly_where_users_were_told():
    # In series: 20 % loading is allowed, more is not; the same with 15 % of copying.
    def titles(stages):
        return [rule.title for rule in judge(make_profile(stages, mode="single")).rules]

    assert titles(Stages(read=19, prepare=0, transfer=0, train=81)) == []
    assert titles(Stages(read=21, prepare=0, transfer=0, train=79)) == ["DATA LOADING BOTTLENECK"]
    assert titles(Stages(read=0, prepare=0, transfer=14, train=86)) == []
    assert titles(Stages(read=0, prepare=0, transfer=16, train=84)) == ["GPU TRANSFER BOTTLENECK"]
    assert judge(make_profile(Stages(read=0, prepare=79, transfer=0, train=100))).rules == ()
    (rule,) = judge(make_profile(Stages(read=0, prepare=81, transfer=0, train=100))).rules
    assert rule.title == "DATA DEVICE SATURATED"
    # Nothing broken, but much waiting in small parts: not balanced.
    verdict = judge(make_profile(Stages(read=13, prepare=13, transfer=13, train=61), mode="single"))
    assert (verdict.rules, verdict.is_balanced) == ((), False)


def test_advice_is_a_flag_computed_from_the_settings_in_force():
    (rule, *_) = judge(make_profile(Stages(read=40))).rules
    assert rule.advice[0] == "More readers: --num-workers 4"
    (rule, *_) = judge(make_profile(Stages(prepare=50))).rules
    assert rule.advice[0] == "Prepare less often, or elsewhere: --cache auto"
    assert rule.evidence.startswith("the training waits for preparation 58.8%")
    assert rule.evidence.endswith("of it (rule: at most 80%)")
    cached = Settings({"data": {"cache": "disk"}})
    (rule, *_) = judge_profile(make_profile(Stages(prepare=50), cache_hits=1, cache_misses=9), cached).rules
    assert rule.advice[0].startswith("Codes are kept already")
    (rule, *_) = judge_profile(make_profile(Stages(prepare=50)), cached).rules
    assert rule.advice == ("No setting would change that here: only a faster device would prepare faster.",)


@pytest.mark.parametrize("mode", ["single", "dual", "isolated", "split"])
@pytest.mark.parametrize("slow", ["read", "prepare", "transfer", "train"])
def test_every_broken_rule_has_something_to_say_even_where_no_setting_is_left(mode, slow):
    nothing_left = Settings({"data": {"cache": "auto"}}, MachineFacts((), 1))
    jitter = make_profile(alternate(Stages(), Stages(**{slow: 200})), mode=mode)
    for profile in (make_profile(Stages(**{slow: 60}), mode=mode), jitter):
        for rule in judge_profile(profile, nothing_left).rules:
            assert rule.advice
            assert "None" not in " ".join(rule.advice)
            assert "--" not in rule.advice[0]


def test_a_stall_that_waiting_for_every_step_hides_is_found_in_the_steps_that_nobody_waits_for():
    # Waited for, a step takes 20 ms, in which the pipeline is always ready; a device that is fed without pause needs 10 of 15.
    hidden = make_profile(Stages(read=0, prepare=14, transfer=0, train=20))
    assert judge(hidden).is_balanced
    starved = make_profile(Stages(read=0, prepare=15, transfer=0, train=1))
    profile = replace(hidden, free=starved.synced, step_s=0.015, cached_s=(0.010,))
    # The host waits for 14, since it dispatches in 1 what the device works on for 10 of them.
    assert profile.wait_s == pytest.approx(0.014)
    assert profile.stall_s == pytest.approx(0.005)
    assert profile.costs[StepPart.PREPARE].step_s == pytest.approx(0.005)
    assert profile.costs[StepPart.PREPARE].own_s == pytest.approx(0.014)
    assert profile.training_share == pytest.approx(2 / 3)
    verdict = judge(profile)
    assert (verdict.is_balanced, verdict.limit, verdict.rules[0].part) == (False, StepPart.PREPARE, StepPart.PREPARE)
    # A step that is slower for other reasons is not stalled.
    assert replace(profile, cached_s=(0.001,), free=make_profile(Stages(train=60)).synced).stall_s == pytest.approx(0.0)
    text, facts = format_profile(profile, verdict), json.loads(format_json(profile, verdict))
    assert re.search(r"^Total +20\.00 \+- 0\.00 +15\.00 +100\.0%$", text, re.MULTILINE)
    assert "both together               15.00   a run as it is: unsynchronised" in text
    assert "synchronised                20.00" in text
    assert facts["unsynchronised"] == {"steps": 30, "step_s": 0.015, "stall_s": pytest.approx(0.005)}
    assert facts["synchronised"]["mean_s"] == pytest.approx(0.020)
    for told in (text, format_page(profile, verdict)):
        assert "unsynchronised: as a run is, which tells how long a step" in " ".join(told.split())
        assert "the training waits 5.00 ms per batch, at most" in told


def make_launching(device="/GPU:0", *, is_compiled=False, accumulation=1, settings=None, train=20):
    run = replace(make_run("single"), is_rehearsal=False, model_device=device, accumulation=accumulation)
    stages = Stages(read=0, prepare=0, transfer=0, train=train)
    profile = replace(make_profile(stages, mode="single"), run=run, launches=Launches(2000, 400, is_compiled))
    return profile, judge_profile(profile, settings or Settings({"data": {"enable_xla": False, "batch_size": 4}}))


def test_a_step_that_small_kernels_fill_is_launch_bound_and_told_what_to_do():
    profile, verdict = make_launching()
    assert profile.launch_s == pytest.approx(2400 * 5e-6)
    (rule,) = verdict.rules
    assert (rule.title, rule.part, rule.share) == ("LAUNCH-BOUND TRAINING", StepPart.TRAIN, pytest.approx(0.6))
    assert rule.evidence.startswith("a batch starts 2,400 small kernels; at about 5 us each they fill 60.0% of")
    assert rule.advice == (
        "Compile the step by XLA, into fewer kernels: --enable-xla",
        "A larger batch computes more with every kernel, where memory allows: --batch-size 8",
    )
    text = format_profile(profile, verdict)
    assert "BOTTLENECKS: the run is limited by Training" in text
    assert "Launches 2,000 kernels for gradients and 400 for an update" in text
    # An update comes with every fourth batch.
    profile, verdict = make_launching(accumulation=4)
    assert profile.launch_s == pytest.approx(2100 * 5e-6)
    assert "starts 2,100 small kernels; at about 5 us each they fill 52.5% of" in verdict.rules[0].evidence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": 24.1}, "2,000 kernels for gradients and 400 for an update, at about 5 us"),
        (
            {"train": 24.1, "is_compiled": True},
            "by XLA 2,000 kernels for gradients and 400 for an update, at about 5 us",
        ),
        (
            {"device": "/CPU:0"},
            "a GPU, for which it is built with fewer, would take at about 5 us each 12 ms of a batch's time",
        ),
    ],
    ids=["a longer step", "compiled", "a processor"],
)
def test_launches_are_told_where_they_are_no_finding(changes, said):
    profile, verdict = make_launching(**changes)
    assert verdict.is_balanced
    for told in (format_profile(profile, verdict), format_page(profile, verdict)):
        assert said in " ".join(html.unescape(told).split())
    launches = json.loads(format_json(profile, verdict))["launches"]
    is_compiled = changes.get("is_compiled", False)
    assert launches == {"gradients": 2000, "update": 400, "is_compiled": is_compiled, "on_gpu_s": pytest.approx(0.012)}


@pytest.mark.parametrize(
    ("data", "accumulation", "is_compiled", "first", "last"),
    [
        ({"pad_to_fixed_length": False}, 1, False, "--enable-static-shapes", "--batch-size"),
        (
            {"enable_xla": "auto", "batch_size": 4},
            2,
            False,
            "`myxtts diagnose` says why",
            "--batch-size 8 --grad-accum 1",
        ),
        ({"enable_xla": "auto", "batch_size": 4}, 1, True, "A larger batch", "--batch-size 8"),
    ],
)
def test_fewer_launches_are_to_be_had_by_what_is_left_to_try(data, accumulation, is_compiled, first, last):
    settings = Settings({"data": data, "training": {"gradient_accumulation_steps": accumulation}})
    (rule,) = make_launching(settings=settings, is_compiled=is_compiled)[1].rules
    assert first in rule.advice[0]
    assert rule.advice[-1].endswith(last)


def make_full_profile():
    samples = tuple(
        MachineSample(0.2 + second, (SILENT_CARD, BUSY_CARD), replace(HOST, cpu_share=None if second == 0 else 0.5))
        for second in range(3)
    )
    memory = (
        MemoryUse("data /CPU:1", None, None),
        MemoryUse("model /CPU:2", 2 << 30, 4 << 30, 2 << 30, 5 << 30, 1 << 30, 3 << 30),
    )
    return make_profile(alternate(Stages(read=9, prepare=30), Stages(read=120)), samples=samples, memory=memory,
                        cache_hits=30, cache_misses=10)  # fmt: skip


def test_the_report_has_all_sections_within_80_columns_and_unknown_is_never_0():
    profile = make_full_profile()
    text = format_profile(profile, judge(profile))
    assert max(map(len, text.splitlines())) <= 80
    for section in ("TIMING BREAKDOWN", "THREE RUNS", "GPU UTILIZATION", "MEMORY", "BOTTLENECKS", "RECOMMENDATIONS"):
        assert f"\n\n{section}" in text, section
    for row in ("Data Load ", "Preprocess ", "GPU Transfer ", "Training ", "Total "):
        assert re.search(rf"^{row}.*\d\.\d\d \+- \d+\.\d\d .*%$", text, re.MULTILINE), row
    assert "GPU 0    the driver says: busy unknown, unknown, unknown, unknown, held down by\n         unknown" in text
    assert "GPU 1    the driver says: busy 95.0%, 300 W of 350 W, 1700 MHz of 1980 MHz, 81" in text
    assert "held down by power limit" in " ".join(text.split())
    assert "Data     /CPU:1: unknown used, peak unknown, limit unknown" in text
    assert "TensorFlow's pool unknown, process unknown, CUDA context unknown" in text
    assert "TensorFlow's pool 2.0 GB, process 5.0 GB, CUDA context 1.0 GB" in text
    assert "75.0% of the clips had their codes ready" in text
    assert "processors busy 50.0%" in text


def test_without_cards_the_driver_is_unknown():
    profile = make_profile(Stages())
    assert "Driver   unknown: no NVIDIA GPU takes part" in format_profile(profile, judge(profile))
    lost = replace(profile, card_problem="The NVIDIA driver failed: GPU is lost.")
    assert "Driver   The NVIDIA driver failed: GPU is lost." in format_profile(lost, judge(lost))


def test_json_holds_figures_in_base_units_and_null_for_unknown():
    profile = make_full_profile()
    facts = json.loads(format_json(profile, judge(profile)))
    assert facts["verdict"]["stage"] == judge(profile).stage
    assert facts["utilization"]["cards"][0]["utilization"] is None
    assert facts["utilization"]["cards"][1]["power_w"] == 300.0
    assert facts["memory"][0]["used_bytes"] is None
    apart = ("pool_bytes", "process_bytes", "context_bytes")
    assert [[memory[name] for name in apart] for memory in facts["memory"]] == [[None] * 3, [2 << 30, 5 << 30, 1 << 30]]
    assert len(facts["batches"]) == 30
    assert facts["batches"][0]["own_s"]["Training"] == pytest.approx(0.020)
    assert sum(facts["batches"][5]["split_s"].values()) == pytest.approx(facts["batches"][5]["step_s"])


def test_the_page_has_pictures_of_what_was_measured():
    profile = make_full_profile()
    page = format_page(profile, judge(profile))
    for heading in ("Stages, batch by batch", "Step times", "Who waits"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 4
    assert html.escape("TensorFlow's pool 2.0 GB, process 5.0 GB, CUDA context 1.0 GB").replace("x27", "39") in page
    # A number of the timeline is a batch that is in its window, or prepared in it.
    assert "While batches 10 to 17 are trained on" in page
    assert re.search(r"<title>prepare 1\d: 30 ms</title>", page)


def test_the_trace_has_a_row_per_stage():
    profile = make_full_profile()
    trace = json.loads(format_trace(profile))
    events = trace["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == set(LANES)
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(LANES) * len(profile.synced)
    assert min(event["ts"] for event in spans) == 0
    assert all(event["dur"] > 0 for event in spans)
    train = next(event for event in spans if event["cat"] == "train")
    assert train["dur"] == pytest.approx(20_000, abs=1)

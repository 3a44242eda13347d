"""`myxtts diagnose` and `python utilities/diagnose_gpu_utilization.py`: what is found, what is told, and the exit code."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from myxtts.cli.main import run_command
from myxtts.config import XTTSConfig
from myxtts.devices.machine import BuiltFor, CardConnection, CardLink, Machine
from myxtts.devices.nvml import Card, CardScan
from myxtts.monitoring.findings import MachineFacts, Settings
from myxtts.monitoring.machine_facts import (
    Library,
    SoftwareFacts,
    TensorFlowBuild,
    check_libraries,
    find_library_folders,
    importlib,
    read_tensorflow_build,
)
from myxtts.monitoring.profile_facts import judge_profile
from myxtts.monitoring.sampler import CardSummary
from myxtts.tuning import diagnose
from myxtts.tuning.diagnose import NOTE, SERIOUS, WORTH_CHANGING, CorpusFacts, Issue, rank_issues
from tests.monitoring.profiles import Stages, make_profile, make_run
from tests.support.nvml import GPU_IS_LOST, StubCard
from tests.support.processes import clean_environ, run_python

LOOK = ["utilities/diagnose_gpu_utilization.py", "--skip-speed-test"]
GPU_BUILD = TensorFlowBuild("2.21.0", True, "12.5.1", "9")
FACTS = SoftwareFacts("3.11", "Linux", GPU_BUILD, "570", None, ())
CARD = Card(0, "NVIDIA GeForce RTX 4090", "GPU-0", "bus", 24564, 24000)
OTHER = Card(1, "NVIDIA GeForce RTX 3080", "GPU-1", "bus", 10240, 2000)
CORPUS = CorpusFacts(1000, 5000.0, ((".wav", 1000),), ((22050, 32),), 5.0, 9.0, 11.0, 0.08, 5)
FAST = {"batch_size": 16, "mixed_precision": True, "enable_xla": True}


def make_facts(*cards, environ=None, lost=(), problem=None):
    return Machine(CardScan(cards, lost, problem), 1000, environ or {})


# What is installed.


class _Spec:
    def __init__(self, folder):
        self.origin = str(folder / "__init__.py")
        self.submodule_search_locations = [str(folder)]


@pytest.mark.parametrize("text", ["", "info = {", "info = 5\n", "build_info = make(x)\n"])
def test_a_build_that_does_not_describe_itself_is_unknown(tmp_path, monkeypatch, text):
    (tmp_path / "python" / "platform").mkdir(parents=True)
    (tmp_path / "python" / "platform" / "build_info.py").write_text(text)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: _Spec(tmp_path))
    assert read_tensorflow_build().is_cuda_build is None


def test_every_library_that_is_missing_is_named_and_those_of_pip_are_found(tmp_path, monkeypatch):
    (tmp_path / "cudnn" / "lib").mkdir(parents=True)
    (tmp_path / "cudnn" / "lib" / "libcudnn.so.9").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: _Spec(tmp_path))
    loaded = []

    def load(path):
        loaded.append(path)
        if "cublas" in path:
            raise OSError(f"{path}: cannot open shared object file")

    found = check_libraries(GPU_BUILD, find_library_folders(), load)
    assert [(library.file, library.problem) for library in found if library.problem] == [
        (name, f"{name}: cannot open shared object file") for name in ("libcublas.so.12", "libcublasLt.so.12")
    ]
    assert str(tmp_path / "cudnn" / "lib" / "libcudnn.so.9") in loaded
    assert loaded[0] == "libcuda.so.1"
    assert check_libraries(TensorFlowBuild("2.21.0", False), []) == []


# What is said about it.


@pytest.mark.parametrize(
    ("facts", "machine", "observation", "remedy"),
    [
        ({"driver_problem": "no library"}, make_facts(), "no NVIDIA GPU", "ubuntu-drivers"),
        ({}, make_facts(problem="Driver/library version mismatch"), "does not answer", "restart"),
        ({"tensorflow": None}, make_facts(CARD), "TensorFlow is not installed", "pip install 'tensorflow[and-cuda]'"),
        ({"tensorflow": TensorFlowBuild("2.21.0", False)}, make_facts(CARD), "cannot use a GPU", "pip uninstall"),
        ({"libraries": (Library("cuDNN", "libcudnn.so.9", "none"),)}, make_facts(CARD), "CUDA libraries", "and-cuda"),
        ({"libraries": (Library("driver", "libcuda.so.1", "none"),)}, make_facts(CARD), "driver's library", "--gpus all"),
        ({}, make_facts(CARD, environ={"CUDA_VISIBLE_DEVICES": "-1"}), "hides GPU 0", "unset CUDA_VISIBLE_DEVICES"),
        ({}, make_facts(CARD, environ={"CUDA_VISIBLE_DEVICES": "MIG-1"}), "cannot be used", "unset CUDA_VISIBLE_DEVICES"),
        ({}, make_facts(CARD, lost=((1, "GPU is lost"),)), "GPU 1 does not answer", "dmesg"),
    ],
)  # fmt: skip
def test_what_keeps_a_card_from_being_used_is_serious_and_has_its_fix(facts, machine, observation, remedy):
    config = XTTSConfig(data=FAST)
    (issue,) = diagnose.check_set_up(config, machine, replace(FACTS, **facts), [])
    assert issue.severity is SERIOUS
    assert observation in issue.observation
    assert remedy in issue.remedy
    rehearsal = config.replace(training={"rehearsal": True})
    needed = facts.get("tensorflow", FACTS) is None
    assert bool([*diagnose.check_set_up(rehearsal, machine, replace(FACTS, **facts), [])]) == needed


@pytest.mark.parametrize(
    ("capability", "version", "remedy"),
    [((12, 0), "2.21.0", "install a build of TensorFlow for this card"), ((12, 0), "2.19.1", "Install TensorFlow 2.21"), ((5, 2), "2.21.0", "Use another card")],
)  # fmt: skip
def test_the_remedy_for_a_card_of_no_build_is_one_that_helps_it(capability, version, remedy):
    machine = replace(make_facts(replace(CARD, capability=capability)), built=BuiltFor((6, 0), (9, 0), version))
    (issue,) = diagnose.check_devices(machine)
    assert issue.remedy.startswith(remedy)
    assert "--no-enable-xla" not in issue.remedy, "XLA stays off by itself"
    assert "capability" in issue.evidence


def test_hidden_and_busy_cards_are_found_and_nothing_where_all_is_well():
    assert list(diagnose.check_set_up(XTTSConfig(data=FAST), make_facts(CARD), FACTS, [])) == []
    (issue,) = diagnose.check_devices(make_facts(CARD, OTHER, environ={"CUDA_VISIBLE_DEVICES": "0"}))
    assert (issue.severity, issue.observation) == (NOTE, "CUDA_VISIBLE_DEVICES hides GPU 1")
    (issue,) = diagnose.check_devices(make_facts(CARD, OTHER))
    assert issue.evidence == "2000 MB of 10240 MB are free"
    assert list(diagnose.check_devices(make_facts(replace(CARD, total_mib=None, free_mib=None)))) == []


def test_variables_that_slow_tensorflow_down_are_found():
    assert list(diagnose.check_environment({"TF_ENABLE_ONEDNN_OPTS": "1"})) == []
    issues = diagnose.check_environment({"TF_GPU_ALLOCATOR": "cuda_malloc_async", "CUDA_LAUNCH_BLOCKING": "1"})
    assert [issue.remedy for issue in issues] == ["unset TF_GPU_ALLOCATOR", "unset CUDA_LAUNCH_BLOCKING"]


@pytest.mark.parametrize(
    ("sections", "flags"),
    [
        ({"training": {"model_gpus": "0,1"}}, "--model-gpus"),
        ({"data": {"data_gpu": 0, "model_gpu": 1}}, "--data-gpu and --model-gpu"),
        ({}, None),
    ],
)
def test_cards_that_are_far_apart_are_left_out_by_the_flags_that_asked_for_them(sections, flags):
    links = [CardLink(0, 1, connection) for connection in CardConnection]
    issues = diagnose.check_set_up(XTTSConfig(**sections), make_facts(), FACTS, links)
    far = [issue for issue in issues if "far apart" in issue.observation]
    assert [issue.observation[-6:] for issue in far] == ["(NODE)", " (SYS)"]
    for issue in far:
        # What is not given cannot be left out.
        assert ("leave out" in issue.remedy) == (flags is not None)
        assert flags is None or issue.remedy == f"train on one card: leave out {flags}"
        assert issue.severity is (NOTE if flags is None else WORTH_CHANGING)


@pytest.mark.parametrize(
    ("sections", "cards", "processors", "observations"),
    [
        ({}, [], 8, []),
        ({"data": FAST}, [CARD], 8, []),
        ({"data": {"batch_size": 16}}, [CARD], 8, ["The model computes in float32"]),
        ({"data": {"num_workers": 0}}, [], 8, ["Nothing is read ahead by other processes"]),
        ({"data": {"num_workers": 0}}, [], 1, []),
        ({"data": {"pipeline_buffer_size": 9}}, [], 8, ["Few batches are read ahead"]),
        ({"data": {**FAST, "enable_xla": False, "pad_to_fixed_length": False}}, [CARD], 8, ["Static shapes are off"]),
    ],
)
def test_settings_that_keep_a_card_waiting_are_named(sections, cards, processors, observations):
    issues = diagnose.check_config(XTTSConfig(**sections), cards, processors)
    assert [issue.observation for issue in issues] == observations


@pytest.mark.parametrize(
    ("total_mib", "batch_size", "accumulation", "remedy"),
    [
        (24564, 8, 1, "--batch-size 16"),
        (24564, 9, 1, None),
        (16384, 6, 1, "--batch-size 12"),
        (10240, 4, 1, "--batch-size 8"),
        (6144, 4, 1, "--batch-size 8"),
        (6144, 5, 1, None),
        # A larger batch takes the place of accumulation.
        (24564, 4, 8, "--batch-size 16 --grad-accum 2"),
    ],
)
def test_a_batch_of_half_the_usual_start_or_less_is_small_for_its_card(total_mib, batch_size, accumulation, remedy):
    data, training = {**FAST, "batch_size": batch_size}, {"gradient_accumulation_steps": accumulation}
    issues = diagnose.check_config(XTTSConfig(data=data, training=training), [replace(CARD, total_mib=total_mib)], 8)
    assert [issue.remedy for issue in issues] == ([] if remedy is None else [remedy])


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"formats": ((".wav", 900), (".mp3", 100))}, "100 clips in .mp3"),
        ({"formats": ((".wav", 960), (".mp3", 40))}, None),
        ({"rates_hz": ((48000, 30), (22050, 2))}, "30 of 32 files at 48000 Hz"),
        ({"rates_hz": ()}, None),
        ({"padding": 0.3}, "30% of the audio in batches of 8"),
        ({"longest_s": 21.0}, "the longest 21.0 s"),
        # Not a few clips are long.
        ({"longest_s": 21.0, "p95_s": 20.0}, None),
        ({}, None),
    ],
)
def test_what_makes_a_corpus_slow_is_named_with_numbers(changes, part):
    issues = list(diagnose.check_corpus(replace(CORPUS, **changes), 8, 1))
    assert [part in issue.evidence and bool(issue.remedy) for issue in issues] == ([] if part is None else [True])


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "remedy"),
    [(8, 4, "--batch-size 4 --grad-accum 8"), (3, 84, "--batch-size 1 --grad-accum 252"), (1, 2, "none: a batch")],
)
def test_less_padding_keeps_the_clips_of_an_update(batch_size, accumulation, remedy):
    (issue,) = diagnose.check_corpus(replace(CORPUS, padding=0.3), batch_size, accumulation)
    assert issue.remedy.startswith(remedy)
    assert issue.severity is (NOTE if batch_size == 1 else WORTH_CHANGING)


def test_broken_rules_of_a_profile_become_issues_by_what_they_cost():
    profile = make_profile(Stages(read=40))
    (rule, *_) = judge_profile(profile, Settings({"data": {"num_workers": 2}}, MachineFacts((), 8))).rules
    issue = diagnose.describe_rule(rule, is_rehearsal=False)
    assert (issue.severity, issue.observation) == (SERIOUS, "Data loading bottleneck")
    assert issue.share == pytest.approx(profile.costs["Data Load"].share)
    assert "--num-workers 4" in issue.remedy
    # A rehearsal shares its processors: what is slow there says nothing about cards.
    assert diagnose.describe_rule(rule, is_rehearsal=True) == replace(issue, severity=WORTH_CHANGING)


def test_a_card_at_its_power_limit_is_normal_and_a_hot_one_is_not():
    card = CardSummary(1, 0.9, 300.0, 350.0, 1485.0, 1980, 85.0, ("power limit", "temperature"))
    limit, hot = diagnose.check_cards([card])
    assert (limit.severity, hot.severity) == (NOTE, WORTH_CHANGING)
    assert "cooling" in hot.remedy
    assert hot.gain == "at most 25.0% more clock"
    (issue,) = diagnose.check_cards([replace(card, throttled_by=("power brake",), clock_mhz=None)])
    assert "unknown" in issue.gain


def test_issues_are_ranked_by_severity_and_then_by_what_they_cost():
    given = [(NOTE, 0.9), (WORTH_CHANGING, 0.1), (WORTH_CHANGING, 0.4), (SERIOUS, 0.0)]
    ranked = rank_issues(Issue(severity, "", "", "", "", share) for severity, share in given)
    assert [issue.share for issue in ranked] == [0.0, 0.4, 0.1, 0.9]


# The command.


def test_a_machine_without_a_card_is_serious_and_everything_else_is_told(tmp_path, make_machine):
    file = tmp_path / "facts.json"
    result = run_python([*LOOK, "--json", str(file)], make_machine(extra=["init 12"]).environ())
    assert result.returncode == 1
    text = result.stdout.rpartition("\nFacts ")[0]
    assert max(map(len, text.splitlines())) <= 80
    for section in ("SOFTWARE", "DEVICES", "SETTINGS", "CORPUS", "SPEED TEST\nnot run", "LIVE", "ISSUES (1)"):
        assert section in text
    assert "libcudart.so" in text
    assert "1   [serious] This machine has no NVIDIA GPU" in text
    facts = json.loads(file.read_text())
    assert (facts["is_serious"], facts["cards"], facts["speed"]) == (True, [], None)
    assert facts["issues"][0]["severity"] == "serious"
    assert any(line.startswith("packages: ") for line in facts["machine"]), "what a maintainer asks for first"
    assert str(Path.home()) not in file.read_text()


def test_a_machine_with_cards_is_told_what_is_missing_hidden_lost_and_far_apart(make_machine):
    stub = make_machine(
        StubCard(0, util=15), StubCard(1), StubCard(2, state=GPU_IS_LOST),
        extra=["link 0 1 50", "activity 0 90000 350000 600 1980 50 32"],
    )  # fmt: skip
    result = run_python([*LOOK, "--batch-size", "2"], stub.environ(CUDA_VISIBLE_DEVICES="0"))
    assert result.returncode == 1
    words = " ".join(result.stdout.split())
    assert "GPU 0 NVIDIA GeForce RTX 4090, 24064 MB free of 24564 MB" in words
    assert "[serious] CUDA libraries that TensorFlow needs are missing" in words
    assert "Remedy pip install 'tensorflow[and-cuda]'" in words
    assert "[serious] GPU 2 does not answer" in words
    assert "[note] CUDA_VISIBLE_DEVICES hides GPU 1" in words
    assert "[note] GPU 0 and GPU 1 are far apart (SYS)" in words
    assert "[worth changing] The batch is small for the card" in words
    assert "GPU 0 the driver says: busy 15.0%, 90 W of 350 W, 600 MHz of 1980 MHz" in words
    assert "[worth changing] GPU 0 runs below its full clock: temperature" in words
    # Serious ones first.
    assert words.rindex("[serious]") < words.index("[worth changing]") < words.index("[note]")


def test_without_tensorflow_it_is_the_missing_library():
    """The speed test is asked for, too: it cannot be run, and that is no traceback."""
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from myxtts.cli.main import run_command\n"
        "sys.exit(run_command('diagnose', ['--rehearsal'], 'myxtts diagnose'))"
    )
    result = run_python(["-c", code], clean_environ(CUDA_LAUNCH_BLOCKING="1"))
    assert "Traceback" not in result.stderr, result.stderr
    assert result.returncode == 1
    assert "TensorFlow  not installed" in result.stdout
    words = " ".join(result.stdout.split())
    assert "[serious] TensorFlow is not installed: nothing can be trained" in words
    assert "Remedy pip install tensorflow Gain" in words
    assert "SPEED TEST\nnot run" in result.stdout
    assert "environment    CUDA_VISIBLE_DEVICES=-1, CUDA_LAUNCH_BLOCKING=1" in result.stdout


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process: its exit code, and what it prints."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    def run_it(*words):
        return run_command("diagnose", words, "myxtts diagnose"), capsys.readouterr().out

    return run_it


@pytest.fixture
def asked(monkeypatch):
    """What speed tests were asked for; each finds that reading is slow."""
    from myxtts.tuning import profile

    found = []

    def measure(planned, steps, tell):
        found.append((planned.config.data.batch_size, str(planned.plan.mode), steps))
        return make_profile(Stages(read=60), run=replace(make_run(), notes=("One rank is measured.",)))

    monkeypatch.setattr(profile, "measure", measure)
    return found


def test_a_corpus_that_cannot_be_read_is_an_issue_and_the_rest_is_told(run, tmp_path):
    code, text = run("--skip-speed-test", "--rehearsal", "--train-data", str(tmp_path / "nowhere"))
    assert code == 1
    assert "[serious] The corpus cannot be used" in text
    assert "nowhere" in text
    assert "CORPUS\nnot looked at" in text


def test_the_speed_test_is_of_the_users_run_and_its_findings_are_ranked_in(run, asked):
    code, text = run("--batch-size", "2", "--rehearsal", "--mode", "dual")
    assert asked == [(2, "dual", diagnose.STEPS)]
    # A rehearsal that was asked for shares its processors: whatever is slow in it is nothing serious.
    assert code == 0
    assert "\n1   [worth changing] Data loading bottleneck" in text
    assert "SPEED TEST\nStep" in text
    assert re.search(r"^Note +One rank is measured\.$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rehearsal"], "could not be run: a package does not load Evidence libtensorflow_framework.so.2: cannot"),
        (["--data-gpu", "0", "--model-gpu", "1"], "could not be run Evidence Insufficient GPUs for Multi-GPU Mode"),
    ],
)
def test_a_speed_test_that_fails_is_an_issue(run, monkeypatch, flags, said):
    from myxtts.tuning import profile

    def measure(*_):
        raise ImportError("libtensorflow_framework.so.2: cannot open shared object file")

    monkeypatch.setattr(profile, "measure", measure)
    code, text = run(*flags)
    assert code == 1
    assert f"[serious] The speed test {said}" in " ".join(text.split())

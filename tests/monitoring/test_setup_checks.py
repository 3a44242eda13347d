"""What is said about a configuration, a corpus and a short profile."""

from dataclasses import replace

import pytest

from myxtts.config import XTTSConfig
from myxtts.devices.nvml import Card
from myxtts.monitoring.card_summary import CardSummary
from myxtts.monitoring.config_checks import check_config
from myxtts.monitoring.corpus_checks import CorpusFacts, check_corpus
from myxtts.monitoring.health import Severity
from myxtts.monitoring.profile_verdict import judge_profile
from myxtts.monitoring.settings_in_force import Settings, Surroundings
from myxtts.monitoring.speed_checks import check_cards, check_speed
from tests.monitoring.profiles import Stages, make_profile

CORPUS = CorpusFacts(1000, 5000.0, ((".wav", 1000),), ((22050, 32),), 32, 5.0, 9.0, 11.0, 0.08, 5)


def make_card(total_mib):
    return Card(0, "card", "GPU-0", "bus", total_mib, total_mib)


def find(issues, observation):
    return next(issue for issue in issues if issue.observation == observation)


def list_observations(config, cards=(), processors=8):
    return [issue.observation for issue in check_config(config, cards, processors)]


def test_defaults_on_a_processor_are_fine():
    assert list_observations(XTTSConfig()) == []


@pytest.mark.parametrize(
    ("total_mib", "batch_size", "start"),
    [(24564, 8, 16), (24564, 9, None), (16384, 6, 12), (10240, 4, 8), (6144, 4, 8), (6144, 5, None)],
)
def test_a_batch_of_half_the_usual_start_or_less_is_small_for_its_card(total_mib, batch_size, start):
    issues = list(check_config(XTTSConfig(data={"batch_size": batch_size}), [make_card(total_mib)], 8))
    small = [issue for issue in issues if issue.observation == "The batch is small for the card"]
    assert [issue.remedy for issue in small] == ([] if start is None else [f"--batch-size {start}"])


def test_a_larger_batch_takes_the_place_of_accumulation():
    config = XTTSConfig(data={"batch_size": 4}, training={"gradient_accumulation_steps": 8})
    issue = find(check_config(config, [make_card(24564)], 8), "The batch is small for the card")
    assert issue.remedy == "--batch-size 16 --grad-accum 2"


def test_precision_and_xla_matter_on_a_card_only():
    config = XTTSConfig(data={"batch_size": 16})
    assert list_observations(config, [make_card(24564)]) == [
        "The model computes in float32",
        "The step is not compiled with XLA",
    ]
    fast = XTTSConfig(data={"batch_size": 16, "mixed_precision": True, "enable_xla": True})
    assert list_observations(fast, [make_card(24564)]) == []


def test_reading_shapes_and_determinism_are_looked_at():
    assert list_observations(XTTSConfig(data={"num_workers": 0})) == ["Nothing is read ahead by other processes"]
    assert list_observations(XTTSConfig(data={"num_workers": 0}), processors=1) == []
    assert list_observations(XTTSConfig(data={"num_workers": 9})) == ["More readers than processors"]
    assert list_observations(XTTSConfig(data={"pipeline_buffer_size": 9})) == ["Few batches are read ahead"]
    (issue,) = check_config(XTTSConfig(data={"pad_to_fixed_length": False}), (), 8)
    assert (issue.severity, issue.observation) == (Severity.SERIOUS, "Static shapes are off")
    assert list_observations(XTTSConfig(training={"deterministic": True})) == ["Every operation is deterministic"]
    unfixed = XTTSConfig(data={"batch_size": 16, "pad_to_fixed_length": False, "mixed_precision": True})
    assert list_observations(unfixed, [make_card(24564)]) == ["Static shapes are off"], "XLA would be refused"


def test_a_plain_corpus_has_no_issue():
    assert list(check_corpus(CORPUS, 8, 1)) == []


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"formats": ((".wav", 900), (".mp3", 100))}, "100 clips in .mp3"),
        ({"rates_hz": ((48000, 30), (22050, 2))}, "30 of 32 files at 48000 Hz"),
        ({"padding": 0.3}, "30% of the audio in batches of 8"),
        ({"longest_s": 21.0}, "the longest 21.0 s"),
        ({"set_aside": 300}, "300 of 1300 cannot be used"),
    ],
)
def test_what_makes_a_corpus_slow_is_named_with_numbers(changes, part):
    (issue,) = check_corpus(replace(CORPUS, **changes), 8, 1)
    assert part in issue.evidence
    assert issue.remedy


def test_a_few_odd_files_are_no_issue():
    assert list(check_corpus(replace(CORPUS, set_aside=200), 8, 1)) == []
    assert list(check_corpus(replace(CORPUS, formats=((".wav", 960), (".mp3", 40))), 8, 1)) == []
    assert list(check_corpus(replace(CORPUS, rates_hz=(), probed=0), 8, 1)) == []
    assert list(check_corpus(replace(CORPUS, p95_s=20.0, longest_s=21.0), 8, 1)) == [], "not a few clips are long"


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "remedy"),
    [
        (8, 1, "--batch-size 4 --grad-accum 2"),
        (8, 4, "--batch-size 4 --grad-accum 8"),
        (3, 84, "--batch-size 1 --grad-accum 252"),
        (1, 2, "none: a batch of one clip cannot be smaller"),
    ],
)
def test_less_padding_keeps_the_clips_of_an_update(batch_size, accumulation, remedy):
    (issue,) = check_corpus(replace(CORPUS, padding=0.3), batch_size, accumulation)
    assert issue.remedy == remedy
    assert issue.severity is (Severity.NOTE if batch_size == 1 else Severity.WORTH_CHANGING)


def test_broken_rules_of_a_profile_become_issues_by_what_they_cost():
    profile = make_profile(Stages(read=40))
    settings = Settings({"data": {"num_workers": 2}}, Surroundings((), 8))
    (issue, *_) = check_speed(judge_profile(profile, settings), is_rehearsal=False)
    assert (issue.severity, issue.observation) == (Severity.SERIOUS, "Data loading bottleneck")
    assert issue.share == pytest.approx(profile.costs["Data Load"].share)
    assert "--num-workers 4" in issue.remedy
    # A rehearsal shares its processors: what is slow there says nothing about cards.
    (rehearsed, *_) = check_speed(judge_profile(profile, settings), is_rehearsal=True)
    assert rehearsed == replace(issue, severity=Severity.WORTH_CHANGING)
    balanced = make_profile(Stages(train=60))
    assert list(check_speed(judge_profile(balanced, Settings({})), is_rehearsal=False)) == []


def test_a_card_at_its_power_limit_is_normal_and_a_hot_one_is_not():
    card = CardSummary(1, 0.9, 300.0, 350.0, 1485.0, 1980, 85.0, ("power limit", "temperature"))
    limit, hot = check_cards([card])
    assert (limit.severity, hot.severity) == (Severity.NOTE, Severity.WORTH_CHANGING)
    assert "cooling" in hot.remedy
    assert hot.gain == "at most 25.0% more clock"
    (issue,) = check_cards([replace(card, throttled_by=("power brake",), clock_mhz=None)])
    assert "unknown" in issue.gain

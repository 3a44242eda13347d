"""Advice over many machines and configurations: it can always be followed as it stands, and it always changes something."""

from functools import cache
from itertools import product
from typing import Any

import pytest

from myxtts.cli.train import build_parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.sources import GivenValue
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import choose_mode
from myxtts.monitoring.findings import (
    MachineFacts,
    Settings,
    advise_faster,
    advise_smaller_batch,
    advise_steadier,
    settle_sections,
    split_batch,
)

STAGES = ("read", "prepare", "transfer", "train")
CARDS = [(), (0,), (0, 1), (3, 1)]
PROCESSORS = [1, 2, 6, 64]
CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "defaults": {},
    "rehearsal": {"training": {"rehearsal": True}},
    "rehearsal, dual": {"training": {"rehearsal": True, "mode": "dual"}},
    "rehearsal, isolated": {"training": {"rehearsal": True, "mode": "isolated"}},
    "single asked for": {"training": {"mode": "single"}},
    "two cards": {"data": {"data_gpu": 1, "model_gpu": 3}},
    "isolated": {"data": {"data_gpu": 0, "model_gpu": 1, "enable_memory_isolation": True}},
    "split": {"data": {"data_gpu": 0, "model_gpu": 0, "data_gpu_memory": 4096, "model_gpu_memory": 8192}},
    "parallel": {"training": {"model_gpus": "0,1"}},
    "large batch": {"data": {"batch_size": 32}},
    "large batch, isolated": {"data": {"batch_size": 32}, "training": {"rehearsal": True, "mode": "isolated"}},
    "nothing kept": {"data": {"cache": "off"}},
    "nothing kept, dual": {"data": {"cache": "off", "data_gpu": 0, "model_gpu": 1, "batch_size": 32}},
    "nothing kept, by auto": {"data": {"cache": "off"}, "training": {"mode": "auto"}},
    "codec": {"data": {"cache": "off"}, "training": {"stage": "codec"}},
    "augmented": {"data": {"cache": "off", "augment_gain_db": 3.0}},
    "read here": {"data": {"num_workers": 0}},
    "one reader": {"data": {"num_workers": 1}},
    "many readers": {"data": {"num_workers": 100}},
    "deepest buffers": {"data": {"pipeline_buffer_size": 65536, "prefetch_buffer_size": 4096}},
    "one ahead": {"data": {"pipeline_buffer_size": 1, "prefetch_buffer_size": 1, "data_gpu": 0, "model_gpu": 1}},
    "half precision": {"data": {"mixed_precision": True}},
    "half precision, XLA": {"data": {"mixed_precision": True, "enable_xla": True}},
    "no fixed shapes": {"data": {"mixed_precision": True, "pad_to_fixed_length": False}},
    "accumulation": {
        "data": {"mixed_precision": True, "enable_xla": True, "batch_size": 3},
        "training": {"gradient_accumulation_steps": 84},
    },
    "one clip": {"data": {"batch_size": 1}},
    "short clips": {"data": {"min_clip_seconds": 2.9, "max_clip_seconds": 3.0}},
}


def list_advice(settings: Settings, mode: str) -> list[str]:
    """All that could be said about a run."""
    advice = [give(stage, mode, settings) for give in (advise_faster, advise_steadier) for stage in STAGES]
    return [each for each in (*advice, advise_smaller_batch(settings)) if each is not None]


def find_mode(config: XTTSConfig) -> str:
    """That of the run; `auto` has found that one device is best."""
    return "single" if config.training.mode == "auto" else str(choose_mode(PlanRequest.from_config(config)))


def follow(config: XTTSConfig, advice: str) -> XTTSConfig:
    """What one has after giving these flags, too. Fails where they are refused."""
    given = {
        f"{section}.{name}": GivenValue(value, "file")
        for section, values in config.given_values().items()
        for name, value in values.items()
    }
    return resolve_config(flags=given | parse_flags(advice), environ={})


@cache
def parse_flags(flags: str) -> dict[str, GivenValue]:
    """As the program takes them; the same advice is given in many situations."""
    return dict(build_parser("train").parse_all(flags.split()).given)


@pytest.mark.parametrize("name", CONFIGS)
def test_advice_can_be_followed_on_this_machine_and_changes_what_is_in_force(name: str) -> None:
    config = XTTSConfig(**CONFIGS[name])
    for cards, processors in product(CARDS, PROCESSORS):
        around = MachineFacts(cards, processors)
        mode = find_mode(config)
        for advice in list_advice(Settings.of_config(config, around), mode):
            followed = follow(config, advice)
            before, after = settle_sections(config, around), settle_sections(followed, around)
            changed = {
                f"{section}.{key}": after[section][key]
                for section, values in before.items()
                for key, value in values.items()
                if after[section][key] != value
            }
            flags = [word for word in advice.split() if word.startswith("--")]
            assert len(changed) >= len(flags), f"{advice} names a value in force ({cards}, {processors})"
            for key in ("data.data_gpu", "data.model_gpu"):
                assert changed.get(key) in (None, *cards), f"{advice} names a card that is not there"
            assert changed.get("data.num_workers", 0) <= processors
            if "data.prefetch_buffer_size" in changed and "data.batch_size" not in changed:
                assert mode == "dual", f"{advice} is read by no other mode"
            if "data.mixed_precision" in changed:
                assert cards
                assert not config.training.rehearsal


@pytest.mark.parametrize(
    ("name", "cards", "processors", "stage", "advice"),
    [
        ("one reader", (), 6, "read", "--num-workers 2"),
        ("read here", (), 1, "read", None),
        ("defaults", (), 64, "read", "--num-workers 16"),
        ("many readers", (), 64, "read", None),
        ("defaults", (0,), 6, "prepare", None),
        ("defaults", (3, 1), 6, "prepare", "--data-gpu 1 --model-gpu 3"),
        ("single asked for", (0, 1), 6, "prepare", "--mode dual --data-gpu 1 --model-gpu 0"),
        ("rehearsal", (0, 1), 6, "prepare", None),
        ("parallel", (0, 1), 6, "prepare", None),
        ("nothing kept", (0, 1), 6, "prepare", "--cache auto"),
        # The `off` may be its own answer: it weighs keeping codes, and a second card, by measuring.
        ("nothing kept, by auto", (0, 1), 6, "prepare", None),
        ("codec", (0,), 6, "prepare", None),
        ("augmented", (0,), 6, "prepare", None),
        ("one ahead", (0, 1), 6, "transfer", "--prefetch-buffer-size 2"),
        ("two cards", (1, 3), 6, "transfer", None),
        ("large batch, isolated", (), 6, "transfer", None),
        ("defaults", (0,), 6, "train", "--mixed-precision"),
        ("defaults", (), 6, "train", "--enable-xla"),
        ("no fixed shapes", (0,), 6, "train", "--enable-static-shapes"),
        ("accumulation", (0,), 6, "train", "--batch-size 6 --grad-accum 42"),
        ("half precision, XLA", (0,), 6, "train", None),
    ],
)
def test_what_makes_a_stage_faster_depends_on_machine_and_settings(
    name: str, cards: tuple[int, ...], processors: int, stage: str, advice: str | None
) -> None:
    config = XTTSConfig(**CONFIGS[name])
    mode = find_mode(config)
    assert advise_faster(stage, mode, Settings.of_config(config, MachineFacts(cards, processors))) == advice


@pytest.mark.parametrize(
    ("name", "stage", "advice"),
    [
        ("defaults", "read", "--buffer-size 100"),
        ("deepest buffers", "read", None),
        ("read here", "read", "--num-workers 4"),
        ("nothing kept, dual", "prepare", "--prefetch-buffer-size 4"),
        ("nothing kept", "prepare", "--cache auto"),
        ("nothing kept, by auto", "prepare", None),
        ("no fixed shapes", "train", "--enable-static-shapes"),
        ("defaults", "train", "--max-clip-seconds 8.7"),
        ("short clips", "train", None),
    ],
)
def test_what_makes_steps_steadier_depends_on_who_is_waited_for(name: str, stage: str, advice: str | None) -> None:
    config = XTTSConfig(**CONFIGS[name])
    mode = find_mode(config)
    assert advise_steadier(stage, mode, Settings.of_config(config, MachineFacts((), 6))) == advice


def test_what_is_not_known_is_not_advised_on() -> None:
    unknown = Settings({})
    assert list_advice(unknown, "single") == []
    assert list_advice(unknown, "dual") == []


@pytest.mark.parametrize("batch_size", [2, 3, 9, 12, 35])
def test_a_split_batch_makes_the_same_update(batch_size: int) -> None:
    flags = split_batch(batch_size, 3)
    assert flags is not None
    given = parse_flags(flags)
    clips = [int(given[key].value) for key in ("data.batch_size", "training.gradient_accumulation_steps")]
    assert clips[0] < batch_size
    assert clips[0] * clips[1] == 3 * batch_size

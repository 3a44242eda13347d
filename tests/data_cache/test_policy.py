"""`--cache auto`: what is decided, and why."""

import pytest

from myxtts.data.cache import Measured, decide_policy

GIGABYTE = 10**9


def decide(**changes):
    usual = {
        "prepare_seconds_per_clip": 0.02,
        "read_seconds_per_clip": 1e-5,
        "bytes_per_clip": 300.0,
        "clip_count": 13_100,
        "epochs": 100,
        "free_memory_bytes": 16 * GIGABYTE,
        "free_disk_bytes": 100 * GIGABYTE,
    }
    return decide_policy(Measured(**(usual | changes)))


TOO_BIG_FOR_MEMORY = {"bytes_per_clip": 2048.0, "clip_count": 1_000_000, "free_memory_bytes": GIGABYTE}


@pytest.mark.parametrize(
    ("changes", "policy", "reason"),
    [
        ({}, "memory", "All 13100 clips (3.93 MB) fit in memory, which saves 7.2 h of preparing."),
        ({"clip_count": 0}, "off", "There are no clips to prepare."),
        ({"epochs": 1}, "off", "Every clip is prepared only once in one epoch, so nothing would be read back."),
        (
            {"prepare_seconds_per_clip": 1e-5, "read_seconds_per_clip": 1e-3},
            "off",
            "Preparing a clip takes 0.01 ms, no longer than reading it back (1 ms).",
        ),
        (
            TOO_BIG_FOR_MEMORY,
            "disk",
            "2.05 GB are too much for memory but fit on the disk, which saves 549.7 h of preparing.",
        ),
        (
            TOO_BIG_FOR_MEMORY | {"free_disk_bytes": GIGABYTE},
            "memory",
            "23% of the 2.05 GB fit in memory and the disk has no room, which saves 126.4 h of preparing.",
        ),
        (
            TOO_BIG_FOR_MEMORY | {"free_disk_bytes": GIGABYTE, "free_memory_bytes": GIGABYTE // 10},
            "off",
            "2.05 GB fit neither in memory (50 MB may be used) nor on the disk (1 GB).",
        ),
        ({"free_memory_bytes": 0, "free_disk_bytes": 0}, "off", "3.93 MB fit neither in memory (0 B may be used) nor on the disk (0 B)."),
        (
            TOO_BIG_FOR_MEMORY | {"prepare_seconds_per_clip": 1.05e-5, "free_memory_bytes": GIGABYTE // 10},
            "off",
            "A cache would save only 39.5 s of 18 min of preparing.",
        ),
        # What an earlier run left on the disk counts: even one epoch is worth it, and little space is needed.
        (
            {"epochs": 1, "clips_on_disk": 13_100, "free_disk_bytes": 0},
            "disk",
            "The disk holds 13100 of 13100 clips already, which saves 4 min of preparing.",
        ),
        ({"clips_on_disk": 13_100}, "disk", "The disk holds 13100 of 13100 clips already, which saves 7.3 h of preparing."),
        ({"clips_on_disk": 10}, "memory", "All 13100 clips (3.93 MB) fit in memory, which saves 7.2 h of preparing."),
        ({"epochs": 2}, "memory", "All 13100 clips (3.93 MB) fit in memory, which saves 4 min of preparing."),
    ],
)  # fmt: skip
def test_the_cheapest_place_with_room_is_taken(changes, policy, reason):
    decision = decide(**changes)
    assert (decision.policy, decision.reason) == (policy, reason)


def test_only_half_of_the_free_memory_counts():
    needed = 13_100 * (300 + 128)
    assert decide(free_memory_bytes=2 * needed).policy == "memory"
    assert decide(free_memory_bytes=int(1.9 * needed)).policy == "disk"


def test_a_disk_that_is_slow_to_read_loses_against_most_of_the_clips_in_memory():
    decision = decide(read_seconds_per_clip=0.01, free_memory_bytes=int(1.9 * 13_100 * (300 + 128)))
    assert decision.policy == "memory"
    assert decision.reason == "95% of the 3.93 MB fit in memory, which saves 6.8 h of preparing."


def test_a_disk_on_which_only_a_part_fits_is_left_alone():
    needed = 1_000_000 * (2048 + 56)
    assert decide(**TOO_BIG_FOR_MEMORY, free_disk_bytes=needed).policy == "disk"
    assert decide(**TOO_BIG_FOR_MEMORY, free_disk_bytes=needed - 1).policy == "memory"
    assert decide(**TOO_BIG_FOR_MEMORY, free_disk_bytes=needed // 2, clips_on_disk=500_000).policy == "disk"

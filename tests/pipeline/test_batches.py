"""The same batches by three ways: values, places, and what is left behind. A process of its own takes them: see `source_program`."""

import pytest

from tests.pipeline.small_runs import damage_clip, make_run, make_run_folder
from tests.pipeline.source_program import run_ways

KEPT = "dual, codes in memory, two rows at a time, read by the thread that prepares"
KILLED = "isolated, a clip kills the producer"
WAYS = {
    "single": {"mode": "single"},
    "dual": {"mode": "dual"},
    "isolated": {"mode": "isolated"},
    "dual, waiting on the host, cache chosen": {
        "mode": "dual",
        "sections": {"data": {"cache": "auto", "prefetch_to_gpu": False}},
    },
    "dual, resumed": {"mode": "dual", "first_step": 3},
    KEPT: {"mode": "dual", "rows_at_a_time": 2, "sections": {"data": {"cache": "memory", "num_workers": 0}}},
    "codec, single": {"mode": "single", "target": "codec", "end_step": 4},
    "codec, isolated": {"mode": "isolated", "target": "codec", "end_step": 4},
}
DEADLY = """
import os, signal, sys

if "myxtts.pipeline.producer" in sys.orig_argv:
    from myxtts.data.host_batches import HostSource

    read = HostSource.read

    def read_or_die(self, number, upcoming=None):
        place, host = read(self, number, upcoming)
        if place.kind == "train" and CLIP in host.clips_B:
            os.kill(os.getpid(), signal.SIGKILL)
        return place, host

    HostSource.read = read_or_die
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose corpus was scanned when all was well. Now one clip is damaged."""
    folder = make_run_folder(tmp_path_factory.mktemp("run"))
    data, _ = make_run(folder)
    damage_clip(data.train.find_file(int(data.sampler.make_batch(3).clips[1])))
    (folder / "sitecustomize.py").write_text(DEADLY.replace("CLIP", str(data.sampler.make_batch(1).clips[0])))
    return folder


@pytest.fixture(scope="module")
def told(folder):
    # The last one: processes that are started later would find the clip that kills too.
    killed = {"mode": "isolated", "end_step": 3, "environ": {"PYTHONPATH": str(folder)}}
    return run_ways(folder, WAYS | {KILLED: killed})


def list_values(told):
    """All that must be the same in every mode."""
    return [{key: value for key, value in batch.items() if key != "devices"} for batch in told["batches"]]


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("codec")])
def test_every_way_gives_the_same_bits(way, told):
    got, reference = told[way], told["single"]
    first = 3 if "resumed" in way else 0
    assert list_values(got) == list_values(reference)[first:]
    assert got["drops"] == reference["drops"]
    warnings = [
        [line for line in each["log"] if line.startswith("wavs/") and "is replaced by" in line]
        for each in (got, reference)
    ]
    assert warnings[0] == warnings[1] != []


@pytest.mark.parametrize("way", WAYS)
def test_tensors_are_on_the_model_device_and_nothing_is_left_behind(way, told):
    got = told[way]
    device = f"/job:localhost/replica:0/task:0/device:{got['model_device'].removeprefix('/')}"
    assert {tuple(batch["devices"]) for batch in got["batches"]} == {(device,)}
    assert got["left_behind"] == []
    assert got["retraces"] == 0, "traced after warm-up"


def test_workers_and_hand_offs_are_measured_in_every_mode(told):
    for mode, workers, handoffs in (
        ("single", ["read", "prepare"], []),
        ("dual", ["read", "prepare", "transfer"], ["prepared", "on the model device"]),
        ("isolated", ["read", "prepare", "transfer"], ["producer", "on the model device"]),
    ):
        count = len(told[mode]["batches"])
        assert [name for name, _, _ in told[mode]["workers"]] == workers
        assert all(items == count and busy_s > 0 for _, items, busy_s in told[mode]["workers"])
        assert told[mode]["handoffs"] == [[name, count] for name in handoffs]


def test_a_batch_that_kills_twice_is_made_of_other_clips_and_reported(told):
    killed, (before, replaced, after) = told[KILLED], list_values(told["single"])[:3]
    first, second, third, *_ = list_values(killed)
    assert [first, third] == [before, after]
    assert not set(second["clips"]) & set(replaced["clips"])
    assert second["replaced"] == [[1, row, clip] for row, clip in enumerate(replaced["clips"])]
    assert [drop[2:] for drop in killed["drops"]] == [
        [f"step 1, row {row}", "the producer died twice at its batch"] for row in range(len(second["clips"]))
    ]
    names = ", ".join(drop[1] for drop in killed["drops"])
    assert [event for event in killed["events"] if event[0] == "replaced"] == [["replaced", 1, names]]
    assert [kind for kind, _, _ in killed["events"]].count("died") == 2


def test_cached_codes_are_used(told):
    assert [bool(told[way]["hits"]) for way in (KEPT, "dual")] == [True, False]


def test_a_codec_is_trained_on_the_same_mels_in_every_mode(told):
    assert list_values(told["codec, single"]) == list_values(told["codec, isolated"])
    names = set(told["codec, single"]["batches"][0]["arrays"])
    assert names == {"mel_BFM", "frame_lengths_B", "weights_B", "totals_2"}


def test_the_log_says_what_is_in_force(told):
    for line in (
        "Intelligent GPU Pipeline: Multi-GPU Mode",
        "Smart Prefetching: Enabled",
        "Multi-GPU Mode: Waiting for the first batch...",
        "Model training starting now",
        "Buffer Size: 50",
        "Codes are not kept. --cache is off.",
    ):
        for mode in ("dual", "isolated"):
            assert line in told[mode]["log"], (mode, line)
    assert "Prefetching to /CPU:1 with buffer_size=8" in told["dual"]["log"]
    assert "Intelligent GPU Pipeline: Single-GPU Buffered Mode" in told["single"]["log"]
    assert not [line for line in told["single"]["log"] if "Waiting up to" in line]
    chosen = told["dual, waiting on the host, cache chosen"]["log"]
    assert [line for line in chosen if line.startswith("Codes are")]

"""Long runs on the demo corpus: 16-bit training follows float32, and checkpointing needs less memory for the same losses."""

import os

import pytest

from tests.support.tiny_run import TinyRun, run_tiny, start_tiny

STEPS = 50
MODEL = {
    "model.gpt_layers": 4, "model.gpt_width": 128, "model.gpt_heads": 4, "model.dvae_width": 64, "model.audio_codes": 256,
    "data.prompt_seconds": 2.0, "data.batch_size": 8, "training.learning_rate": 0.001, "training.warmup_steps": 10,
}  # fmt: skip
LARGE_BATCH = {"data.batch_size": 16, "data.prompt_seconds": 6.0, "data.pipeline_buffer_size": 1}
MOST_DIFFERENCE = 0.01
LEAST_SAVED_MB = 100
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def codec(share):
    return share("precision_codec", lambda folder: run_tiny(folder, "--stage", "codec", "--max-steps", "60", **MODEL))


@pytest.fixture(scope="module")
def float32_losses(share, codec):
    return TinyRun.at(share("precision_float32", lambda folder: train_gpt(folder, codec))).losses


def train_gpt(folder, codec, *flags):
    return start_tiny(folder, "--codec", codec, "--max-steps", STEPS, *flags, **MODEL).finish(0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_follows_float32(codec, float32_losses, tmp_path, policy, record_property):
    losses = train_gpt(tmp_path / "run", codec, "--mixed-precision", policy).losses
    assert [step for step, _ in losses] == [step for step, _ in float32_losses] == list(range(1, STEPS + 1))
    differences = [abs(ours / theirs - 1) for (_, ours), (_, theirs) in zip(losses, float32_losses, strict=True)]
    told = f"{policy}: loss {losses[0][1]:.3f} to {losses[-1][1]:.3f}, float32 {float32_losses[0][1]:.3f} to "
    told += f"{float32_losses[-1][1]:.3f}; differences at most {max(differences):.4f}, at the end {differences[-1]:.4f}"
    record_property("summary", [told])
    assert losses[-1][1] < 0.8 * losses[0][1], "nothing was learnt, so nothing was compared"
    # One by one: a maximum does not see what is not a number.
    assert all(difference <= MOST_DIFFERENCE for difference in differences)


def test_checkpointing_needs_less_memory(codec, tmp_path, record_property):
    peaks, losses = {}, {}
    for name, flags in {"kept": (), "again": ("--gradient-checkpointing",)}.items():
        folder = tmp_path / name
        live = start_tiny(folder, "--codec", codec, "--max-steps", 4, *flags, **{**MODEL, **LARGE_BATCH})
        _, status, usage = os.wait4(live.process.pid, 0)
        live.process.returncode = os.waitstatus_to_exitcode(status)
        peaks[name], losses[name] = usage.ru_maxrss / 1024, [loss for _, loss in live.finish(0).losses]
    told = f"peak of the process: {peaks['kept']:.0f} MB, with checkpointing {peaks['again']:.0f} MB"
    record_property("summary", [told])
    assert losses["again"] == pytest.approx(losses["kept"], rel=1e-5)
    assert peaks["again"] < peaks["kept"] - LEAST_SAVED_MB

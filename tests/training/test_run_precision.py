"""Long runs on the demo corpus: 16-bit training follows float32, and checkpointing needs less memory for the same losses."""

import os

import pytest

from tests.training.runs import read_losses, start, train

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
    return share("precision_codec", lambda folder: train(folder, "--stage", "codec", "--max-steps", "60", **MODEL))


@pytest.fixture(scope="module")
def float32_losses(share, codec):
    return read_losses(share("precision_float32", lambda folder: _train_gpt(folder, codec)))


def _train_gpt(folder, codec, *flags):
    train(folder, "--codec", codec, "--max-steps", STEPS, *flags, **MODEL)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_follows_float32(codec, float32_losses, tmp_path, policy, record_property):
    _train_gpt(tmp_path / "run", codec, "--mixed-precision", policy)
    losses = read_losses(tmp_path / "run")
    assert [step for step, _ in losses] == [step for step, _ in float32_losses] == list(range(1, STEPS + 1))
    differences = [abs(ours / theirs - 1) for (_, ours), (_, theirs) in zip(losses, float32_losses, strict=True)]
    record_property(
        "summary",
        [
            f"{policy}: loss {losses[0][1]:.3f} to {losses[-1][1]:.3f}, float32 {float32_losses[0][1]:.3f} to "
            f"{float32_losses[-1][1]:.3f}; differences at most {max(differences):.4f}, at the end {differences[-1]:.4f}"
        ],
    )
    assert losses[-1][1] < 0.8 * losses[0][1], "nothing was learnt, so nothing was compared"
    # One by one: a maximum does not see what is not a number.
    assert all(difference <= MOST_DIFFERENCE for difference in differences)


def test_checkpointing_needs_less_memory(codec, tmp_path, record_property):
    peaks, losses = {}, {}
    for name, flags in {"kept": (), "again": ("--gradient-checkpointing",)}.items():
        folder = tmp_path / name
        flags = ("--codec", codec, "--max-steps", 4, "--mode", "single", *flags)
        run = start(folder, *flags, **{**MODEL, **LARGE_BATCH})
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        assert run.returncode == 0, (tmp_path / f"{name}.said").read_text()[-4000:]
        peaks[name], losses[name] = usage.ru_maxrss / 1024, [loss for _, loss in read_losses(folder)]
    record_property(
        "summary", [f"peak of the process: {peaks['kept']:.0f} MB, with checkpointing {peaks['again']:.0f} MB"]
    )
    assert losses["again"] == pytest.approx(losses["kept"], rel=1e-5)
    assert peaks["again"] < peaks["kept"] - LEAST_SAVED_MB

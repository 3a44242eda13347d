"""Training the waveform decoder: it comes closer to the recordings, its rivals learn for themselves, and the GPT stays."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.discriminators import Rivals, RivalSize
from myxtts.models.gpt import GPT
from myxtts.models.sizes import SEGMENT_FRAMES, SEGMENT_SAMPLES, SPEECH_RATE_HZ, DecoderSize, count_frames
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import to_checkpoint
from myxtts.models.xtts import initialise_weights
from myxtts.training.objectives import DecoderObjective
from myxtts.training.optimizer import BETAS
from myxtts.training.step import MicroStep, StepSettings, TrainStep
from tests.models.small import SIZE

ROWS, FRAMES, TEXT, CODES = 2, 24, 6, 12
# Few layers: tracing is what these tests spend their time on.
DECODER_SIZE = DecoderSize(
    latent_width=16,
    width=32,
    speaker_width=4,
    rates=(16, 16),
    kernels=(32, 32),
    block_kernels=(3,),
    block_dilations=(3,),
)
RIVAL_SIZE = RivalSize(width=2, periods=(3,), fft_samples=(512,))


def build(part, seed):
    initialise_weights(part, seed)
    return part


def make_objective(dtype="float32"):
    decoder = build(WaveformDecoder(DECODER_SIZE, dtype=dtype), 1)
    decoder.forget_speakers()
    gpt = build(GPT(replace(SIZE, layers=1, encoder_blocks=1), dtype=dtype), 3)
    return DecoderObjective(decoder, build(Rivals(RIVAL_SIZE, dtype=dtype), 2), gpt)


def make_step(dtype="float32", **settings):
    settings = {"seed": 1, "betas": BETAS, "uses_dropout": False} | settings
    return TrainStep(make_objective(dtype), StepSettings(**settings))


def make_batch(rows=ROWS, **changed):
    draw = np.random.default_rng(0)
    starts = draw.integers(0, count_frames(CODES) - SEGMENT_FRAMES + 1, rows).astype(np.int32)
    time = np.arange(SEGMENT_SAMPLES) / SPEECH_RATE_HZ
    speech = 0.3 * np.sin(2 * np.pi * 200 * (1 + np.arange(rows)[:, None]) * time)
    arrays = {
        "mel_BFM": draw.normal(size=(rows, FRAMES, 80)).astype(np.float32),
        "text_BT": draw.integers(0, 20, (rows, TEXT)).astype(np.int32),
        "text_lengths_B": np.full(rows, TEXT, np.int32),
        "codes_BM": draw.integers(0, 16, (rows, CODES)).astype(np.int32),
        "code_lengths_B": np.full(rows, CODES, np.int32),
        "weights_B": np.ones(rows, np.float32),
        "speech_BS": speech.astype(np.float32),
        "segment_starts_B": starts,
        "segment_frames_B": np.full(rows, SEGMENT_FRAMES, np.int32),
        "totals_2": np.array([rows, rows], np.float32),
    }
    return {name: tf.constant(value) for name, value in (arrays | changed).items()}


def read_weights(model):
    return {name: array.copy() for name, array in to_checkpoint(model).items()}


def update(step, batch, number=0, rate=1e-3):
    return step.name_results(step.apply(step.compute(batch, MicroStep(number, 0, 1)), rate))


def test_the_mel_comes_closer_and_the_gpt_stays_bit_for_bit():
    step, batch = make_step(), make_batch()
    before = {name: read_weights(part) for name, part in list_parts(step).items()}
    losses = [update(step, batch, number, 2e-3)["loss"] for number in range(30)]
    assert np.mean(losses[-3:]) < 0.6 * losses[0], losses
    after = {name: read_weights(part) for name, part in list_parts(step).items()}
    for name, array in before["gpt"].items():
        np.testing.assert_array_equal(after["gpt"][name], array, err_msg=name)
    for part in ("decoder", "rivals"):
        assert any(np.any(after[part][name] != array) for name, array in before[part].items()), part
    assert step.count_retraces() == 0
    assert not step.objective.model.hears_speakers, "it has heard none"


def list_parts(step):
    objective = step.objective
    return {"gpt": objective._gpt, "decoder": objective.model, "rivals": objective.rival}


@pytest.mark.parametrize("side", [0, 1])
def test_each_side_is_moved_by_its_own_loss_alone(monkeypatch, usual, side):
    """With the other side's loss multiplied, a side's gradients stay as they are to the last bit, and so does its update."""
    own = len(usual.step.optimizer.variables)
    other = make_step(clip_norm=1.0)
    exaggerate(monkeypatch, other.objective, side)
    computed = other.compute(usual.batch, MicroStep(0, 0, 1))
    sides = [(found[:own], found[own:]) for found in (computed.gradients, usual.gradients)]
    (moved, before), (kept, expected) = zip(*(each if side == 0 else each[::-1] for each in sides), strict=True)
    for found, wanted in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    largest = [max(float(tf.reduce_max(tf.abs(each))) for each in gradients) for gradients in (moved, before)]
    assert largest[0] == pytest.approx(1000 * largest[1], rel=1e-3)
    if side == 1:
        # A long gradient of the rivals does not shorten the decoder's, either.
        other.apply(computed, 1e-3)
        for name, array in usual.updated.items():
            np.testing.assert_array_equal(read_weights(other.objective.model)[name], array, err_msg=name)


@pytest.fixture(scope="module")
def usual():
    """The first update of a step: its gradients, and the decoder after it."""
    step, batch = make_step(clip_norm=1.0), make_batch()
    computed = step.compute(batch, MicroStep(0, 0, 1))
    step.apply(computed, 1e-3)
    return SimpleNamespace(
        step=step, batch=batch, gradients=computed.gradients, updated=read_weights(step.objective.model)
    )


def exaggerate(monkeypatch, objective, side):
    whole = objective.compute

    def compute(*arguments, **options):
        outcome = whole(*arguments, **options)
        pursued = list(outcome.pursued)
        pursued[side] *= 1000.0
        return outcome._replace(pursued=tuple(pursued))

    monkeypatch.setattr(objective, "compute", compute)


def test_rows_that_fill_a_batch_and_ends_behind_a_clip_do_not_count():
    step = make_step()
    batch = make_batch()
    alone = {name: value if name == "totals_2" else value[:1] for name, value in batch.items()}
    filled = dict(batch) | {"weights_B": tf.constant([1.0, 0.0])}
    np.testing.assert_allclose(step.evaluate(filled, "all"), step.evaluate(alone, "all"), rtol=1e-4)
    short = dict(alone) | {
        "segment_frames_B": tf.constant([8]),
        "speech_BS": alone["speech_BS"] * tf.cast(tf.range(SEGMENT_SAMPLES) < 8 * 256, tf.float32),
    }
    other = short | {"codes_BM": tf.concat([short["codes_BM"][:, :-1], [[3]]], 1)}
    np.testing.assert_allclose(step.evaluate(short, "all"), step.evaluate(other, "all"), rtol=1e-5)


@pytest.fixture(scope="module")
def usual_losses():
    step, batch = make_step(), make_batch()
    return [update(step, batch, number)["loss"] for number in range(4)]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"uses_xla": True}, 1e-4),
        ({"dtype": "mixed_bfloat16"}, 0.02),
        ({"dtype": "mixed_float16", "uses_loss_scale": True}, 0.02),
    ],
    ids=["xla", "bfloat16", "float16"],
)
def test_another_way_to_compute_follows_the_usual_one(usual_losses, settings, difference):
    step, batch = make_step(**settings), make_batch()
    # In float16 the first updates look for a scale of the gradients.
    results = [update(step, batch, number) for number in range(20)]
    applied = [result["loss"] for result in results if result["is_applied"]][: len(usual_losses)]
    np.testing.assert_allclose(applied, usual_losses, rtol=difference)
    assert applied[-1] < 0.95 * applied[0]
    assert all(not result["is_applied"] or np.isfinite(result["gradient_norm"]) for result in results)

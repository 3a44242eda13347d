"""The GPT computes what the reference computes: conditioning, losses, logits, gradients, latents."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.gpt import GPTBatch
from myxtts.models.weights import find_variable, to_checkpoint_layout
from tests.models.reference import channels_last, count_codes, differ, load_case, load_facts, span_as_reference
from tests.models.small import differentiate

LOSS = 1e-5
STATES = 1e-4


def make_reference_batch(*, codes="audio_codes", spans=None):
    arrays = load_case("b_gpt_train")
    lengths = count_codes(tf.constant(arrays["in/wav_lengths"]))
    return GPTBatch(
        channels_last(arrays["in/cond_mels"][:, 0]),
        tf.constant(arrays["in/text_inputs"]),
        tf.constant(arrays["in/text_lengths"]),
        tf.constant(arrays[f"in/{codes}"]),
        lengths,
        spans,
    )


@pytest.fixture(scope="module")
def expected():
    return load_case("b_gpt_train")


def test_conditioning_encoder_and_perceiver(gpt):
    arrays = load_case("a_cond")
    mel = channels_last(arrays["in/cond_mel"])
    assert differ(gpt.conditioning_encoder(mel), arrays["out/enc"].transpose(2, 0, 1)) < STATES
    assert differ(gpt.make_prompt(mel), arrays["out/cond_latents"]) < STATES


def test_losses_and_the_gradient_of_every_weight(gpt, expected):
    batch = make_reference_batch()
    losses = gpt.compute_losses(batch)
    assert differ(losses.text.mean, expected["out/loss_text"]) < LOSS
    assert differ(losses.audio.mean, expected["out/loss_mel"]) < LOSS
    total, gradients = differentiate(gpt, batch)
    assert differ(total, expected["out/loss_total"]) < LOSS
    by_variable = dict(zip(map(id, gpt.trainable_variables), gradients, strict=True))
    norms = load_facts("b_gpt_train")["grad_norms"]
    compared = 0
    for weight in gpt.list_weights():
        ours = to_checkpoint_layout(weight, by_variable[id(find_variable(gpt, weight.variable))].numpy())
        assert np.linalg.norm(ours.astype(np.float64)) == pytest.approx(norms[weight.key], rel=1e-4), weight.key
        theirs = expected.get(f"out/grad/{weight.key}")
        if theirs is not None:
            compared += 1
            assert differ(ours, theirs) < 1e-4 * np.max(np.abs(theirs)), weight.key
    assert compared == 14
    assert len(norms) == len(gradients)


def test_label_smoothing(gpt, expected):
    losses = gpt.compute_losses(make_reference_batch(), smoothing=0.1)
    assert differ(losses.text.mean, expected["out/loss_text_label_smoothing_0.1"]) < LOSS
    assert differ(losses.audio.mean, expected["out/loss_mel_label_smoothing_0.1"]) < LOSS


def test_spans_as_the_reference_blanks_them(gpt, expected):
    batch = make_reference_batch(spans=span_as_reference(expected["in/cond_idxs"]))
    _, audio = gpt.frame(batch)
    np.testing.assert_array_equal(
        np.where(audio.counted_BL, audio.targets_BL, -1), expected["mid/mel_targets_cond_idxs"]
    )
    losses = gpt.compute_losses(batch)
    assert differ(losses.text.mean, expected["out/loss_text_cond_idxs"]) < LOSS
    assert differ(losses.audio.mean, expected["out/loss_mel_cond_idxs"]) < LOSS


def test_spans_blank_the_prompts_own_codes_in_every_row(gpt):
    spans = tf.constant([[0, 3 * 1024], [2048, 5 * 1024 + 10], [0, 0]])
    _, audio = gpt.frame(make_reference_batch(spans=spans))
    _, without = gpt.frame(make_reference_batch())
    blanked = np.argwhere(without.counted_BL.numpy() & ~audio.counted_BL.numpy())
    assert blanked.tolist() == [[0, 0], [0, 1], [0, 2], [1, 2], [1, 3], [1, 4]]


def test_codes_beyond_the_clip_change_nothing(gpt, expected):
    losses = gpt.compute_losses(make_reference_batch(codes="audio_codes_long"))
    assert differ(losses.audio.mean, expected["out/loss_mel_long"]) < LOSS


@pytest.mark.parametrize("rows", ["", "_b2"])
def test_latents(gpt, rows):
    arrays = load_case("c_gpt_latents")
    names = ("in/cond_latents", "in/text_inputs", "in/audio_codes")
    latents = gpt.compute_latents(*(tf.constant(arrays[name + rows]) for name in names))
    assert differ(latents, arrays[f"out/latents{rows}"]) < STATES

"""How a network starts: fresh weights, sizes from a configuration, a larger vocabulary."""

import dataclasses

import numpy as np
import pytest

from myxtts.models.gpt import GPT
from myxtts.models.sizes import DecoderSize, GPTSize
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import VocabularyShrinkError, grow_text_vocabulary, load_checkpoint_arrays, to_checkpoint
from myxtts.models.xtts import initialise_weights
from tests.models.reference import differ
from tests.models.small import SIZE, build_small_gpt, make_batch

WIDE = GPTSize(layers=2, width=128, heads=4, text_tokens=300, audio_codes=200, max_text_tokens=60, max_audio_tokens=80)


@pytest.fixture(scope="module")
def fresh():
    gpt = GPT(WIDE)
    initialise_weights(gpt, 1)
    return to_checkpoint(gpt)


@pytest.mark.parametrize(
    ("key", "deviation"),
    [
        ("text_embedding.weight", 1.0),
        ("mel_embedding.weight", 1.0),
        ("text_pos_embedding.emb.weight", 0.02),
        ("mel_pos_embedding.emb.weight", 0.02),
        ("gpt.h.0.attn.c_attn.weight", 0.02),
        ("gpt.h.1.mlp.c_fc.weight", 0.02),
        ("gpt.h.1.mlp.c_proj.weight", 0.02 / np.sqrt(4)),
        ("gpt.h.0.attn.c_proj.weight", 0.02 / np.sqrt(4)),
        ("conditioning_perceiver.latents", 0.02),
    ],
)
def test_normal_starts(fresh, key, deviation):
    assert np.std(fresh[key]) == pytest.approx(deviation, rel=0.05)
    assert abs(np.mean(fresh[key])) < 0.05 * deviation
    assert np.max(np.abs(fresh[key])) > 2.5 * deviation


@pytest.mark.parametrize(
    ("key", "fan_in"),
    [
        ("text_head.weight", 128),
        ("text_head.bias", 128),
        ("mel_head.weight", 128),
        ("conditioning_encoder.init.weight", 80),
        ("conditioning_encoder.attn.0.qkv.weight", 128),
        ("conditioning_perceiver.layers.0.0.to_out.weight", 512),
        ("conditioning_perceiver.layers.1.1.2.weight", 341),
    ],
)
def test_uniform_starts(fresh, key, fan_in):
    bound = 1 / np.sqrt(fan_in)
    assert 0.95 * bound < np.max(np.abs(fresh[key])) <= bound
    assert np.std(fresh[key]) == pytest.approx(bound / np.sqrt(3), rel=0.05)


def test_a_start_follows_its_seed(fresh):
    again, other = GPT(WIDE), GPT(WIDE)
    initialise_weights(again, 1)
    initialise_weights(other, 2)
    assert all(np.array_equal(fresh[key], value) for key, value in to_checkpoint(again).items())
    assert np.any(fresh["text_head.weight"] != to_checkpoint(other)["text_head.weight"])
    first, second = (fresh[f"gpt.h.{layer}.attn.c_attn.weight"] for layer in (0, 1))
    assert np.any(first != second)


def test_weight_normed_kernels_start_as_their_directions():
    decoder = WaveformDecoder(DecoderSize(latent_width=16, width=16, speaker_width=8))
    initialise_weights(decoder, 1)
    for conv in (decoder.ups[0], decoder.resblocks[4].dilated[1]):
        assert differ(conv.fuse(), conv.directions.numpy()) < 1e-6
        assert np.any(conv.directions.numpy())


def test_a_grown_vocabulary_keeps_old_rows_and_repeats_the_last():
    old, grown = build_small_gpt(), GPT(dataclasses.replace(SIZE, text_tokens=35))
    before = to_checkpoint(old)
    after = grow_text_vocabulary(before, 35, seed=1)
    load_checkpoint_arrays(grown, after).require_complete()
    for key, value in before.items():
        if key.startswith(("text_embedding", "text_head")):
            np.testing.assert_array_equal(after[key][:30], value)
            np.testing.assert_array_equal(after[key][-1], value[-1])
        else:
            np.testing.assert_array_equal(after[key], value)
    for key in ("text_embedding.weight", "text_head.weight"):
        assert np.std(after[key][30:34]) == pytest.approx(1, abs=0.3)
    assert not np.any(after["text_head.bias"][30:34])
    # What was known is said as before: new tokens only join the softmax of the text.
    assert float(grown.compute_losses(make_batch()).audio.total) == float(old.compute_losses(make_batch()).audio.total)


def test_a_vocabulary_cannot_shrink():
    with pytest.raises(VocabularyShrinkError, match="at least 30 tokens, but has 29"):
        grow_text_vocabulary(to_checkpoint(build_small_gpt()), 29, seed=1)

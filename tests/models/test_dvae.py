"""The DVAE and its codebook."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.dvae import DVAE, Codebook, CodeUsage
from myxtts.models.sizes import DVAESize
from myxtts.models.weights import find_variable, to_checkpoint, to_checkpoint_layout
from myxtts.models.xtts import initialise_weights
from tests.models.reference import channels_last, differ, load_case, load_facts

TOLERANCE = 1e-5
COMMITMENT_WEIGHT = 0.25
"""Of the reference run that the gradients were taken from."""


@pytest.fixture(scope="module")
def expected():
    return load_case("d_dvae")


@pytest.fixture(scope="module")
def mel(expected):
    return channels_last(expected["in/mel"])


def test_codes_are_the_references(dvae, expected, mel):
    assert differ(dvae.encoder(mel), expected["mid/z"]) < TOLERANCE
    np.testing.assert_array_equal(dvae.encode(mel), expected["out/codes"])
    np.testing.assert_array_equal(dvae.encode(channels_last(expected["in/mel_odd"])), expected["out/codes_odd"])


def test_decoded_mel_is_the_references(dvae, expected):
    decoded = dvae.decode(tf.constant(expected["out/codes"]))
    assert differ(decoded, expected["out/decoded_mel"].swapaxes(1, 2)) < TOLERANCE


def test_training_losses_gradients_and_codebook_are_the_references(dvae, expected, mel):
    with tf.GradientTape() as tape:
        losses = dvae.compute_losses(mel)
        total = losses.reconstruction.mean + COMMITMENT_WEIGHT * losses.commitment.mean
    gradients = tape.gradient(total, [variable.value for variable in dvae.trainable_variables])
    assert differ(losses.mel_BFM, expected["out/train_out"].swapaxes(1, 2)) < TOLERANCE
    assert differ(losses.commitment.mean, expected["out/train_commitment_loss"]) < TOLERANCE
    assert differ(total, expected["out/train_loss"]) < TOLERANCE
    by_variable = dict(zip(map(id, dvae.trainable_variables), gradients, strict=True))
    norms = load_facts("d_dvae")["grad_norms"]
    for weight in dvae.list_weights():
        gradient = by_variable.get(id(find_variable(dvae, weight.variable)))
        assert (gradient is not None) == (weight.key in norms), weight.key
        if gradient is not None:
            ours = to_checkpoint_layout(weight, gradient.numpy())
            assert np.linalg.norm(ours) == pytest.approx(norms[weight.key], rel=1e-5), weight.key
            if f"out/grad/{weight.key}" in expected:
                assert differ(ours, expected[f"out/grad/{weight.key}"]) < TOLERANCE, weight.key
    before = to_checkpoint(dvae)["codebook.embed"]
    dvae.codebook.update(losses.usage)
    after = to_checkpoint(dvae)
    assert np.any(after["codebook.embed"] != before)
    for name in ("embed", "embed_avg", "cluster_size"):
        assert differ(after[f"codebook.{name}"], expected[f"out/train_after_{name}"]) < TOLERANCE, name


def test_without_quantisation_the_decoder_reads_the_encoder(dvae, mel):
    rebuilt = dvae.compute_losses(mel, quantise=False).mel_BFM
    assert differ(rebuilt, dvae.decoder(dvae.encoder(mel)).numpy()) < TOLERANCE
    assert differ(rebuilt, dvae.compute_losses(mel).mel_BFM.numpy()) > 0.01


def test_padding_is_neither_judged_nor_learnt_from(dvae, mel):
    losses = dvae.compute_losses(mel, tf.constant([64, 96]))
    squares = np.square(mel - losses.mel_BFM)
    assert float(losses.reconstruction.total) == pytest.approx(squares[0, :64].sum() + squares[1].sum(), rel=1e-5)
    assert float(losses.reconstruction.count) == (64 + 96) * 80
    assert float(tf.reduce_sum(losses.usage.counts_K)) == (64 + 96) // 4
    assert float(losses.commitment.count) == (64 + 96) // 4 * 32


def test_a_clips_codes_do_not_depend_on_its_neighbours():
    dvae = DVAE(DVAESize(width=64, codes=60))
    initialise_weights(dvae, 1)
    clips = tf.random.stateless_normal([3, 120, 80], [4, 2])
    # Two codes on opposite sides of each of a clip's vectors: a last bit decides between them.
    vectors = dvae.encoder(clips[1:2])[0].numpy()
    aside = 0.01 * np.random.default_rng(0).standard_normal(vectors.shape)
    dvae.codebook.vectors.assign(np.concatenate([vectors + aside, vectors - aside]))
    encode = tf.function(dvae.encode, autograph=False)
    alone = encode(clips[1:2])
    assert np.all(alone[0] % 30 == np.arange(30))
    np.testing.assert_array_equal(encode(clips)[1:2], alone)
    np.testing.assert_array_equal(encode(tf.repeat(clips, 5, 0))[7:8], alone)


def build_codebook(codes, width, vectors):
    book = Codebook(codes, width)
    book.vectors.assign(vectors)
    book.vector_sums.assign(vectors)
    book.cluster_size.assign(np.ones(codes))
    return book


def test_a_random_codebook_is_hardly_used_and_a_drawn_one_is():
    # Encoder outputs far from the origin, where random vectors are not.
    z = tf.random.stateless_normal([4, 200, 8], [7, 7]) + 5
    book = build_codebook(64, 8, np.random.default_rng(0).standard_normal((64, 8)))
    assert len(np.unique(book.find_nearest(z))) < 16
    book.draw_from(z, tf.constant([1, 2]))
    assert len(np.unique(book.find_nearest(z))) == 64
    rows = {row.tobytes() for row in z.numpy().reshape(-1, 8)}
    assert all(vector.tobytes() in rows for vector in book.vectors.numpy())


def test_dead_codes_come_back_and_living_ones_stay():
    z = tf.random.stateless_normal([4, 200, 8], [7, 7])
    book = build_codebook(64, 8, np.random.default_rng(0).standard_normal((64, 8)) * 0.1)
    living = np.arange(64) < 20
    book.cluster_size.assign(np.where(living, 10.0, 0.001))
    before = book.vectors.numpy()
    revived = book.revive(z, tf.constant([1, 2]))
    assert int(revived) == 44
    np.testing.assert_array_equal(book.vectors.numpy()[living], before[living])
    assert len(np.unique(book.find_nearest(z))) > 44
    assert int(book.revive(z, tf.constant([1, 3]))) == 0
    # Alive means that an update without use leaves a revived vector where it is.
    vectors = book.vectors.numpy()
    book.update(CodeUsage(tf.zeros([64]), tf.zeros([64, 8])))
    np.testing.assert_allclose(book.vectors.numpy()[~living], vectors[~living], rtol=1e-3, atol=1e-4)

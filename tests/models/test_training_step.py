"""What a training step relies on: keyed dropout, recomputed activations, half precision, sums that add up."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.attention import make_dropout_key
from myxtts.models.gpt import GPT, measure_losses
from myxtts.models.losses import GPTLosses, TokenLoss
from myxtts.tuning.profiling import count_launches
from tests.models.small import SIZE, build_small_gpt, differentiate, make_batch


def differentiate_compiled(gpt, batch, key):
    compiled = tf.function(lambda batch, key: differentiate(gpt, batch, dropout_key=key), autograph=False)
    return compiled(batch, key)


@pytest.fixture(scope="module")
def kept():
    """Loss and gradients with dropout, activations kept."""
    return differentiate_compiled(build_small_gpt(dropout=0.1), make_batch(), make_dropout_key(1, 5))


def test_recomputed_activations_give_the_same_gradients_under_dropout(kept):
    gpt = build_small_gpt(dropout=0.1, checkpointing=True)
    loss, gradients = differentiate_compiled(gpt, make_batch(), make_dropout_key(1, 5))
    np.testing.assert_array_equal(loss, kept[0])
    for ours, expected in zip(gradients, kept[1], strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-7, rtol=1e-6)


def differentiate_shared(**options):
    """Gradients under dropout of three rows that share two prompts, and how many rows the products of blocks have."""
    gpt, batch = build_small_gpt(dropout=0.1, **options), make_batch()
    text, audio = gpt.frame(batch)

    def run(key):
        with tf.GradientTape() as tape:
            prompts = gpt.make_prompt(batch.mel_BFM[:2])
            logits = gpt.compute_logits(prompts, text, audio, key, tf.constant([1, 0, 1], tf.int64))
            loss = measure_losses(logits, text, audio).weigh()
        return tape.gradient(loss, [variable.value for variable in gpt.trainable_variables])

    compiled = tf.function(run, autograph=False).get_concrete_function(make_dropout_key(1, 5))
    products = [each.outputs[0].shape for each in compiled.graph.get_operations() if each.type == "MatMul"]
    return compiled(make_dropout_key(1, 5)), {rows for rows, width in products if width == 4 * SIZE.width}


@pytest.mark.parametrize(
    "way", [{"checkpointing": True}, {"scores": 1}, {"joins": True}, {"fused_norms": True}], ids=str
)
def test_a_shared_prompt_is_computed_once_and_alike_in_every_way(way):
    (expected, rows), (ours, _) = differentiate_shared(), differentiate_shared(**way)
    assert 2 * 32 + 3 * (10 + 18) in rows, "two prompts, and three rows of 10 places of text and 18 of codes"
    assert 3 * (32 + 10 + 18) not in rows
    for own, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(own, other, atol=2e-6, rtol=1e-5)


def count_executed(function, operation):
    """How often an operation stands in a compiled function, its inner functions included."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sum(node.op == operation for node in nodes)


def test_checkpointing_really_computes_again():
    counts = []
    for checkpointing in (False, True):
        gpt = build_small_gpt(checkpointing=checkpointing)
        step = tf.function(lambda batch, gpt=gpt: differentiate(gpt, batch), autograph=False)
        counts.append(count_executed(step.get_concrete_function(make_batch()), "Softmax"))
    # Two blocks of the GPT and two of the conditioning encoder.
    assert counts[1] == counts[0] + 4


@pytest.fixture(scope="module")
def launched():
    """Kernels of a step by how many layers it has, for a GPU."""

    def count(layers):
        gpt = GPT(replace(SIZE, layers=layers), dropout=0.1, fused_norms=True)
        step = tf.function(lambda batch, key: differentiate(gpt, batch, dropout_key=key), autograph=False)
        return count_launches(step.get_concrete_function(make_batch(), make_dropout_key(1, 5))).total()

    return {layers: count(layers) for layers in (1, 2)}


def test_a_layer_asks_a_gpu_for_few_kernels(launched):
    # Coqui's asks for 79. Each takes 4 to 10 us however small it is: a step of thousands cannot keep a card busy.
    assert launched[2] - launched[1] <= 86
    assert launched[1] <= 435


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("way", ["fused_norms", "joins"])
def test_what_is_computed_by_fewer_kernels_is_the_same(way, dtype):
    plain, lean = (differentiate(build_small_gpt(dtype=dtype, **{way: each}), make_batch()) for each in (False, True))
    tolerance = 1e-5 if dtype == "float32" else 0.02
    np.testing.assert_allclose(lean[0], plain[0], rtol=tolerance)
    for ours, expected in zip(lean[1], plain[1], strict=True):
        np.testing.assert_allclose(ours, expected, atol=tolerance * max(1, np.abs(expected).max()))


def test_attention_is_cut_and_sums_are_joined_only_in_a_model_that_is_built_so():
    def count(operation, **built):
        gpt = build_small_gpt(**built)
        step = tf.function(lambda batch: differentiate(gpt, batch), autograph=False)
        return count_executed(step.get_concrete_function(make_batch()), operation)

    assert count("BatchMatMulV2", scores=1) > count("BatchMatMulV2")
    # Of four products in each of the GPT's two blocks and of two in each of the encoder's.
    assert count("BiasAddGrad", joins=True) == count("BiasAddGrad") - 12


def test_sequences_of_16_bits_are_whole_tiles_and_their_filling_is_not_seen():
    batch = make_batch()
    losses = [build_small_gpt(dtype=dtype).compute_losses(batch).weigh() for dtype in ("float32", "mixed_bfloat16")]
    assert float(losses[1]) == pytest.approx(float(losses[0]), rel=0.01)
    gpt = build_small_gpt(dtype="mixed_bfloat16")
    run, lengths = gpt.run_blocks, []
    gpt.run_blocks = lambda x, *others: (lengths.append(x.shape[1]), run(x, *others))[1]
    text, audio = gpt.frame(batch)
    text_logits, audio_logits = gpt.compute_logits(gpt.make_prompt(batch.mel_BFM), text, audio)
    assert lengths == [64], "32 of the prompt, 10 of text and 18 of codes"
    assert (text_logits.shape[1], audio_logits.shape[1]) == (10, 18)


def test_dropout_follows_its_key_alone():
    gpt, batch = build_small_gpt(dropout=0.1), make_batch()

    def measure(*key):
        return float(gpt.compute_losses(batch, dropout_key=make_dropout_key(*key)).weigh())

    assert measure(1, 5, 0) == measure(1, 5, 0)
    assert len({measure(1, 5, 0), measure(2, 5, 0), measure(1, 6, 0), measure(1, 5, 1)}) == 4
    assert float(gpt.compute_losses(batch).weigh()) == float(build_small_gpt().compute_losses(batch).weigh())


def test_losses_are_per_token_and_weighted():
    losses = GPTLosses(TokenLoss(tf.constant(6.0), tf.constant(3.0)), TokenLoss(tf.constant(8.0), tf.constant(2.0)))
    assert float(losses.weigh()) == pytest.approx(0.01 * 2 + 4)
    assert float(losses.weigh(tf.constant(6.0), tf.constant(8.0))) == pytest.approx(0.01 * 1 + 1)
    assert float(TokenLoss(tf.constant(0.0), tf.constant(0.0)).mean) == 0


def test_gradients_are_dense_so_that_their_norm_is_the_gradients_norm():
    _, gradients = differentiate(build_small_gpt(), make_batch())
    assert all(isinstance(gradient, tf.Tensor) for gradient in gradients)


@pytest.mark.parametrize(("policy", "loss_scale"), [("mixed_float16", 1024.0), ("mixed_bfloat16", 1.0)])
def test_half_precision_trains_without_nan(policy, loss_scale):
    gpt, batch = build_small_gpt(dropout=0.1, checkpointing=True, dtype=policy), make_batch()
    variables = [variable.value for variable in gpt.trainable_variables]

    @tf.function(autograph=False)
    def train(key):
        with tf.GradientTape() as tape:
            losses = gpt.compute_losses(batch, dropout_key=key)
            scaled = losses.weigh() * loss_scale
        for variable, gradient in zip(variables, tape.gradient(scaled, variables), strict=True):
            variable.assign_sub(0.1 / loss_scale * gradient)
        return losses

    history = [train(make_dropout_key(1, step)) for step in range(8)]
    assert all(losses.audio.total.dtype == tf.float32 for losses in history)
    values = [float(losses.weigh()) for losses in history]
    assert np.all(np.isfinite(values))
    assert values[-1] < values[0]
    assert all(variable.dtype == tf.float32 for variable in variables)
    assert all(np.all(np.isfinite(variable.numpy())) for variable in variables)

"""Adapters beside the GPT's products: nothing at first, the same as their merged weights afterwards, and all that is trained."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.checkpoints.model_directory import merge_adapter
from myxtts.checkpoints.tensors import LazyTensor
from myxtts.config.training import LORA_PRODUCTS
from myxtts.models.attention import make_dropout_key
from myxtts.models.gpt import Adapters
from myxtts.models.weights import CheckpointMismatchError, find_variable, load_checkpoint_arrays, to_checkpoint
from myxtts.models.xtts import initialise_weights
from myxtts.training.objectives import GPTObjective
from myxtts.training.step import MicroStep, StepSettings, TrainStep
from tests.models.small import SIZE, build_small_gpt, make_batch

FACTOR = 0.7


def adapt(gpt, *, rank=3, products=LORA_PRODUCTS, moved=False):
    """The adapters of a GPT, fresh or somewhere that training might have brought them."""
    adapters = Adapters(gpt, rank=rank, products=products, factor=FACTOR)
    initialise_weights(adapters, 5)
    if moved:
        draw = np.random.default_rng(1)
        for weight in adapters.list_weights():
            variable = find_variable(adapters, weight.variable)
            variable.assign(draw.normal(scale=0.2, size=variable.shape))
    return adapters


def compute_logits(gpt, **options):
    batch = make_batch()
    return gpt.compute_logits(gpt.make_prompt(batch.mel_BFM), *gpt.frame(batch), **options)


def to_lazy(arrays):
    return {name: LazyTensor(array.shape, array.dtype, lambda array=array: array) for name, array in arrays.items()}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_fresh_adapters_change_no_bit(checkpointing):
    gpt = build_small_gpt(dropout=0.1, checkpointing=checkpointing)
    key = make_dropout_key(1, 2)
    before = compute_logits(gpt, dropout_key=key)
    adapt(gpt)
    for ours, expected in zip(compute_logits(gpt, dropout_key=key), before, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("products", [LORA_PRODUCTS, ("qkv",), ("contract", "project")])
def test_merged_weights_are_base_and_adapter_and_say_the_same(products):
    gpt = build_small_gpt()
    base = to_checkpoint(gpt)
    adapters = adapt(gpt, products=products, moved=True)
    pairs = to_checkpoint(adapters)
    merged = {name: np.asarray(tensor) for name, tensor in merge_adapter(to_lazy(base), to_lazy(pairs), FACTOR).items()}
    assert merged.keys() == base.keys()
    changed = {name for name in base if not np.array_equal(merged[name], base[name])}
    assert changed == {name.replace("lora_down", "weight") for name in pairs if name.endswith("lora_down")}
    assert len(changed) == SIZE.layers * len(products)
    for name in changed:
        key = name.removesuffix("weight")
        exact = base[name].astype(np.float64) + FACTOR * (
            pairs[f"{key}lora_down"].astype(np.float64) @ pairs[f"{key}lora_up"].astype(np.float64)
        )
        np.testing.assert_allclose(merged[name], exact, atol=1e-6, rtol=0)
    whole = build_small_gpt()
    load_checkpoint_arrays(whole, merged).require_complete()
    for ours, expected in zip(compute_logits(gpt), compute_logits(whole), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-5)
    assert np.abs(compute_logits(whole)[1] - compute_logits(build_small_gpt())[1]).max() > 0.01


@pytest.mark.parametrize("spoil", ["base", "up", "down"])
def test_pairs_that_do_not_fit_are_refused(spoil):
    gpt = build_small_gpt()
    base = to_checkpoint(gpt)
    pairs = to_checkpoint(adapt(gpt))
    key = "gpt.h.1.mlp.c_fc"
    if spoil == "base":
        del base[f"{key}.weight"]
    elif spoil == "up":
        del pairs[f"{key}.lora_up"]
    else:
        pairs[f"{key}.lora_down"] = pairs[f"{key}.lora_down"][:, :2]
    with pytest.raises(CheckpointMismatchError, match=rf"{key} does not fit its base"):
        merge_adapter(to_lazy(base), to_lazy(pairs), FACTOR)


@pytest.mark.parametrize(("dtype", "checkpointing"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_only_adapters_are_trained_and_the_base_takes_the_room_of_its_precision(dtype, checkpointing):
    gpt = build_small_gpt(dropout=0.1, dtype=dtype, checkpointing=checkpointing)
    adapters = adapt(gpt)
    before, pairs = to_checkpoint(gpt), to_checkpoint(adapters)
    assert gpt.blocks[0].qkv.kernel.dtype == dtype
    step = TrainStep(GPTObjective(gpt, adapters=adapters), StepSettings(seed=0))
    batch = make_batch()
    tensors = {
        "mel_BFM": batch.mel_BFM, "text_BT": batch.text_BT, "text_lengths_B": batch.text_lengths_B, "codes_BM": batch.codes_BM,
        "code_lengths_B": batch.code_lengths_B, "spans_B2": tf.zeros([3, 2], tf.int32), "weights_B": tf.ones([3]),
        "totals_2": tf.constant([20.0, 38.0]),
    }  # fmt: skip
    for number in range(2):
        step.apply(step.compute(tensors, MicroStep(number, 0, 1)), 0.01)
    for name, array in to_checkpoint(gpt).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    for name, array in to_checkpoint(adapters).items():
        assert array.dtype == np.float32, name
        assert not np.array_equal(array, pairs[name]), name
    state = dict(step.list_state())
    assert len(state) == 1 + 2 * len(pairs), "updates, and two averages for each matrix of a pair"
    assert sum(np.prod(variable.shape) for variable in state.values()) == 1 + 2 * sum(map(np.size, pairs.values()))

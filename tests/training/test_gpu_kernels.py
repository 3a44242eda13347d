"""On a GPU every operation of a hot function would find its kernel, and hardly anything would travel between host and device.

Told without a GPU: TensorFlow's wheel holds the kernels, and says of each which of its inputs and results live in host memory.
"""

from collections import Counter
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_def_registry

from myxtts.config import XTTSConfig
from myxtts.models.attention import CACHED_SCORES
from myxtts.models.decoding import Sampling, continue_decoding, specify_decoding, start_decoding
from myxtts.models.layers import normalise, normalise_at_once
from myxtts.models.sizes import SEGMENT_FRAMES, SEGMENT_SAMPLES
from myxtts.models.xtts import build_decoder, build_dvae, build_gpt, build_rivals
from myxtts.pipeline import codes
from myxtts.pipeline import prepare as preparing
from myxtts.pipeline.prepare import Preparer
from myxtts.pipeline.recipe import Target, choose_preparation
from myxtts.training import model
from myxtts.training.model import build_adapters, build_step
from myxtts.training.objectives import CodecObjective, DecoderObjective, GPTObjective
from myxtts.training.optimizer import PACKED_ELEMENTS
from myxtts.training.step import MicroStep

ROWS, TEXT, CODES, FRAMES, SAMPLES = 2, 6, 24, 40, 24 * 1024
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While", "StatelessWhile"}
SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
HANDLES = {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}


def make_config(precision="mixed_float16", **data):
    model = {"gpt_layers": 1, "gpt_width": 64, "gpt_heads": 2, "dvae_width": 16, "decoder_width": 16}
    return XTTSConfig(model=model, data={"mixed_precision": precision, "prompt_seconds": 0.5} | data)


def make_batch(**more):
    """What all steps read, and more."""
    lengths = {"text_lengths_B": TEXT, "code_lengths_B": CODES, "frame_lengths_B": FRAMES}
    arrays = {name: np.full(ROWS, length, np.int32) for name, length in lengths.items()}
    arrays |= {"text_BT": np.ones((ROWS, TEXT), np.int32), "codes_BM": np.ones((ROWS, CODES), np.int32)}
    arrays |= {"mel_BFM": np.ones((ROWS, FRAMES, 80), np.float32), "spans_B2": np.zeros((ROWS, 2), np.int32)}
    arrays |= {"weights_B": np.ones(ROWS, np.float32), "totals_2": np.ones(2, np.float32)}
    return {name: tf.constant(array) for name, array in (arrays | more).items()}


def update(objective, config, dropout, batch):
    step = build_step(objective, config, dropout=dropout, packed_elements=PACKED_ELEMENTS)

    def trace():
        step.apply(step.compute(batch, MicroStep(0, 1, 2), step.make_zero_gradients(0)), 1e-3)
        step.evaluate(batch, objective.choose_phase(0))

    # Traced within another function, nothing is computed.
    return tf.function(trace, autograph=False).get_concrete_function()


def train_gpt():
    config = make_config()
    gpt = build_gpt(config.model, seed=1, dtype=config.data.mixed_precision, fused_norms=True)
    # Rows share prompts, as from nothing.
    batch = make_batch(voices_B=np.zeros(ROWS, np.int32), mel_BFM=np.ones((1, FRAMES, 80), np.float32))
    return update(GPTObjective(gpt, blank_prompt=True), config.replace(training={"ema_decay": 0.9}), 0.1, batch)


def train_adapters():
    tuned = {"lora_rank": 2, "init_from": "its base"}
    config = make_config().replace(model={"enable_gradient_checkpointing": True}, training=tuned)
    gpt = build_gpt(config.model, seed=1, dtype="float16", fused_norms=True)
    return update(GPTObjective(gpt, adapters=build_adapters(gpt, config.training)), config, 0.1, make_batch())


def train_codec():
    config = make_config()
    dvae = build_dvae(config.model, seed=1, dtype=config.data.mixed_precision)
    return update(CodecObjective(dvae, seed=1, free_steps=0, total_steps=9), config, 0.0, make_batch())


def train_decoder():
    config = make_config()
    gpt, decoder, rivals = (
        build(config.model, seed=1, dtype=config.data.mixed_precision)
        for build in (build_gpt, build_decoder, build_rivals)
    )
    decoder.forget_speakers()
    frames = np.full(ROWS, SEGMENT_FRAMES, np.int32)
    segments = {"segment_starts_B": np.zeros(ROWS, np.int32), "segment_frames_B": frames}
    segments["speech_BS"] = np.zeros((ROWS, SEGMENT_SAMPLES), np.float32)
    return update(DecoderObjective(decoder, rivals, gpt), config, 0.0, make_batch(**segments))


def prepare():
    config = make_config(augment_gain_db=3.0, augment_speed=0.1, augment_noise_db=-30.0, augment_frame_masks=1)
    preparers = []
    for target in Target:
        dvae = None if target is Target.CODEC else build_dvae(config.model, seed=1)
        preparers.append(Preparer(choose_preparation(config, target, [1.0] * 80), seed=1, dvae=dvae))
        preparers[-1].warm_up([(ROWS, SAMPLES)], [CODES])
    return preparers


def decode():
    gpt = build_gpt(make_config().model, seed=1, fused_norms=True)
    rule = Sampling(*(tf.TensorSpec((), each.dtype) for each in map(tf.constant, Sampling())))
    whole = (tf.TensorSpec(shape, tf.int32) for shape in ((1, TEXT), (1,), (1, 2)))

    def start(prompt, text, lengths, seeds, rule):
        return start_decoding(gpt, prompt, text, rule=rule, max_codes=CODES, text_lengths_B=lengths, seeds_B2=seeds)

    def say_next(decoding, rule):
        return continue_decoding(gpt, decoding, rule=rule, codes=1)

    begin = [tf.TensorSpec((1, 32, 64)), *whole, rule]
    started = tf.function(start, input_signature=begin, autograph=False).get_concrete_function()
    signature = [specify_decoding(started.structured_outputs), rule]
    return started, tf.function(say_next, input_signature=signature, autograph=False).get_concrete_function()


def collect_functions(work):
    """All functions that TensorFlow traces while something works, by name."""
    known = set(context.context().list_function_names())
    kept = work()
    assert kept, "functions live as long as what was made of them"
    # Without what TensorFlow wraps around single operations that are not part of a function.
    names = [name for name in context.context().list_function_names() if not name.startswith("__wrapped__")]
    return {name: context.context().get_function_def(name) for name in set(names) - known}


def find_kernel(node):
    """The node's kernel for GPUs, or None."""
    return next((each for each in list_kernels(node.op) if all(fits(node, rule) for rule in each.constraint)), None)


@cache
def list_kernels(op):
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return [kernel for kernel in registered if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label]


def fits(node, constraint):
    value = node.attr[constraint.name]
    kinds = list(value.list.type) or [value.type]
    return all(kind in constraint.allowed_values.list.type for kind in kinds)


def list_places(node, arguments):
    """The name and the type of each input, or result, of a node, and whether it lives in host memory."""
    kernel, places = find_kernel(node), []
    for argument in arguments:
        kinds = node.attr[argument.type_list_attr].list.type if argument.type_list_attr else None
        if kinds is None:
            count = node.attr[argument.number_attr].i if argument.number_attr else 1
            kinds = [node.attr[argument.type_attr].type if argument.type_attr else argument.type] * count
        for kind in kinds:
            # Calls hand on what they are given where it is: whole numbers of 32 bits, and what decides, on the host.
            is_plain = kernel is None or node.op in CALLS
            on_host = (
                kind == tf.int32 or argument.name == "cond" if is_plain else argument.name in kernel.host_memory_arg
            )
            places.append((argument.name, kind, on_host))
    return places


def audit(function):
    """What has no kernel, and what crosses: up to the device, or down to the host, which then waits for it."""
    missing, crossing, constant = Counter(), Counter(), set()
    places = {arg.name: ("argument", arg.type, arg.type == tf.int32) for arg in function.signature.input_arg}
    for node in function.node_def:
        definition = op_def_registry.get(node.op)
        sources = [source for source in node.input if not source.startswith("^")]
        owners = {source.partition(":")[0] for source in sources}
        # TensorFlow computes once, beforehand, what depends on nothing or on shapes alone.
        if node.op in SHAPES or (owners <= constant and not definition.is_stateful):
            constant.add(node.name)
        if node.op == "Cast" and node.attr["SrcT"].type == node.attr["DstT"].type:
            # TensorFlow leaves it out.
            places[f"{node.name}:y:0"] = places[sources[0]]
            continue
        if find_kernel(node) is None and node.op not in CALLS:
            missing[node.op] += 1
        for (_, kind, on_host), source in zip(list_places(node, definition.input_arg), sources, strict=True):
            origin, _, from_host = places[source]
            if on_host != from_host and kind not in HANDLES and source.partition(":")[0] not in constant:
                crossing[f"{origin} {'down' if on_host else 'up'} to {node.op}"] += 1
        numbers = Counter()
        for name, kind, on_host in list_places(node, definition.output_arg):
            places[f"{node.name}:{name}:{numbers[name]}"] = (node.op, kind, on_host)
            numbers[name] += 1
    return missing, crossing


def list_unordered_sums(function):
    """Sums of three or more of which others read a part: TensorFlow begins with a part that nobody reads any more, so that what comes out
    depends on who was faster. Those that only have to be finite do not matter."""
    readers = Counter(source for node in function.node_def for source in node.input)
    finite = {source for node in function.node_def if node.op == "IsFinite" for source in node.input}
    sums = [node for node in function.node_def if node.op == "AddN" and len(node.input) > 2]
    return [
        node.name
        for node in sums
        if max(readers[part] for part in node.input) > 1 and f"{node.name}:sum:0" not in finite
    ]


BATCH = "numbers that came with the batch; nothing waits for them"
MASKS = "masks of the batch's lengths, which the host has: made there and sent up; nothing waits for them"
PLACES = "where in a clip to read, from what was drawn on the host; nothing waits for them"
DECIDES = "what is done next is decided on the host"
LENGTHS = "lengths at another speed or rate need 64 bits, which are computed on the device"
KEPT = "codes are kept on the host"
LISTED = {
    train_gpt: {"argument up to Cast": (14, BATCH)},
    train_adapters: {"argument up to Cast": (12, BATCH)},
    train_codec: {"argument up to Cast": (12, BATCH), "IsFinite down to If": (1, DECIDES)},
    train_decoder: {"argument up to Cast": (16, BATCH)},
    prepare: {
        "argument up to Cast": (7, BATCH),
        "AddV2 up to Cast": (1, BATCH),
        "GreaterEqual up to LogicalAnd": (1, MASKS),
        "Less up to SelectV2": (17, MASKS),
        "Less up to LogicalAnd": (1, MASKS),
        "Less up to StridedSlice": (1, MASKS),
        "FloorDiv up to GatherV2": (32, PLACES),
        "AddV2 up to GatherV2": (32, PLACES),
        "Minimum up to GatherV2": (4, PLACES),
        "Cast down to StridedSlice": (4, LENGTHS),
        "Cast down to FloorDiv": (2, LENGTHS),
        "Cast down to Minimum": (2, LENGTHS),
        "Cast down to Identity": (2, KEPT),
    },
    # Of the beginning and of what goes on.
    decode: {
        "argument up to Cast": (2, BATCH),
        "StridedSlice up to Cast": (1, BATCH),
        "Cast down to Min": (2, DECIDES),
        "Greater up to Identity": (2, DECIDES),
    },
}
"""What crosses, how often it stands in the functions, and why. A list to make shorter."""


@pytest.mark.parametrize("work", LISTED, ids=lambda work: work.__name__)
def test_every_operation_has_a_kernel_and_nothing_crosses_but_what_is_listed(work):
    missing, crossing = Counter(), Counter()
    functions = collect_functions(work).values()
    for found in map(audit, functions):
        missing, crossing = missing + found[0], crossing + found[1]
    assert sum(len(function.node_def) for function in functions) > 100
    assert not missing
    assert [name for function in functions for name in list_unordered_sums(function)] == []
    assert crossing == {edge: count for edge, (count, _) in LISTED[work].items()}


@pytest.mark.parametrize("is_gpu", [False, True], ids=["CPU", "GPU"])
def test_a_run_is_built_for_few_kernels_where_it_is_built_on_a_gpu(is_gpu, monkeypatch):
    for room in (model, preparing, codes):
        monkeypatch.setattr(room, "is_on_cpu", lambda: not is_gpu)
    config = make_config("float32", enable_xla=True)
    gpt = model._build_gpt(config, SimpleNamespace(start_text_token=261, stop_text_token=0), seed=None)
    assert (gpt.scores, gpt.joins, gpt.shares_prompts) == ((0, True, False) if is_gpu else (CACHED_SCORES, False, True))
    norms = [gpt.last_norm, gpt.blocks[0].forward_norm, gpt.conditioning_encoder.blocks[0].norm]
    assert {norm.normalise for norm in norms} == {normalise_at_once if is_gpu else normalise}
    step = build_step(GPTObjective(gpt), config, dropout=0.1)
    assert len(step.optimizer.packs) == (1 if is_gpu else len(step.optimizer.variables))
    preparer = Preparer(
        choose_preparation(config, Target.GPT, [1.0] * 80), seed=1, dvae=build_dvae(config.model, seed=1)
    )
    assert preparer._at_once == preparer._codes._at_once == is_gpu

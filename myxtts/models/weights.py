"""Every weight of every part: its name and shape in Coqui's checkpoints, its variable here, how a fresh one starts.

One table serves loading, exporting, counting, weight decay and initialisation. No TensorFlow: a table for the
published size costs nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import ml_dtypes
import numpy as np

from myxtts.audio.filterbanks import PREEMPHASIS, SPEAKER_MEL, make_filterbank, make_window
from myxtts.config import ModelConfig
from myxtts.errors import UserError
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, DecoderSize, DVAESize, GPTSize, SpeakerSize, read_sizes

GPT_PREFIX = "gpt."
DECODER_PREFIX = "hifigan_decoder.waveform_decoder."
SPEAKER_PREFIX = "hifigan_decoder.speaker_encoder."
DVAE_PREFIX = "dvae."
"""Where a trainer's checkpoint keeps the DVAE; `dvae.pth` itself has no prefix."""

MATRIX = (1, 0)
CONV1D = (2, 1, 0)
CONV2D = (2, 3, 1, 0)


class FreshWeight(NamedTuple):
    """How a fresh weight starts: `normal` by deviation, `uniform` by bound, `constant` by value; `norm` and `copy`
    follow another variable (the length of its vectors, its value); `front_end` is a constant of the speaker mel."""

    kind: Literal["normal", "uniform", "constant", "norm", "copy", "front_end"]
    value: float = 0.0
    source: str = ""


ZERO = FreshWeight("constant", 0.0)
ONE = FreshWeight("constant", 1.0)


@dataclass(frozen=True)
class Weight:
    """One weight, on both sides."""

    key: str
    """Name in the checkpoint."""
    shape: tuple[int, ...]
    """Shape in the checkpoint."""
    variable: str
    """Where the variable is: attribute names and list positions from the part on, joined by dots."""
    start: FreshWeight
    axes: tuple[int, ...] = (0,)
    """The checkpoint's axes in the variable's order. Axes left out are trailing ones of length 1."""
    dtype: str = "float32"
    decays: bool = False
    """Whether the reference recipe applies weight decay to it."""

    @property
    def variable_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.axes) if self.shape else ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def list_gpt_weights(size: GPTSize) -> list[Weight]:
    """Weights of the GPT with its conditioning encoder and perceiver; keys as under `gpt.` in a checkpoint."""
    width = size.width
    return [
        *_list_encoder(size),
        _table("text_embedding.weight", "text_embedding", size.text_tokens, width, 1.0),
        _table("mel_embedding.weight", "audio_embedding", size.audio_tokens, width, 1.0),
        *(weight for layer in range(size.layers) for weight in _list_block(size, layer)),
        *_norm("gpt.ln_f", "last_norm", width),
        _table("mel_pos_embedding.emb.weight", "audio_positions", size.audio_positions, width, 0.02),
        _table("text_pos_embedding.emb.weight", "text_positions", size.text_positions, width, 0.02),
        *_norm("final_norm", "final_norm", width),
        *_dense("text_head", "text_head", width, size.text_tokens),
        *_dense("mel_head", "audio_head", width, size.audio_tokens),
        *_list_perceiver(size),
    ]


PAIR_DOWN, PAIR_UP = ".lora_down", ".lora_up"
"""Behind the name of a product in the GPT: the two matrices of its adapter, as (in, rank) and (rank, out)."""


def list_adapter_weights(size: GPTSize, rank: int, products: Collection[str]) -> list[Weight]:
    """The pairs beside some products of every GPT block (`config.training.LORA_PRODUCTS`): at first they add nothing."""
    weights = []
    for weight in list_gpt_weights(size):
        variable = weight.variable.removesuffix(".kernel")
        if not variable.startswith("blocks.") or variable.rpartition(".")[2] not in products:
            continue
        key, (inputs, outputs) = weight.key.removesuffix(".weight"), weight.shape
        start = FreshWeight("uniform", 1 / math.sqrt(inputs))
        weights += [
            Weight(key + PAIR_DOWN, (inputs, rank), f"{variable}.down", start, (0, 1)),
            Weight(key + PAIR_UP, (rank, outputs), f"{variable}.up", ZERO, (0, 1)),
        ]
    return weights


def list_dvae_weights(size: DVAESize) -> list[Weight]:
    """Weights of the DVAE; keys as in `dvae.pth`."""
    narrow, wide = size.width, 2 * size.width
    first = 2
    return [
        *_list_dvae_buffers(size),
        *_conv("encoder.0.0", "encoder.down.0", size.mel_channels, narrow, 3),
        *_conv("encoder.1.0", "encoder.down.1", narrow, wide, 3),
        *_list_residual("encoder", first, size),
        *_conv(f"encoder.{first + size.blocks}", "encoder.project", wide, narrow, 1),
        *_conv("decoder.0", "decoder.expand", narrow, wide, 1),
        *_list_residual("decoder", 1, size),
        *_conv(f"decoder.{1 + size.blocks}.0.conv", "decoder.up.0", wide, wide, 3),
        *_conv(f"decoder.{2 + size.blocks}.0.conv", "decoder.up.1", wide, narrow, 3),
        *_conv(f"decoder.{3 + size.blocks}", "decoder.project", narrow, size.mel_channels, 1),
        Weight("codebook.embed", (narrow, size.codes), "codebook.vectors", FreshWeight("normal", 1.0), MATRIX),
        Weight("codebook.cluster_size", (size.codes,), "codebook.cluster_size", ZERO),
        Weight(
            "codebook.embed_avg",
            (narrow, size.codes),
            "codebook.vector_sums",
            FreshWeight("copy", source="codebook.vectors"),
            MATRIX,
        ),
    ]


def list_decoder_weights(size: DecoderSize) -> list[Weight]:
    """Weights of the HiFi-GAN decoder; keys as under `hifigan_decoder.waveform_decoder.`."""
    weights = [
        *_conv("conv_pre", "conv_pre", size.latent_width, size.width, 7),
        *_conv("cond_layer", "speaker_in", size.speaker_width, size.width, 1),
    ]
    for stage, kernel in enumerate(size.kernels):
        channels = size.channels(stage)
        weights += _weight_norm(
            f"ups.{stage}", f"ups.{stage}", size.channels(stage - 1), channels, kernel, transposed=True
        )
        weights += _conv(f"conds.{stage}", f"speaker_at.{stage}", size.speaker_width, channels, 1)
        for branch, block_kernel in enumerate(size.block_kernels):
            key = f"resblocks.{stage * len(size.block_kernels) + branch}"
            for index in range(len(size.block_dilations)):
                for convs, ours in (("convs1", "dilated"), ("convs2", "plain")):
                    weights += _weight_norm(
                        f"{key}.{convs}.{index}", f"{key}.{ours}.{index}", channels, channels, block_kernel
                    )
    weights += _conv("conv_post", "conv_post", size.channels(len(size.rates) - 1), 1, 7, bias=False)
    return weights


def list_speaker_weights(size: SpeakerSize) -> list[Weight]:
    """Weights of the speaker encoder; keys as under `hifigan_decoder.speaker_encoder.`."""
    weights = [*_conv("conv1", "conv", 1, size.filters[0], 3, spatial=2), *_batch_norm("bn1", "norm", size.filters[0])]
    inputs = size.filters[0]
    for stage, (channels, blocks) in enumerate(zip(size.filters, size.blocks, strict=True)):
        for block in range(blocks):
            weights += _list_speaker_block(size, stage, block, inputs, channels)
            inputs = channels
    pooled = size.pooled_width
    weights += _list_front_end(size)
    weights += _conv("attention.0", "attention_in", pooled, size.attention_width, 1)
    weights += _batch_norm("attention.2", "attention_norm", size.attention_width)
    weights += _conv("attention.3", "attention_out", size.attention_width, pooled, 1)
    weights += _dense("fc", "project", 2 * pooled, size.width)
    return weights


def list_xtts_weights(
    gpt: GPTSize, decoder: DecoderSize | None = None, speaker: SpeakerSize | None = None
) -> list[Weight]:
    """Weights of `model.pth`, or of those parts of it that are given. The DVAE has a file of its own."""
    weights = [
        Weight("mel_stats", (MEL_CHANNELS,), "mel_norms", ONE),
        *_under(GPT_PREFIX, "gpt.", list_gpt_weights(gpt)),
    ]
    if decoder is not None:
        weights += _under(DECODER_PREFIX, "decoder.", list_decoder_weights(decoder))
    if speaker is not None:
        weights += _under(SPEAKER_PREFIX, "speaker_encoder.", list_speaker_weights(speaker))
    return weights


def _under(key: str, variable: str, weights: list[Weight]) -> Iterator[Weight]:
    for weight in weights:
        start = weight.start._replace(source=variable + weight.start.source) if weight.start.source else weight.start
        yield replace(weight, key=key + weight.key, variable=variable + weight.variable, start=start)


def _list_encoder(size: GPTSize) -> Iterator[Weight]:
    key, ours = "conditioning_encoder", "conditioning_encoder"
    yield from _conv(f"{key}.init", f"{ours}.project", MEL_CHANNELS, size.width, 1)
    for block in range(size.encoder_blocks):
        yield from _norm(f"{key}.attn.{block}.norm", f"{ours}.blocks.{block}.norm", size.width)
        yield from _conv(f"{key}.attn.{block}.qkv", f"{ours}.blocks.{block}.qkv", size.width, 3 * size.width, 1)
        yield from _conv(
            f"{key}.attn.{block}.proj_out", f"{ours}.blocks.{block}.project", size.width, size.width, 1, start=ZERO
        )


def _list_perceiver(size: GPTSize) -> Iterator[Weight]:
    key, ours, width, inner = "conditioning_perceiver", "perceiver", size.width, size.perceiver_inner_width
    hidden = size.perceiver_hidden_width
    latents = FreshWeight("normal", 0.02)
    yield Weight(f"{key}.latents", (PROMPT_LATENTS, width), f"{ours}.latents", latents, (0, 1), decays=True)
    for layer in range(size.perceiver_layers):
        attention, forward = f"{key}.layers.{layer}.0", f"{key}.layers.{layer}.1"
        yield from _dense(f"{attention}.to_q", f"{ours}.layers.{layer}.query", width, inner, bias=False)
        yield from _dense(f"{attention}.to_kv", f"{ours}.layers.{layer}.key_value", width, 2 * inner, bias=False)
        yield from _dense(f"{attention}.to_out", f"{ours}.layers.{layer}.project", inner, width, bias=False)
        yield from _dense(f"{forward}.0", f"{ours}.layers.{layer}.expand", width, 2 * hidden)
        yield from _dense(f"{forward}.2", f"{ours}.layers.{layer}.contract", hidden, width)
    yield Weight(f"{key}.norm.gamma", (width,), f"{ours}.norm.gamma", ONE, decays=True)


def _list_block(size: GPTSize, layer: int) -> Iterator[Weight]:
    key, ours, width = f"gpt.h.{layer}", f"blocks.{layer}", size.width
    residual = 0.02 / math.sqrt(2 * size.layers)
    yield from _norm(f"{key}.ln_1", f"{ours}.attention_norm", width)
    yield from _hf_conv1d(f"{key}.attn.c_attn", f"{ours}.qkv", width, 3 * width, 0.02)
    yield from _hf_conv1d(f"{key}.attn.c_proj", f"{ours}.project", width, width, residual)
    yield from _norm(f"{key}.ln_2", f"{ours}.forward_norm", width)
    yield from _hf_conv1d(f"{key}.mlp.c_fc", f"{ours}.expand", width, 4 * width, 0.02)
    yield from _hf_conv1d(f"{key}.mlp.c_proj", f"{ours}.contract", 4 * width, width, residual)


def _list_dvae_buffers(size: DVAESize) -> Iterator[Weight]:
    yield Weight("discrete_loss.accumulator_index", (1,), "accumulator_index", ZERO, dtype="int64")
    yield Weight("discrete_loss.accumulator_filled", (1,), "accumulator_filled", ZERO, dtype="int64")
    yield Weight("discrete_loss.accumulator", (size.accumulator_rows, size.codes), "accumulator", ZERO, (0, 1))


def _list_residual(half: str, first: int, size: DVAESize) -> Iterator[Weight]:
    wide = 2 * size.width
    for block in range(size.blocks):
        for position, (index, kernel) in enumerate(((0, 3), (2, 3), (4, 1))):
            key = f"{half}.{first + block}.net.{index}"
            yield from _conv(key, f"{half}.blocks.{block}.convs.{position}", wide, wide, kernel)


def _list_speaker_block(size: SpeakerSize, stage: int, block: int, inputs: int, channels: int) -> Iterator[Weight]:
    key, ours = f"layer{stage + 1}.{block}", f"stages.{stage}.{block}"
    yield from _conv(f"{key}.conv1", f"{ours}.conv_in", inputs, channels, 3, spatial=2, bias=False)
    yield from _batch_norm(f"{key}.bn1", f"{ours}.norm_in", channels)
    yield from _conv(f"{key}.conv2", f"{ours}.conv_out", channels, channels, 3, spatial=2, bias=False)
    yield from _batch_norm(f"{key}.bn2", f"{ours}.norm_out", channels)
    yield from _dense(f"{key}.se.fc.0", f"{ours}.squeeze", channels, channels // size.squeeze)
    yield from _dense(f"{key}.se.fc.2", f"{ours}.excite", channels // size.squeeze, channels)
    if stage > 0 and block == 0:
        yield from _conv(f"{key}.downsample.0", f"{ours}.shortcut", inputs, channels, 1, spatial=2, bias=False)
        yield from _batch_norm(f"{key}.downsample.1", f"{ours}.shortcut_norm", channels)


def _list_front_end(size: SpeakerSize) -> Iterator[Weight]:
    start = FreshWeight("front_end")
    key = "torch_spec.1"
    yield Weight("torch_spec.0.filter", (1, 1, 2), "front_end.emphasis", start, (0, 1, 2))
    yield Weight(f"{key}.spectrogram.window", (size.window_samples,), "front_end.window", start)
    yield Weight(f"{key}.mel_scale.fb", (size.fft_bins, size.mel_channels), "front_end.filterbank", start, (0, 1))


def _table(key: str, variable: str, rows: int, width: int, deviation: float) -> Weight:
    return Weight(key, (rows, width), variable, FreshWeight("normal", deviation), (0, 1))


def _norm(key: str, variable: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{key}.weight", (width,), f"{variable}.gamma", ONE)
    yield Weight(f"{key}.bias", (width,), f"{variable}.beta", ZERO)


def _batch_norm(key: str, variable: str, width: int) -> Iterator[Weight]:
    yield from _norm(key, variable, width)
    yield Weight(f"{key}.running_mean", (width,), f"{variable}.mean", ZERO)
    yield Weight(f"{key}.running_var", (width,), f"{variable}.variance", ONE)
    yield Weight(f"{key}.num_batches_tracked", (), f"{variable}.batches", ZERO, (), dtype="int64")


def _dense(key: str, variable: str, inputs: int, outputs: int, *, bias: bool = True) -> Iterator[Weight]:
    start = FreshWeight("uniform", 1 / math.sqrt(inputs))
    yield Weight(f"{key}.weight", (outputs, inputs), f"{variable}.kernel", start, MATRIX, decays=True)
    if bias:
        yield Weight(f"{key}.bias", (outputs,), f"{variable}.bias", start)


def _hf_conv1d(key: str, variable: str, inputs: int, outputs: int, deviation: float) -> Iterator[Weight]:
    # Stored (in, out), unlike every other matrix of the checkpoint. Some are square: a wrong transpose is silent.
    yield Weight(
        f"{key}.weight", (inputs, outputs), f"{variable}.kernel", FreshWeight("normal", deviation), (0, 1), decays=True
    )
    yield Weight(f"{key}.bias", (outputs,), f"{variable}.bias", ZERO)


def _conv(
    key: str,
    variable: str,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    spatial: int = 1,
    bias: bool = True,
    start: FreshWeight | None = None,
) -> Iterator[Weight]:
    start = start or FreshWeight("uniform", 1 / math.sqrt(inputs * kernel**spatial))
    # A convolution over single frames is a matrix here.
    axes = CONV2D if spatial == 2 else MATRIX if kernel == 1 else CONV1D
    shape = (outputs, inputs, *(kernel,) * spatial)
    yield Weight(f"{key}.weight", shape, f"{variable}.kernel", start, axes, decays=True)
    if bias:
        yield Weight(f"{key}.bias", (outputs,), f"{variable}.bias", start)


def _weight_norm(
    key: str, variable: str, inputs: int, outputs: int, kernel: int, *, transposed: bool = False
) -> Iterator[Weight]:
    # Torch takes the fan-in of a transposed convolution from its output channels, and norms it over its inputs.
    normed, summed = (inputs, outputs) if transposed else (outputs, inputs)
    start = FreshWeight("uniform", 1 / math.sqrt(summed * kernel))
    yield Weight(
        f"{key}.parametrizations.weight.original0",
        (normed, 1, 1),
        f"{variable}.lengths",
        FreshWeight("norm", source=f"{variable}.directions"),
        decays=True,
    )
    yield Weight(
        f"{key}.parametrizations.weight.original1",
        (normed, summed, kernel),
        f"{variable}.directions",
        start,
        CONV1D,
        decays=True,
    )
    yield Weight(f"{key}.bias", (outputs,), f"{variable}.bias", start)


OPTIONAL = re.compile(r"(\.num_batches_tracked|(^|\.)torch_spec\.[^ ]+|(^|\.)discrete_loss\.[^ ]+)$")
"""Buffers a file may lack: they take no part in any computation."""

FLOAT_DTYPES = frozenset(map(np.dtype, (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)))
LARGEST_WEIGHT = 1e9
"""Far beyond what training leaves anywhere: a network with a larger number in it computes nothing but infinities."""
_CHUNK_ELEMENTS = 1 << 16
"""Looked at together: what the processor's cache holds, so that a weight is fetched from memory once."""


class Named(Protocol):
    """A built part that can list its weights."""

    def list_weights(self) -> list[Weight]: ...


class CheckpointMismatchError(UserError):
    """The weights in a checkpoint are not those of the model."""


@dataclass(frozen=True)
class LoadReport:
    """What does not fit of arrays that were compared, or loaded. Everything else was loaded."""

    missing: list[str] = field(default_factory=list)
    """Keys the model has and the arrays lack; their variables kept their values."""
    unexpected: list[str] = field(default_factory=list)
    """Keys of the arrays the model does not know."""
    mis_shaped: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """(key, shape the model needs, shape found); their variables kept their values."""
    unusable: list[str] = field(default_factory=list)
    """Sentences on arrays whose type or values no weight has; their variables kept their values."""

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mis_shaped or self.unusable)

    def require_complete(self, source: str = "The checkpoint") -> None:
        """Raises `CheckpointMismatchError`, with the first few differences, unless everything fitted.

        Args:
            source: what was loaded, to begin a sentence with.
        """
        if self.is_complete:
            return
        if self.unusable:
            raise CheckpointMismatchError(
                f"{source} is damaged, or its training failed: {shorten(self.unusable)}. Give another checkpoint."
            )
        raise CheckpointMismatchError(
            f"{source} must hold the weights of this model, but does not: {self.describe()}. "
            "Give the model the checkpoint's own sizes (vocabulary, layers, widths), or another checkpoint."
        )

    def describe(self) -> str:
        """The first few differences, and how many more there are."""
        lines = [f"{key} must have shape {need}, but has {found}" for key, need, found in self.mis_shaped]
        lines += [f"{key} is missing" for key in self.missing] + [f"{key} is unknown" for key in self.unexpected]
        return shorten(lines)


def shorten(lines: list[str], shown: int = 5) -> str:
    """The first few of several findings, and how many more there are."""
    return "; ".join(f"{line:.200}" for line in lines[:shown]) + (
        f"; and {len(lines) - shown} more" if len(lines) > shown else ""
    )


def compare_arrays(weights: Iterable[Weight], arrays: Mapping[str, Any], *, prefix: str = "") -> LoadReport:
    """What does not fit between the weights of a part and arrays, by names, shapes and types; no value is read.

    For files whose configuration may be wrong: a network is built only for weights that are there. Arguments as for
    `load_checkpoint_arrays`.
    """
    report = LoadReport()
    known = set()
    for weight in weights:
        key = prefix + weight.key
        known.add(key)
        if key not in arrays:
            if not OPTIONAL.search(key):
                report.missing.append(key)
            continue
        array = arrays[key]
        if tuple(array.shape) != weight.shape:
            report.mis_shaped.append((key, weight.shape, tuple(array.shape)))
        elif weight.dtype == "float32" and array.dtype not in FLOAT_DTYPES:
            report.unusable.append(f"{key} must be floating-point numbers, but is {array.dtype}")
    report.unexpected.extend(key for key in arrays if key.startswith(prefix) and key not in known)
    return report


def find_value_problem(array: np.ndarray) -> str | None:
    """What an array holds that no weight is, such as "holds nan"; None where all is well."""
    if array.dtype not in FLOAT_DTYPES:
        return None
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        chunk = flat[start : start + _CHUNK_ELEMENTS]
        # NumPy has no fast way through numbers of two bytes.
        largest = np.abs(chunk.astype(np.float32) if chunk.itemsize < 4 else chunk).max()
        if not largest <= LARGEST_WEIGHT:
            return f"holds {largest:g}, which no weight is"
    return None


def load_checkpoint_arrays(model: Named, arrays: Mapping[str, Any], *, prefix: str = "") -> LoadReport:
    """Loads arrays by their checkpoint names and tells what did not fit.

    Args:
        arrays: checkpoint name -> array, or what has a shape and a dtype and becomes one by `np.asarray`. Each is read once, one
            at a time, and all its values are looked at.
        prefix: load the keys under this prefix only, such as `GPT_PREFIX` to take the GPT out of `model.pth`.
    """
    weights = model.list_weights()
    report = compare_arrays(weights, arrays, prefix=prefix)
    if report.unusable:
        return report
    refused = {key for key, _, _ in report.mis_shaped}
    for weight in weights:
        key = prefix + weight.key
        if key not in arrays or key in refused:
            continue
        array = np.asarray(arrays[key])
        problem = find_value_problem(array)
        if problem is not None:
            report.unusable.append(f"{key} {problem}")
            continue
        find_variable(model, weight.variable).assign(to_variable_layout(weight, array))
    return report


def to_checkpoint(model: Named, *, prefix: str = "") -> dict[str, np.ndarray]:
    """All weights of a built part under their checkpoint names, as copies."""
    return {
        prefix + weight.key: to_checkpoint_layout(weight, find_variable(model, weight.variable).numpy())
        for weight in model.list_weights()
    }


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Elements of each part's weights and buffers, without building anything."""
    sizes = read_sizes(config)
    tables = {
        "gpt": list_gpt_weights(sizes.gpt),
        "dvae": list_dvae_weights(sizes.dvae),
        "decoder": list_decoder_weights(sizes.decoder),
        "speaker_encoder": list_speaker_weights(sizes.speaker),
    }
    return {part: sum(weight.elements for weight in weights) for part, weights in tables.items()}


def to_variable_layout(weight: Weight, array: np.ndarray) -> np.ndarray:
    """A checkpoint's array as its variable stores it."""
    kept = weight.shape[: len(weight.axes)]
    return np.array(array.reshape(kept).transpose(weight.axes), order="C")


def to_checkpoint_layout(weight: Weight, array: np.ndarray) -> np.ndarray:
    """A variable's array as the checkpoint stores it."""
    return np.array(array.transpose(np.argsort(weight.axes)).reshape(weight.shape), order="C")


def find_variable(model: Named, path: str) -> Any:
    """The variable at a path of attribute names and list positions, such as `blocks.0.qkv.kernel`."""
    found: Any = model
    for step in path.split("."):
        found = found[int(step)] if step.isdecimal() else getattr(found, step)
    return found


def make_front_end_constant(weight: Weight) -> np.ndarray:
    """A buffer of the reference's speaker mel, which our networks do not read and an exported file must have."""
    constants = {
        "emphasis": np.array([-PREEMPHASIS, 1.0], np.float32),
        "window": make_window(SPEAKER_MEL),
        "filterbank": make_filterbank(SPEAKER_MEL),
    }
    return constants[weight.variable.rpartition(".")[2]].astype(np.float32).reshape(weight.shape)


EMBEDDING, HEAD, HEAD_BIAS = "text_embedding.weight", "text_head.weight", "text_head.bias"


class VocabularyShrinkError(UserError):
    """A vocabulary is smaller than the one it should extend."""


def grow_text_vocabulary(
    arrays: Mapping[str, np.ndarray], tokens: int, *, seed: int, prefix: str = ""
) -> dict[str, np.ndarray]:
    """Checkpoint arrays with text embedding and text head for `tokens` tokens; everything else as it was.

    Old rows stay. New ones are drawn as in the reference, from N(0, 1), with a bias of 0; and, also as in the
    reference, the last new row repeats the last old one.

    Args:
        seed: of the new rows.
        prefix: what stands before `text_embedding` in the names.
    """
    old = len(arrays[prefix + EMBEDDING])
    if tokens < old:
        raise VocabularyShrinkError(
            f"A vocabulary can only grow: the new one must have at least {old} tokens, but has {tokens}. "
            "Give the vocabulary file that extends the checkpoint's own."
        )
    if tokens == old:
        return dict(arrays)
    generator = np.random.default_rng(seed)
    grown = dict(arrays)
    for name in (EMBEDDING, HEAD, HEAD_BIAS):
        table = arrays[prefix + name]
        shape = (tokens - old, *table.shape[1:])
        rows = np.zeros(shape) if name == HEAD_BIAS else generator.standard_normal(shape)
        rows[-1] = table[-1]
        grown[prefix + name] = np.concatenate([table, rows.astype(table.dtype)])
    return grown

"""XTTS: the parts of one voice, joined."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import tensorflow as tf

from myxtts.config import ModelConfig
from myxtts.models.discriminators import Rivals, choose_rival_size
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.layers import Part
from myxtts.models.sizes import MEL_CHANNELS, read_sizes
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import Named, Weight, find_variable, list_xtts_weights, make_front_end_constant


class XTTS(Part):
    """A GPT with what surrounds it. Which parts there are depends on the job: training needs the GPT, an imported
    voice adds decoder and speaker encoder, a voice trained from scratch speaks through its DVAE.

    Args:
        gpt: text and prompt -> codes and latents.
        decoder: latents -> speech.
        speaker_encoder: who speaks, for the decoder.
        dvae: mel <-> codes. Its weights are not part of `model.pth`: load and export `xtts.dvae` itself.

    Example:
        >>> xtts = XTTS(GPT(sizes.gpt), decoder=WaveformDecoder(sizes.decoder), speaker_encoder=SpeakerEncoder(sizes.speaker))
        >>> load_checkpoint_arrays(xtts, arrays).require_complete()
        >>> prompt, speaker = xtts.gpt.make_prompt(mel_1FM), xtts.speaker_encoder(speaker_mel)
        >>> said = generate(xtts.gpt, prompt, text_BT, rule=Sampling(), max_codes=400, seeds_B2=seeds)
        >>> wav = xtts.decoder(said.latents_BMC[:, : said.count], speaker)
    """

    def __init__(
        self,
        gpt: GPT,
        *,
        decoder: WaveformDecoder | None = None,
        speaker_encoder: SpeakerEncoder | None = None,
        dvae: DVAE | None = None,
    ):
        super().__init__(dtype=gpt.dtype_policy)
        self.gpt, self.decoder, self.speaker_encoder, self.dvae = gpt, decoder, speaker_encoder, dvae
        self.mel_norms = self.add_variable("mel_norms", (MEL_CHANNELS,), "ones", trainable=False)

    def list_weights(self) -> list[Weight]:
        """The weights of the parts that are there under their names in `model.pth`; the DVAE has its own file."""
        return list_xtts_weights(
            self.gpt.size,
            self.decoder.size if self.decoder else None,
            self.speaker_encoder.size if self.speaker_encoder else None,
        )


FOLLOWING = ("norm", "copy")


def initialise_weights(model: Named, seed: int) -> None:
    """Gives every weight of a built part its start: a pure function of the seed and the weight's name, whatever else
    is built before it."""
    weights = model.list_weights()
    for weight in weights:
        if weight.start.kind not in FOLLOWING:
            variable = find_variable(model, weight.variable)
            variable.assign(_draw(weight, variable, seed))
    for weight in weights:
        if weight.start.kind in FOLLOWING:
            source = find_variable(model, weight.start.source).value
            followed = _measure_lengths(source) if weight.start.kind == "norm" else source
            find_variable(model, weight.variable).assign(followed)


def _draw(weight: Weight, variable: Any, seed: int) -> tf.Tensor:
    kind, value = weight.start.kind, weight.start.value
    key = tf.constant([seed, zlib.crc32(weight.key.encode())], tf.int64)
    shape = weight.variable_shape
    if kind == "normal":
        return tf.random.stateless_normal(shape, key, stddev=value, alg="philox")
    if kind == "uniform":
        return tf.random.stateless_uniform(shape, key, -value, value, alg="philox")
    if kind == "constant":
        return tf.fill(shape, tf.cast(value, variable.dtype))
    assert kind == "front_end", f"{weight.key} starts as {kind}, which nobody knows"
    return tf.reshape(make_front_end_constant(weight), shape)


def _measure_lengths(kernel: tf.Tensor) -> tf.Tensor:
    """The lengths of a kernel's vectors, one for each place of its last axis."""
    return tf.sqrt(tf.reduce_sum(tf.square(kernel), list(range(kernel.shape.rank - 1))))


NamedPart = TypeVar("NamedPart", bound=Named)


def build_gpt(
    config: ModelConfig,
    *,
    seed: int | None,
    dtype: Any = "float32",
    scores: int = 0,
    fused_norms: bool = False,
    joins: bool = False,
    shares_prompts: bool = True,
    start_text_token: int = 261,
    stop_text_token: int = 0,
) -> GPT:
    """The GPT of a configuration.

    Args:
        seed: of its fresh weights; None leaves them zero, for a checkpoint to fill.
        dtype: dtype or policy to compute in, such as `mixed_float16`.
        scores: of an attention, to compute at a time: `CACHED_SCORES` for a CPU.
        fused_norms: for a GPU that is trained on, see `LayerNorm`.
        joins: for a compiler, see `joining_sums`.
        shares_prompts: for a CPU, see `GPT`.
        start_text_token, stop_text_token: ids of `[START]` and `[STOP]` in the vocabulary.
    """
    sizes = read_sizes(config, start_text_token=start_text_token, stop_text_token=stop_text_token)
    options: dict[str, Any] = {"scores": scores, "fused_norms": fused_norms, "joins": joins, "dtype": dtype}
    options["shares_prompts"] = shares_prompts
    gpt = GPT(sizes.gpt, dropout=config.dropout, checkpointing=config.enable_gradient_checkpointing, **options)
    return _initialise(gpt, seed)


def build_dvae(config: ModelConfig, *, seed: int | None, dtype: Any = "float32") -> DVAE:
    """The DVAE of a configuration; arguments as for `build_gpt`."""
    return _initialise(DVAE(read_sizes(config).dvae, dtype=dtype), seed)


def build_decoder(config: ModelConfig, *, seed: int | None, dtype: Any = "float32") -> WaveformDecoder:
    """The waveform decoder of a configuration; arguments as for `build_gpt`."""
    return _initialise(WaveformDecoder(read_sizes(config).decoder, dtype=dtype), seed)


def build_rivals(config: ModelConfig, *, seed: int | None, dtype: Any = "float32") -> Rivals:
    """The discriminators that train the waveform decoder of a configuration; arguments as for `build_gpt`."""
    return _initialise(Rivals(choose_rival_size(read_sizes(config).decoder), dtype=dtype), seed)


def _initialise(part: NamedPart, seed: int | None) -> NamedPart:
    if seed is not None:
        initialise_weights(part, seed)
    return part

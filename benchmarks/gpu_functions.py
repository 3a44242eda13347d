"""What a GPU would have to do again and again: the hot functions of a run, for any size, traced without data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.mels import compute_dvae_mel, compute_slice_mel
from myxtts.audio.on_device import cut_slices, resample_batch
from myxtts.config import XTTSConfig
from myxtts.models.decoding import ROOM, Decoding, Sampling, continue_decoding, say_next, start_decoding
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, SEGMENT_SAMPLES, SPEECH_RATE_HZ
from myxtts.models.xtts import build_decoder, build_dvae, build_gpt, build_rivals
from myxtts.training.model import build_adapters, build_step
from myxtts.training.objectives import DECODER_BETAS, QUANTISED, CodecObjective, DecoderObjective, GPTObjective
from myxtts.training.optimizer import PACKED_ELEMENTS
from myxtts.training.step import Gradients, TrainStep
from myxtts.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLE_RATE_HZ, SAMPLES_PER_CODE

SHAPES = {"tiny": (4, 100, 200), "small": (4, 100, 200), "base": (4, 100, 200), "big": (3, 100, 250)}
"""Rows, text tokens and codes: about 10 s of speech; of the published size, its recipe's."""
LORA_RANK, LORA_SHAPE = 16, (2, 150, 215)
"""Two clips of 10 s."""
PROMPT_SECONDS = 6.0
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
MEL_NORMS = np.ones(MEL_CHANNELS, np.float32)


@dataclass(frozen=True)
class Case:
    """A model and what it trains on."""

    size: str
    precision: str = "float32"
    checkpointing: bool = False
    shape: tuple[int, int, int] | None = None
    """Rows, text tokens and codes; None for those of the size."""
    rank: int = 0
    """Of adapters (LoRA); 0 is none."""
    accumulates: bool = False
    """Whether gradients are added to those of another batch, as in fine-tuning."""

    def __str__(self) -> str:
        rows, tokens, codes = self.sizes
        ways = (", checkpointing" if self.checkpointing else "") + (f", rank {self.rank}" if self.rank else "")
        ways += ", accumulated" if self.accumulates else ""
        return f"{self.size}, {self.precision.removeprefix('mixed_')}, {rows} x ({tokens} + {codes}){ways}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.shape or (LORA_SHAPE if self.rank else SHAPES[self.size])

    @property
    def config(self) -> XTTSConfig:
        model = {"size": self.size, "enable_gradient_checkpointing": self.checkpointing}
        data = {"mixed_precision": self.precision, "batch_size": self.sizes[0], "prompt_seconds": PROMPT_SECONDS}
        training: dict[str, Any] = {"gradient_accumulation_steps": 2 if self.accumulates else 1}
        if self.rank:
            training |= {"lora_rank": self.rank, "init_from": "its base"}
        return XTTSConfig(model=model, data=data, training=training)


class HotFunction(NamedTuple):
    """Something to trace."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Specs of its tensors, as it takes them."""
    compiled: Callable[..., Any] | None = None
    """What of it XLA compiles, where that is not all."""

    def compile(self, **options: Any) -> tuple[Any, list[tf.TensorSpec]]:
        """The same as a `tf.function` of many tensors, and their specs."""

        chosen = self.work if self.compiled is None or "jit_compile" not in options else self.compiled

        def work(*tensors: tf.Tensor) -> Any:
            return chosen(*tf.nest.pack_sequence_as(self.arguments, tensors))

        return tf.function(work, autograph=False, **options), tf.nest.flatten(self.arguments)


def build_function(name: str, case: Case, *, joins: bool = False) -> HotFunction:
    """The function with a name among `FUNCTIONS`, for a compiler if it `joins`."""
    part, _, job = name.partition(" ")
    if name in TRAINING:
        case = replace(case, rank=LORA_RANK) if part == "lora" else case
        step = _build_step(part, case.config, joins)
        phase = QUANTISED if part == "codec" else "all"
        batch = _specify_batch(part, case, voices=1 if job == "shared" else 0)
        return _update(step) if job == "update" else _take_gradients(step, batch, phase, job)
    return PREPARING[name](case)


def _build_step(part: str, config: XTTSConfig, joins: bool) -> TrainStep:
    options: dict[str, Any] = {"seed": None, "dtype": config.data.mixed_precision}
    if part == "codec":
        objective: Any = CodecObjective(build_dvae(config.model, **options), seed=1, free_steps=0, total_steps=100)
        return build_step(objective, config, dropout=0.0, packed_elements=PACKED_ELEMENTS)
    if config.training.lora_rank:
        options["dtype"] = options["dtype"].removeprefix("mixed_")
    gpt = build_gpt(config.model, **options, fused_norms=True, joins=joins, shares_prompts=False)
    if part in ("gpt", "lora"):
        adapters = build_adapters(gpt, config.training) if config.training.lora_rank else None
        objective = GPTObjective(gpt, adapters=adapters)
        return build_step(objective, config, dropout=config.model.dropout, packed_elements=PACKED_ELEMENTS)
    decoder = build_decoder(config.model, **options)
    decoder.forget_speakers()
    objective = DecoderObjective(decoder, build_rivals(config.model, **options), gpt)
    return build_step(objective, config, dropout=0.0, betas=DECODER_BETAS, packed_elements=PACKED_ELEMENTS)


def _specify_batch(part: str, case: Case, voices: int) -> dict[str, tf.TensorSpec]:
    """Of rows with a prompt each, or of rows that share those of so many voices."""
    rows, tokens, codes = case.sizes
    frames = FRAMES_PER_CODE * codes if part == "codec" else 1 + round(PROMPT_SECONDS * SAMPLE_RATE_HZ) // HOP_SAMPLES
    numbers = {"mel_BFM": (voices or rows, frames, MEL_CHANNELS), "weights_B": (rows,), "totals_2": (2,)}
    whole = {"frame_lengths_B": (rows,)}
    if part != "codec":
        whole = {"text_BT": (rows, tokens), "codes_BM": (rows, codes), "spans_B2": (rows, 2)}
        whole |= {"text_lengths_B": (rows,), "code_lengths_B": (rows,)}
    if voices:
        whole["voices_B"] = (rows,)
    if part == "decoder":
        numbers["speech_BS"] = (rows, SEGMENT_SAMPLES)
        whole |= {"segment_starts_B": (rows,), "segment_frames_B": (rows,)}
    specs = {name: tf.TensorSpec(shape, tf.float32) for name, shape in numbers.items()}
    return specs | {name: tf.TensorSpec(shape, tf.int32) for name, shape in whole.items()}


def _take_gradients(step: TrainStep, batch: dict[str, tf.TensorSpec], phase: str, job: str) -> HotFunction:
    # What `TrainStep.compute` compiles, without a batch to do it with.
    accumulates = job == "accumulation"

    def work(*given: Any) -> Gradients:
        return (step._add_gradients if accumulates else step._compute_gradients)(*given, phase=phase)

    narrowed = () if step._dtype == tf.float32 else _specify(lambda: step._narrow({}))
    before = (_specify(lambda: step.make_zero_gradients(0)),) if accumulates else ()
    return HotFunction(work, (batch, tf.TensorSpec((1,), tf.uint64), tf.TensorSpec(()), narrowed, *before))


def _update(step: TrainStep) -> HotFunction:
    computed = _specify(lambda: step.make_zero_gradients(0))
    return HotFunction(
        lambda computed, rate: step._apply_gradients({}, computed, rate),
        (computed, tf.TensorSpec((2,))),
        lambda computed, rate: _update_packs(step, computed, rate),
    )


def _update_packs(step: TrainStep, computed: Any, rate: Any) -> Any:
    """What `TrainStep.apply` has XLA compile, in one: all but handing out the weights."""
    numbers, _, rates = step._judge(computed, rate)
    for optimizer, side, each in zip(step._optimizers, step._split_sides(computed.gradients), rates, strict=True):
        for number, gradient in enumerate(side):
            optimizer.update_pack(number, gradient, each)
    return numbers


def _specify(work: Callable[..., Any], *arguments: Any) -> Any:
    """The specs of a result that nobody computes."""
    traced = tf.function(work, autograph=False).get_concrete_function(*arguments)
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), traced.structured_outputs)


def _specify_clips(case: Case) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    rows, _, codes = case.sizes
    return tf.TensorSpec((rows, codes * SAMPLES_PER_CODE)), tf.TensorSpec((rows,), tf.int32)


def _prepare_prompts(case: Case) -> HotFunction:
    def work(wav_BS: Any, starts_B: Any, lengths_B: Any) -> Any:
        prompts_BS = cut_slices(wav_BS, starts_B, lengths_B, round(PROMPT_SECONDS * SAMPLE_RATE_HZ))
        return compute_slice_mel(prompts_BS, MEL_NORMS, at_once=True)

    wav, lengths = _specify_clips(case)
    return HotFunction(work, (wav, lengths, lengths))


def _prepare_mels(case: Case) -> HotFunction:
    return HotFunction(lambda *clips: compute_dvae_mel(*clips, MEL_NORMS, at_once=True), _specify_clips(case))


def _prepare_codes(case: Case) -> HotFunction:
    dvae = build_dvae(case.config.model, seed=None)
    return HotFunction(dvae.encode, (tf.TensorSpec((1, case.sizes[2] * FRAMES_PER_CODE, MEL_CHANNELS)),))


def _prepare_speech(case: Case) -> HotFunction:
    def work(wav_BS: Any, lengths_B: Any, starts_B: Any, samples_B: Any) -> Any:
        speech_BS, _ = resample_batch(wav_BS, lengths_B, SAMPLE_RATE_HZ, SPEECH_RATE_HZ)
        return cut_slices(speech_BS, starts_B, samples_B, SEGMENT_SAMPLES)

    wav, lengths = _specify_clips(case)
    return HotFunction(work, (wav, lengths, lengths, lengths))


def _decode_one(case: Case) -> HotFunction:
    """One code of one sentence, said after half of its clip."""
    _, tokens, codes = case.sizes
    gpt = build_gpt(case.config.model, seed=None, dtype=case.precision, fused_norms=True)
    rule = Sampling(tf.TensorSpec(()), tf.TensorSpec((), tf.int32), tf.TensorSpec(()), tf.TensorSpec(()))

    def start(prompt_BPC: Any, text_BT: Any, seeds_B2: Any, rule: Sampling) -> Decoding:
        return start_decoding(gpt, prompt_BPC, text_BT, rule=rule, max_codes=codes, seeds_B2=seeds_B2)

    prompt = tf.TensorSpec((1, PROMPT_LATENTS, gpt.size.width))
    begun = _specify(start, prompt, tf.TensorSpec((1, tokens), tf.int32), tf.TensorSpec((1, 2), tf.int32), rule)
    places = begun.bias_BS.shape[1] + ROOM
    caches = tuple(tf.TensorSpec((*each.shape[:2], places, each.shape[3]), each.dtype) for each in begun.keys)
    begun = begun._replace(keys=caches, values=caches, bias_BS=tf.TensorSpec((1, places)))
    return HotFunction(
        lambda decoding, rule: continue_decoding(gpt, decoding, rule=rule, codes=1),
        (begun, rule),
        # XLA wants to know sizes beforehand: while there is room.
        lambda decoding, rule: say_next(gpt, decoding, rule),
    )


PREPARING = {
    "prompt mels": _prepare_prompts,
    "codec mels": _prepare_mels,
    "codes": _prepare_codes,
    "speech": _prepare_speech,
    "one code": _decode_one,
}
TRAINING = (
    *(f"{part} {job}" for part in ("gpt", "lora", "codec", "decoder") for job in ("gradients", "update")),
    "gpt shared",
    "gpt accumulation",
)
FUNCTIONS = (*TRAINING, *PREPARING)

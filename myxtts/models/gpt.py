"""The GPT: prompt, text and codes in, the next code out.

Shape suffixes: B batch, S positions of the whole sequence, L positions of a framed part, T text tokens, M codes,
P prompt vectors, U voices whose prompts rows share, F mel frames, C width, H heads, D channels of a head, V vocabulary, N rows of all
places."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from myxtts.errors import UserError
from myxtts.models.attention import DrawMasks, attend, find_scale, make_causal_bias, plan_masks, run_part, split_heads
from myxtts.models.conditioning import ConditioningEncoder, PerceiverResampler
from myxtts.models.layers import (
    Dense,
    LayerNorm,
    Part,
    gelu_tanh,
    joining_sums,
    look_up,
    mask_lengths,
    measure,
    read,
    swap_rows,
)
from myxtts.models.losses import GPTLosses, measure_cross_entropy
from myxtts.models.sizes import STOP_CODES, GPTSize
from myxtts.models.weights import Weight, list_adapter_weights, list_gpt_weights
from myxtts.units import SAMPLES_PER_CODE

TILE = 8
"""Rows that a tensor core takes at a time, of 16 bits each."""


class SequenceTooLongError(UserError):
    """A text, clip or prompt is longer than the model's position tables."""


class Framed(NamedTuple):
    """A sequence with its start and stop tokens."""

    inputs_BL: tf.Tensor
    targets_BL: tf.Tensor
    visible_BL: tf.Tensor
    """Whether a position may be attended to."""
    counted_BL: tf.Tensor
    """Whether a position's target is part of the loss."""


def frame_text(text_BT: tf.Tensor, lengths_B: tf.Tensor, size: GPTSize) -> Framed:
    """Token ids between START and STOP, T + 2 positions.

    What lies in `text_BT` beyond a row's length has no effect. The STOP after a text is a target but, as in the
    reference, hidden from what follows.
    """
    tokens = measure(text_BT)[1]
    check_length("A text", tokens, size.max_text_tokens, "tokens")
    inside_BT = mask_lengths(lengths_B, tokens)
    padded_BT = tf.where(inside_BT, text_BT, tf.cast(size.stop_text_token, text_BT.dtype))
    return _frame(padded_BT, lengths_B + 1, 1, size.start_text_token, size.stop_text_token)


def frame_audio(codes_BM: tf.Tensor, lengths_B: tf.Tensor, size: GPTSize) -> Framed:
    """Codes between START and STOP, M + 5 positions; each row is trained on its codes and four stop tokens.

    What lies in `codes_BM` beyond a row's length has no effect.
    """
    codes = measure(codes_BM)[1]
    check_length("A clip", codes, size.max_audio_tokens - 2, "codes")
    inside_BM = mask_lengths(lengths_B, codes)
    padded_BM = tf.where(inside_BM, codes_BM, tf.cast(size.stop_audio_token, codes_BM.dtype))
    return _frame(padded_BM, lengths_B + STOP_CODES, STOP_CODES, size.start_audio_token, size.stop_audio_token)


def blank_spans(framed: Framed, spans_B2: tf.Tensor) -> Framed:
    """Audio without the targets the prompt was cut from, which the model could copy.

    Args:
        spans_B2: first and last sample (exclusive) of each row's prompt within its own clip.
    """
    bounds_B2 = spans_B2 // SAMPLES_PER_CODE
    places_L = tf.range(measure(framed.targets_BL)[1], dtype=bounds_B2.dtype)[None]
    within_BL = (places_L >= bounds_B2[:, :1]) & (places_L < bounds_B2[:, 1:])
    return framed._replace(counted_BL=framed.counted_BL & ~within_BL)


def check_length(what: str, length: int | tf.Tensor, limit: int, unit: str) -> None:
    """Raises `SequenceTooLongError` for a length known to be beyond the limit."""
    if isinstance(length, int) and length > limit:
        raise SequenceTooLongError(
            f"{what} may have {limit} {unit} at most in this model, but has {length}. Split it, or build the model "
            "with larger limits (max_text_tokens, max_audio_tokens, max_prompt_tokens)."
        )


def _frame(padded_BT: tf.Tensor, visible_B: tf.Tensor, stops: int, start: int, stop: int) -> Framed:
    rows = measure(padded_BT)[0]
    dtype = padded_BT.dtype
    stops_BS = tf.fill([rows, stops], tf.cast(stop, dtype))
    start_B1 = tf.fill([rows, 1], tf.cast(start, dtype))
    inputs_BL = tf.concat([start_B1, padded_BT, stops_BS], 1)
    targets_BL = tf.concat([padded_BT, stops_BS, stops_BS[:, :1]], 1)
    seen_BL = mask_lengths(visible_B, measure(inputs_BL)[1])
    return Framed(inputs_BL, targets_BL, seen_BL, seen_BL)


class GPTBatch(NamedTuple):
    """What one training step reads. Shapes may be padded to a bucket: padding has no effect on the losses."""

    mel_BFM: tf.Tensor
    """Conditioning mel of each row's prompt, float32."""
    text_BT: tf.Tensor
    """Token ids without START and STOP."""
    text_lengths_B: tf.Tensor
    codes_BM: tf.Tensor
    """Audio codes of the DVAE."""
    code_lengths_B: tf.Tensor
    """Codes of each clip: one for each 1024 samples begun."""
    spans_B2: tf.Tensor | None = None
    """First and last sample (exclusive) of the prompt within the clip, when it was cut from it: those codes are then
    no targets. None when the prompt is another recording."""
    weights_B: tf.Tensor | None = None
    """0 for rows that only fill the batch, whose stop tokens would count otherwise; all rows count when None."""


class Shared(NamedTuple):
    """Prompts that rows share. They see nothing but themselves, so each is computed once, before the rows' own places."""

    voices_B: tf.Tensor
    """Which of them each row hears."""
    bias: tf.Tensor
    """Of a prompt's places among themselves, (U, 1, P, P)."""

    @property
    def places(self) -> int:
        """Vectors of a prompt."""
        return int(self.bias.shape[-1])

    def hand_out(self, x_UHPD: tf.Tensor) -> tf.Tensor:
        """What belongs to prompts, for each row that hears them: (B, H, P, D)."""
        voices, *sizes = x_UHPD.shape
        return tf.reshape(look_up(tf.reshape(x_UHPD, [voices, -1]), self.voices_B), [-1, *sizes])


class GPTBlock(Part):
    """One pre-norm transformer block.

    Args:
        size: of the GPT.
        dropout: share dropped of the attention probabilities and of what each half adds.
    """

    def __init__(self, size: GPTSize, *, dropout: float, scores: int, fused_norms: bool, dtype: Any):
        super().__init__(dtype=dtype)
        self.heads, self.dropout, self.scores = size.heads, dropout, scores
        self.attention_norm = LayerNorm(size.width, fused=fused_norms, dtype=dtype)
        self.qkv = Dense(size.width, 3 * size.width, dtype=dtype)
        self.project = Dense(size.width, size.width, dtype=dtype)
        self.forward_norm = LayerNorm(size.width, fused=fused_norms, dtype=dtype)
        self.expand = Dense(size.width, 4 * size.width, dtype=dtype)
        self.contract = Dense(4 * size.width, size.width, dtype=dtype)

    def call(
        self, x_NC: tf.Tensor, bias: tf.Tensor, draw: DrawMasks | None = None, shared: Shared | None = None
    ) -> tf.Tensor:
        """The block's output; `draw` gives the masks of its dropout, see `plan_masks`."""
        kept, factors = ([None, None], []) if draw is None else draw()
        run = partial(attend, scores=self.scores, scale=1.0 if draw is None else find_scale(self.dropout))
        if shared is None:
            q, k, v = self.make_qkv(x_NC, measure(bias)[0])
            return self.finish(x_NC, run(q, k, v, bias, kept=kept[0]), *factors)
        qkv_NC = self.qkv(self.attention_norm(x_NC))
        voices, batch = measure(shared.bias)[0], measure(bias)[0]
        heard = voices * shared.places
        heard_NC, own_NC = tf.split(qkv_NC, [heard, measure(qkv_NC)[0] - heard])
        q_UHPD, k_UHPD, v_UHPD = split_heads(heard_NC, [-1, voices], 3, self.heads)
        q, k, v = split_heads(own_NC, [-1, batch], 3, self.heads)
        k, v = (tf.concat([shared.hand_out(first), own], 2) for first, own in ((k_UHPD, k), (v_UHPD, v)))
        attended = run(q_UHPD, k_UHPD, v_UHPD, shared.bias, kept=kept[1]), run(q, k, v, bias, kept=kept[0])
        return self.finish(x_NC, tf.concat(attended, 0), *factors)

    def make_qkv(self, x_NC: tf.Tensor, batch: Any) -> list[tf.Tensor]:
        """Query, key and value of every position, (B, H, S, D) each."""
        return split_heads(self.qkv(self.attention_norm(x_NC)), [-1, batch], 3, self.heads)

    def finish(self, x_NC: tf.Tensor, attended_NC: tf.Tensor, *factors: tf.Tensor) -> tf.Tensor:
        """What follows the attention: its projection and the feed-forward half, each added to `x`, times a factor if there are some."""
        attended_NC = self.project(attended_NC)
        x_NC += attended_NC * factors[0] if factors else attended_NC
        hidden_NC = self.contract(gelu_tanh(self.expand(self.forward_norm(x_NC))))
        return x_NC + (hidden_NC * factors[1] if factors else hidden_NC)


class GPT(Part):
    """The trained part of XTTS, weight-compatible with `gpt.*` of a checkpoint.

    Args:
        size: layers, widths, vocabularies and limits.
        dropout: share of activations dropped when a dropout key is given.
        checkpointing: compute activations again in the backward pass: less memory, more time, the same gradients.
        scores: how many scores of an attention to compute at a time, see `attend`: 0 for all.
        fused_norms: how norms are computed, see `LayerNorm`.
        joins: whether a layer's sums over rows become one, see `joining_sums`.
        shares_prompts: whether a prompt that rows share goes through the blocks once, which a processor is faster with, or with each of
            them, which takes fewer kernels.
        dtype: dtype or policy to compute in; softmax, norms and losses are float32 in any case. A plain `float16`
            also stores the weights so: half the memory, where it is not trained. No faster on a CPU without 16-bit arithmetic.

    Example:
        >>> gpt = GPT(GPTSize(layers=2, width=64, heads=4, text_tokens=100, audio_codes=64,
        ...                   max_text_tokens=60, max_audio_tokens=80))
        >>> losses = gpt.compute_losses(batch, dropout_key=make_dropout_key(seed=1, step=0))
        >>> losses.weigh()  # the scalar to minimise
    """

    def __init__(
        self,
        size: GPTSize,
        *,
        dropout: float = 0.0,
        checkpointing: bool = False,
        scores: int = 0,
        fused_norms: bool = False,
        joins: bool = False,
        shares_prompts: bool = True,
        dtype: Any = "float32",
    ):
        super().__init__(dtype=dtype)
        self.size, self.dropout, self.checkpointing = size, dropout, checkpointing
        self.scores, self.joins, self.shares_prompts = scores, joins, shares_prompts
        options = {"scores": scores, "fused_norms": fused_norms, "dtype": dtype}
        self.conditioning_encoder = ConditioningEncoder(size, checkpointing=checkpointing, joins=joins, **options)
        self.perceiver = PerceiverResampler(size, scores=scores, dtype=dtype)
        self.text_embedding = self.add_variable("text_embedding", (size.text_tokens, size.width))
        self.audio_embedding = self.add_variable("audio_embedding", (size.audio_tokens, size.width))
        self.text_positions = self.add_variable("text_positions", (size.text_positions, size.width))
        self.audio_positions = self.add_variable("audio_positions", (size.audio_positions, size.width))
        self.blocks = [GPTBlock(size, dropout=dropout, **options) for _ in range(size.layers)]
        self.last_norm = LayerNorm(size.width, fused=fused_norms, dtype=dtype)
        self.final_norm = LayerNorm(size.width, fused=fused_norms, dtype=dtype)
        self.text_head = Dense(size.width, size.text_tokens, dtype=dtype)
        self.audio_head = Dense(size.width, size.audio_tokens, dtype=dtype)

    def list_weights(self) -> list[Weight]:
        """Its weights under the names they have below `gpt.` in a checkpoint."""
        return list_gpt_weights(self.size)

    def make_prompt(self, mel_BFM: tf.Tensor) -> tf.Tensor:
        """The prompt (B, 32, C) of reference mels, one reference per row."""
        return self.perceiver(self.conditioning_encoder(mel_BFM))

    def compute_losses(
        self, batch: GPTBatch, *, dropout_key: tf.Tensor | None = None, smoothing: float = 0.0
    ) -> GPTLosses:
        """Losses of a batch, as sums and counts.

        Args:
            dropout_key: from `make_dropout_key`; None for no dropout.
            smoothing: label smoothing; the published recipe uses none.
        """
        text, audio = self.frame(batch)
        logits = self.compute_logits(self.make_prompt(batch.mel_BFM), text, audio, dropout_key)
        return measure_losses(logits, text, audio, smoothing=smoothing)

    def frame(self, batch: GPTBatch) -> tuple[Framed, Framed]:
        """Inputs, targets and masks of a batch's text and audio."""
        audio = frame_audio(batch.codes_BM, batch.code_lengths_B, self.size)
        if batch.spans_B2 is not None:
            audio = blank_spans(audio, batch.spans_B2)
        text = frame_text(batch.text_BT, batch.text_lengths_B, self.size)
        if batch.weights_B is None:
            return text, audio
        is_clip_B1 = batch.weights_B[:, None] > 0
        return (
            text._replace(counted_BL=text.counted_BL & is_clip_B1),
            audio._replace(counted_BL=audio.counted_BL & is_clip_B1),
        )

    def compute_logits(
        self,
        prompt_BPC: tf.Tensor,
        text: Framed,
        audio: Framed,
        dropout_key: tf.Tensor | None = None,
        voices_B: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits of text (B, T + 2, V) and audio (B, M + 5, V) positions, with padding hidden.

        Args:
            voices_B: which of the prompts, (U, P, C) then, each row hears, where rows share them. What dropout takes from a prompt is
                taken from all that hear it.
        """
        places, tokens, codes = (measure(part)[1] for part in (prompt_BPC, text.inputs_BL, audio.inputs_BL))
        shown_BP = tf.ones([measure(text.inputs_BL)[0], places], tf.bool)
        visible_BS = tf.concat([shown_BP, text.visible_BL, audio.visible_BL], 1)
        heard: tuple[tf.Tensor, ...] = ()
        if voices_B is None:
            before_BLC = self.embed_prefix(prompt_BPC, text.inputs_BL)
        else:
            before_BLC, heard = self._embed_text(text.inputs_BL), (prompt_BPC, voices_B)
        x_BSC = tf.concat([before_BLC, self.embed_audio(audio.inputs_BL)], 1)
        filling = self._count_filling(places + tokens + codes)
        if filling:
            x_BSC = tf.pad(x_BSC, [[0, 0], [0, filling], [0, 0]])
            visible_BS = tf.pad(visible_BS, [[0, 0], [0, filling]])
        hidden_BSC = self.run_blocks(x_BSC, visible_BS, dropout_key, *heard)
        _, text_BLC, audio_BLC, _ = tf.split(hidden_BSC, [0 if heard else places, tokens, codes, filling], 1)
        return self.text_head(text_BLC), self.audio_head(audio_BLC)

    def _count_filling(self, length: Any) -> int:
        """Places to add at the end of sequences, where nothing sees them, so that products of 16 bits are made of whole tiles. A compiler
        for GPUs would otherwise fill up every operand of every product."""
        narrow = self.compute_dtype != "float32" and isinstance(length, int)
        return -length % TILE if narrow else 0

    def compute_latents(
        self, prompt_BPC: tf.Tensor, text_BT: tf.Tensor, codes_BM: tf.Tensor, text_lengths_B: tf.Tensor | None = None
    ) -> tf.Tensor:
        """What the waveform decoder reads: the state that predicts each code, (B, M, C).

        Args:
            codes_BM: all codes of a clip, the stop token that ended it included.
            text_lengths_B: needed when rows have texts of different lengths.
        """
        text = self.frame_prefix_text(text_BT, text_lengths_B)
        start_B1 = tf.fill([measure(codes_BM)[0], 1], tf.cast(self.size.start_audio_token, codes_BM.dtype))
        # Causal, so what the reference appends and cuts off again need not be computed.
        inputs_BM = tf.concat([start_B1, codes_BM[:, :-1]], 1)
        prefix_BSC = self.embed_prefix(prompt_BPC, text.inputs_BL)
        x_BSC = tf.concat([prefix_BSC, self.embed_audio(inputs_BM)], 1)
        visible_BS = tf.concat(
            [tf.ones(measure(prompt_BPC)[:2], tf.bool), text.visible_BL, tf.ones_like(inputs_BM, tf.bool)], 1
        )
        return self.run_blocks(x_BSC, visible_BS)[:, measure(prefix_BSC)[1] :]

    def frame_prefix_text(self, text_BT: tf.Tensor, lengths_B: tf.Tensor | None = None) -> Framed:
        """Text between START and STOP for decoding, where, unlike in training, STOP is visible."""
        rows, tokens = measure(text_BT)
        lengths_B = tf.fill([rows], tokens) if lengths_B is None else lengths_B
        # Ids of 32 bits would be framed on the host, and masks fetched for it.
        text_BT, lengths_B = tf.cast(text_BT, tf.int64), tf.cast(lengths_B, tf.int64)
        text = frame_text(text_BT, lengths_B, self.size)
        return text._replace(visible_BL=mask_lengths(lengths_B + 2, measure(text.inputs_BL)[1]))

    def embed_prefix(self, prompt_BPC: tf.Tensor, text_BL: tf.Tensor) -> tf.Tensor:
        """The prompt, which has no positions, followed by the embedded text."""
        check_length("A prompt", measure(prompt_BPC)[1], self.size.max_prompt_tokens, "vectors")
        return tf.concat([tf.cast(prompt_BPC, self.compute_dtype), self._embed_text(text_BL)], 1)

    def _embed_text(self, text_BL: tf.Tensor) -> tf.Tensor:
        positions_LC = read(self.text_positions, self.compute_dtype)[: measure(text_BL)[1]]
        return self._embed(self.text_embedding, text_BL) + positions_LC

    def embed_audio(self, audio_BL: tf.Tensor) -> tf.Tensor:
        """Embedded audio tokens; the first has position 0."""
        positions_LC = read(self.audio_positions, self.compute_dtype)[: measure(audio_BL)[1]]
        return self._embed(self.audio_embedding, audio_BL) + positions_LC

    def embed_code(self, code_B: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """One embedded audio token per row, at an audio position that is the same for all, or each row's own: (B, C)."""
        positions_LC = read(self.audio_positions, self.compute_dtype)
        at_place = tf.gather(positions_LC, position) if position.shape.rank else positions_LC[position]
        return self._embed(self.audio_embedding, code_B) + at_place

    def _embed(self, table: Any, ids_BL: tf.Tensor) -> tf.Tensor:
        return tf.cast(look_up(tf.convert_to_tensor(table.value), ids_BL), self.compute_dtype)

    def run_blocks(
        self,
        x_BSC: tf.Tensor,
        visible_BS: tf.Tensor,
        dropout_key: tf.Tensor | None = None,
        prompt_UPC: tf.Tensor | None = None,
        voices_B: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """All blocks and closing norms over a sequence whose positions see themselves and earlier visible ones.

        Args:
            prompt_UPC: what comes first in the sequence, where rows share it, and `x_BSC` only what follows.
            voices_B: which of the prompts each row hears.
        """
        bias, shared = make_causal_bias(visible_BS), None
        batch, length, width = measure(x_BSC)
        x_NC = tf.reshape(swap_rows(x_BSC), [length * batch, width])
        biases = [bias]
        if prompt_UPC is not None:
            shared = Shared(voices_B, make_causal_bias(tf.ones(measure(prompt_UPC)[:2], tf.bool)))
            biases = [bias[:, :, shared.places :], shared.bias]
            heard_UPC = tf.cast(prompt_UPC, self.compute_dtype)
            x_NC = tf.concat([tf.reshape(swap_rows(heard_UPC), [-1, width]), x_NC], 0)
        draws: list[DrawMasks] | list[None] = [None] * len(self.blocks)
        if dropout_key is not None and self.dropout:
            scores = [[each.shape[0], self.size.heads, *each.shape[2:]] for each in biases]
            at_once = not (self.scores or self.checkpointing)
            factors_NC, draws = plan_masks(x_NC, scores, len(draws), self.dropout, dropout_key, at_once=at_once)
            x_NC *= factors_NC
        options = {"joins": self.joins, "again": self.checkpointing, "bias": biases[0], "shared": shared}
        for block, draw in zip(self.blocks, draws, strict=True):
            x_NC = run_part(block, x_NC, draw=draw, **options)
        if shared is not None:
            x_NC = x_NC[-length * batch :]
        return swap_rows(tf.reshape(self.finish(x_NC), [length, batch, width]))

    def finish(self, hidden_NC: tf.Tensor) -> tf.Tensor:
        """The state after both closing norms: what the heads and the waveform decoder read."""
        norms = self.last_norm, self.final_norm
        with joining_sums(measure(hidden_NC)[0], *norms) if self.joins else nullcontext():
            return self.final_norm(self.last_norm(hidden_NC))


class Adapters:
    """Pairs of thin matrices beside products of a GPT (LoRA): a part with names of its own (`Named`), which is initialised, trained,
    saved and loaded in the place of the GPT.

    Args:
        rank: of the pairs.
        products: of each block, such as `qkv`.
        factor: what is added is multiplied by it.
    """

    def __init__(self, gpt: GPT, *, rank: int, products: Sequence[str], factor: float):
        self.blocks, self.factor = gpt.blocks, factor
        for block in gpt.blocks:
            for product in products:
                getattr(block, product).add_pair(rank, factor)
        self._weights = list_adapter_weights(gpt.size, rank, products)

    def list_weights(self) -> list[Weight]:
        """The matrices of all pairs, under their names beside those of the GPT."""
        return self._weights


def measure_losses(
    logits: tuple[tf.Tensor, tf.Tensor], text: Framed, audio: Framed, *, smoothing: float = 0.0
) -> GPTLosses:
    """Losses of text and audio logits, as `GPT.compute_logits` gives them."""
    text_logits, audio_logits = logits
    return GPTLosses(
        measure_cross_entropy(text_logits, text.targets_BL, text.counted_BL, smoothing=smoothing),
        measure_cross_entropy(audio_logits, audio.targets_BL, audio.counted_BL, smoothing=smoothing),
    )

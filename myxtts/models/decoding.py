"""Text and prompt -> codes and latents, one code at a time with cached keys and values, all inside one graph.

Shape suffixes: B batch, S positions (prefix and codes), T text tokens, M codes, P prompt vectors, C width, H heads,
D channels of a head, V vocabulary."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from myxtts.models.attention import HIDDEN, attend, attend_cached, make_causal_bias
from myxtts.models.gpt import GPT, check_length
from myxtts.models.layers import measure, swap_rows, write_at

ALWAYS_SEEN = 1
"""A code that counts as already said from the start: the reference fills the prefix with this id."""


class Sampling(NamedTuple):
    """How codes are chosen. Pass tensors through a compiled function to change them without tracing it again.

    The defaults are those of the published v2 configuration.
    """

    temperature: float | tf.Tensor = 0.75
    top_k: int | tf.Tensor = 50
    """Codes kept; 0 keeps all."""
    top_p: float | tf.Tensor = 0.85
    repetition_penalty: float | tf.Tensor = 5.0


class Greedy(NamedTuple):
    """The most likely code, after the repetition penalty."""

    repetition_penalty: float | tf.Tensor = 1.0


def choose_code(logits_BV: tf.Tensor, seen_BV: tf.Tensor, rule: Sampling | Greedy, draw_B1: tf.Tensor) -> tf.Tensor:
    """The next code of each row, int64: whole numbers of 32 bits live in host memory, where a GPU would have to wait for them.

    Args:
        seen_BV: whether a code was said before.
        draw_B1: uniform in [0, 1), one per row; unused when greedy.
    """
    logits = tf.cast(logits_BV, tf.float32)
    if isinstance(rule, Greedy):
        return tf.argmax(penalise(logits, seen_BV, rule.repetition_penalty), -1)
    mass_BV = tf.cumsum(tf.nn.softmax(shape_scores(logits, seen_BV, rule)), -1)
    # Strictly above the draw, so that a code without any mass is never hit.
    return tf.reduce_sum(tf.cast(mass_BV <= draw_B1 * mass_BV[:, -1:], tf.int64), -1)


def shape_scores(logits_BV: tf.Tensor, seen_BV: tf.Tensor, rule: Sampling) -> tf.Tensor:
    """Scores to draw from; codes that must not come are at minus infinity."""
    scores_BV = penalise(logits_BV, seen_BV, rule.repetition_penalty) / rule.temperature
    ranked_BV = tf.sort(scores_BV)
    codes = scores_BV.shape[-1]
    # Of 0 codes kept, all.
    place = (codes - tf.minimum(rule.top_k, codes)) % codes
    least_B1 = ranked_BV[:, place : place + 1]
    ranked_BV = tf.where(ranked_BV < least_B1, -float("inf"), ranked_BV)
    # The tail that holds at most 1 - p of the mass goes; the best code always stays.
    tail_BV = tf.cumsum(tf.nn.softmax(ranked_BV), -1) <= 1 - rule.top_p
    last_B1 = tf.minimum(tf.reduce_sum(tf.cast(tail_BV, tf.int64), -1, keepdims=True), codes - 1)
    least_B1 = tf.maximum(least_B1, tf.gather(ranked_BV, last_B1, batch_dims=1))
    return tf.where(scores_BV < least_B1, -float("inf"), scores_BV)


def penalise(logits_BV: tf.Tensor, seen_BV: tf.Tensor, penalty: float | tf.Tensor) -> tf.Tensor:
    """Logits with those of seen codes moved down: negative ones times, positive ones divided by the penalty."""
    lowered_BV = tf.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
    return tf.where(seen_BV, lowered_BV, logits_BV)


ROOM = 128
"""Positions added to the cached keys and values when they are full."""


class Decoding(NamedTuple):
    """A generation under way. `codes_BM` and `latents_BMC` are filled up to `count`."""

    codes_BM: tf.Tensor
    """Codes so far, int64, the stop token that ended a row included; stop tokens beyond."""
    latents_BMC: tf.Tensor
    """The state that predicted each code: what the waveform decoder reads, float32."""
    count: tf.Tensor
    """Codes so far, int32."""
    stopped_B: tf.Tensor
    """Whether a row has said its stop token."""
    lengths_B: tf.Tensor
    """Codes of each row so far, its stop token included, int64. What lies beyond is padding."""
    seen_BV: tf.Tensor
    draws_BM: tf.Tensor
    keys: tuple[tf.Tensor, ...]
    """Per block, (B, H, S, D). S grows with the generation, so that a code attends to little more than there is."""
    values: tuple[tf.Tensor, ...]
    bias_BS: tf.Tensor
    """What is added to the scores of a position: 0 once it is written, unless it is padding of the text."""
    place: tf.Tensor
    """The position the next code will be read into, int32. Room for it may have to be made first."""


def generate(
    gpt: GPT, prompt_BPC: tf.Tensor, text_BT: tf.Tensor, *, rule: Sampling | Greedy, max_codes: int, **rows: Any
) -> Decoding:
    """Codes until every row has stopped, or `max_codes`. The arguments are those of `start_decoding`."""
    decoding = start_decoding(gpt, prompt_BPC, text_BT, rule=rule, max_codes=max_codes, **rows)
    return continue_decoding(gpt, decoding, rule=rule, codes=max_codes)


def start_decoding(
    gpt: GPT,
    prompt_BPC: tf.Tensor,
    text_BT: tf.Tensor,
    *,
    rule: Sampling | Greedy,
    max_codes: int,
    text_lengths_B: tf.Tensor | None = None,
    seeds_B2: tf.Tensor | None = None,
) -> Decoding:
    """Reads prompt and text, and says the first code.

    Args:
        prompt_BPC: from `GPT.make_prompt`.
        text_BT: token ids without START and STOP.
        rule: how codes are chosen; the same in every call of one generation.
        max_codes: stop after so many codes.
        text_lengths_B: needed when rows have texts of different lengths.
        seeds_B2: int32, a key per row for sampling; a row's codes depend on its own key alone.
    """
    check_length("A generated clip", max_codes, gpt.size.max_new_codes, "codes")
    rows = measure(prompt_BPC)[0]
    text = gpt.frame_prefix_text(text_BT, text_lengths_B)
    visible_BS = tf.concat([tf.ones(measure(prompt_BPC)[:2], tf.bool), text.visible_BL, tf.ones([rows, 1], tf.bool)], 1)
    start_B1 = tf.fill([rows, 1], gpt.size.start_audio_token)
    x_BSC = tf.concat([gpt.embed_prefix(prompt_BPC, text.inputs_BL), gpt.embed_audio(start_B1)], 1)
    hidden_BC, keys, values = read_prefix(gpt, x_BSC, visible_BS)
    seen_V = tf.reduce_any(tf.one_hot([ALWAYS_SEEN, gpt.size.start_audio_token], gpt.size.audio_tokens) > 0, 0)
    decoding = Decoding(
        codes_BM=tf.fill([rows, max_codes], tf.constant(gpt.size.stop_audio_token, tf.int64)),
        latents_BMC=tf.zeros([rows, max_codes, gpt.size.width]),
        count=tf.constant(0),
        stopped_B=tf.zeros([rows], tf.bool),
        lengths_B=tf.zeros([rows], tf.int64),
        seen_BV=tf.tile(seen_V[None], [rows, 1]),
        draws_BM=_draw_uniform(seeds_B2, rows, max_codes),
        keys=keys,
        values=values,
        bias_BS=tf.where(visible_BS, 0.0, HIDDEN),
        place=tf.constant(measure(x_BSC)[1]),
    )
    return _say(gpt, decoding, hidden_BC, rule)


def continue_decoding(gpt: GPT, decoding: Decoding, *, rule: Sampling | Greedy, codes: int | tf.Tensor) -> Decoding:
    """Up to `codes` more codes; fewer when every row stops or `max_codes` are there. Cutting a generation into
    pieces changes nothing."""
    end = tf.minimum(decoding.count + codes, measure(decoding.codes_BM)[1])

    def count_left(now: Decoding) -> tf.Tensor:
        # Of 32 bits, which the host counts by: all it asks the device for is whether a row goes on.
        return (end - now.count) * (1 - tf.reduce_min(tf.cast(now.stopped_B, tf.int32)))

    def goes_on(now: Decoding) -> tf.Tensor:
        return count_left(now) > 0

    def has_room(now: Decoding) -> tf.Tensor:
        return tf.minimum(count_left(now), tf.shape(now.bias_BS)[1] - now.place) > 0

    def fill_room(now: Decoding) -> tuple[Decoding]:
        specs, begun = specify_decoding(now), _make_room(now)
        (now,) = tf.while_loop(has_room, lambda now: (say_next(gpt, now, rule),), (begun,), shape_invariants=(specs,))
        return (now,)

    (ended,) = tf.while_loop(goes_on, fill_room, (decoding,), shape_invariants=(specify_decoding(decoding),))
    return Decoding(*ended)


def say_next(gpt: GPT, now: Decoding, rule: Sampling | Greedy) -> Decoding:
    """One code more, for which there is room."""
    hidden_BC, now = _read_last_code(gpt, now)
    return _say(gpt, now, hidden_BC, rule)


def specify_decoding(decoding: Decoding) -> Decoding:
    """Specs of a generation at any position: the signature of a compiled `continue_decoding`, which would otherwise
    be traced again each time the cache grows."""
    specs = Decoding(*tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), decoding))
    batch, heads, _, width = specs.keys[0].shape
    caches = tuple(tf.TensorSpec([batch, heads, None, width], cache.dtype) for cache in specs.keys)
    return specs._replace(keys=caches, values=caches, bias_BS=tf.TensorSpec([batch, None], specs.bias_BS.dtype))


def read_attention(gpt: GPT, prompt_1PC: tf.Tensor, text_1T: tf.Tensor, codes_1M: tf.Tensor) -> tf.Tensor:
    """How much each code attended to each token of its text when it was chosen, in every head of every block: (K, M, T + 2).

    Reads all codes at once, whatever has said them: the same numbers as one at a time, without a cache.
    """
    text = gpt.frame_prefix_text(text_1T)
    prefix_1SC = gpt.embed_prefix(prompt_1PC, text.inputs_BL)
    start_11 = tf.fill([1, 1], tf.cast(gpt.size.start_audio_token, codes_1M.dtype))
    x_1SC = tf.concat([prefix_1SC, gpt.embed_audio(tf.concat([start_11, codes_1M[:, :-1]], 1))], 1)
    bias = make_causal_bias(tf.ones(measure(x_1SC)[:2], tf.bool))
    first, end = measure(prompt_1PC)[1], measure(prefix_1SC)[1]
    x_NC, weights = x_1SC[0], list[tf.Tensor]()
    for block in gpt.blocks:
        q, k, v = block.make_qkv(x_NC, 1)
        scores = tf.cast(tf.matmul(q[:, :, end:], k, transpose_b=True), tf.float32) / math.sqrt(q.shape[-1])
        weights.append(tf.nn.softmax(scores + bias[:, :, end:])[0, :, :, first:end])
        x_NC = block.finish(x_NC, attend(q, k, v, bias))
    return tf.concat(weights, 0)


def _make_room(now: Decoding) -> Decoding:
    # One place too few, if any.
    missing = ROOM * tf.maximum(now.place + 1 - tf.shape(now.bias_BS)[1], 0)
    after = [[0, 0], [0, 0], [0, missing], [0, 0]]
    return now._replace(
        keys=tuple(tf.pad(cache, after) for cache in now.keys),
        values=tuple(tf.pad(cache, after) for cache in now.values),
        bias_BS=tf.pad(now.bias_BS, [[0, 0], [0, missing]], constant_values=HIDDEN),
    )


def read_prefix(
    gpt: GPT, x_BSC: tf.Tensor, visible_BS: tf.Tensor
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]:
    """The state (B, C) after the last position, and the keys and values of each block, (B, H, S, D)."""
    bias = make_causal_bias(visible_BS)
    batch, _, width = measure(x_BSC)
    x_NC = tf.reshape(swap_rows(x_BSC), [-1, width])
    keys: list[tf.Tensor] = []
    values: list[tf.Tensor] = []
    for block in gpt.blocks:
        q, k, v = block.make_qkv(x_NC, batch)
        x_NC = block.finish(x_NC, attend(q, k, v, bias))
        keys.append(k)
        values.append(v)
    return gpt.finish(x_NC[-batch:]), tuple(keys), tuple(values)


def _read_last_code(gpt: GPT, now: Decoding) -> tuple[tf.Tensor, Decoding]:
    x_BC = gpt.embed_code(now.codes_BM[:, now.count - 1], now.count)
    bias_BS = write_at(now.bias_BS, tf.zeros([measure(now.bias_BS)[0], 1]), now.place, axis=1)
    keys: list[tf.Tensor] = []
    values: list[tf.Tensor] = []
    for block, k_BHSD, v_BHSD in zip(gpt.blocks, now.keys, now.values, strict=True):
        q, k, v = block.make_qkv(x_BC, measure(x_BC)[0])
        keys.append(write_at(k_BHSD, k, now.place, axis=2))
        values.append(write_at(v_BHSD, v, now.place, axis=2))
        x_BC = block.finish(x_BC, attend_cached(q, keys[-1], values[-1], bias_BS))
    read = now._replace(keys=tuple(keys), values=tuple(values), bias_BS=bias_BS, place=now.place + 1)
    return gpt.finish(x_BC), read


def _say(gpt: GPT, now: Decoding, hidden_BC: tf.Tensor, rule: Sampling | Greedy) -> Decoding:
    draw_B1 = now.draws_BM[:, now.count : now.count + 1]
    chosen_B = choose_code(gpt.audio_head(hidden_BC), now.seen_BV, rule, draw_B1)
    stop = tf.constant(gpt.size.stop_audio_token, tf.int64)
    code_B = tf.where(now.stopped_B, stop, chosen_B)
    return now._replace(
        codes_BM=write_at(now.codes_BM, tf.expand_dims(code_B, 1), now.count, axis=1),
        latents_BMC=write_at(now.latents_BMC, tf.expand_dims(tf.cast(hidden_BC, tf.float32), 1), now.count, axis=1),
        count=now.count + 1,
        stopped_B=code_B == stop,
        lengths_B=now.lengths_B + tf.cast(~now.stopped_B, tf.int64),
        seen_BV=now.seen_BV | tf.one_hot(code_B, gpt.size.audio_tokens, on_value=True, off_value=False),
    )


def _draw_uniform(seeds_B2: tf.Tensor | None, rows: int, count: int) -> tf.Tensor:
    if seeds_B2 is None:
        return tf.zeros([rows, count])
    return tf.stack(
        [tf.random.stateless_uniform([count], seeds_B2[row], alg="philox") for row in range(seeds_B2.shape[0])]
    )

"""The network: training step, DVAE, decoding and parameter counts, alone or beside Coqui's PyTorch code.

With --peer-python each piece of work is done in turn with Coqui's, by `peer_coqui.py` in a Python that has torch and coqui-tts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

# First: it imports TensorFlow without its remarks.
from myxtts.devices.runtime import set_thread_pools

# isort: split
import tensorflow as tf

from benchmarks.measuring import Child, judge, print_row, run_bench, tell_machine
from myxtts.config import ModelConfig
from myxtts.models.attention import CACHED_SCORES, make_dropout_key
from myxtts.models.decoding import Sampling, generate
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT, GPTBatch
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, DVAESize, GPTSize
from myxtts.models.weights import count_parameters, find_variable
from myxtts.models.xtts import initialise_weights
from myxtts.training.optimizer import AdamW, list_decayed_paths, list_trained_variables

THREADS, ROWS, TEXT_TOKENS = 2, 4, 100
CLIP_FRAMES, PROMPT_FRAMES = 862, 517
"""Mel frames of a clip of 10 s, and of a prompt of 6 s, the recipe's."""
TEXT_VOCABULARY, DVAE_WIDTH = 6681, 512
LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 5e-6, 1e-2, 0.1
READ_BYTES = 1 << 28
"""Far more than any cache holds."""
LEAST_ROUNDS = 3

Work = Callable[[], object]


SHAPES = {"step 4x256": (4, 256, 4), "step 8x512": (8, 512, 8)}
"""Layers, width and heads of the GPTs that are trained; decoding is measured with the last."""
WORKS = (*SHAPES, "dvae", "decode", "decode 4 rows", "decode 16-bit", "decode 16-bit 4 rows", "read memory")
PEER_CAN = (*SHAPES, "dvae", "decode", "decode 4 rows")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.model", description=__doc__)
    parser.add_argument("--peer-python", metavar="PATH", help="the Python that has torch and coqui-tts")
    parser.add_argument("--seconds", metavar="N", type=float, default=10.0, help="of each piece of work (default: 10)")
    parser.add_argument("--codes", metavar="N", type=int, default=200, help="of a sentence (default: 200)")
    parser.add_argument("--part", action="append", choices=WORKS, help="may be given again (default: all)")
    arguments = parser.parse_args(words)
    codes, names = arguments.codes, [name for name in WORKS if name in (arguments.part or WORKS)]
    with tell_machine(), ExitStack() as stack:
        print_sizes()
        set_thread_pools(THREADS, THREADS)
        peer = stack.enter_context(start_peer(arguments.peer_python, codes)) if arguments.peer_python else None
        times = {name: time_in_turn(name, peer, codes, arguments.seconds) for name in names}
        print_times(times, codes)
        best = {name: {who: min(found) for who, found in each.items()} for name, each in times.items()}
        print_targets(best, codes)


def start_peer(python: str, codes: int) -> Child:
    script = str(Path(__file__).with_name("peer_coqui.py"))
    return Child([python, script, str(codes)], OMP_NUM_THREADS=str(THREADS), TOKENIZERS_PARALLELISM="false")


def time_in_turn(name: str, peer: Child | None, codes: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of each round, by who worked: at least three rounds, and about so many seconds for each."""
    work = make_work(name, codes)
    work()
    taken: dict[str, list[float]] = {"ours": []}
    if peer is not None and name in PEER_CAN:
        peer.ask({"prepare": name})
        taken["peer"] = []
    end = time.perf_counter() + seconds * len(taken)
    while len(taken["ours"]) < LEAST_ROUNDS or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        taken["ours"].append(time.perf_counter() - begun)
        if "peer" in taken:
            taken["peer"].append(peer.ask({"run": name})["seconds"])
    del work
    # Layers refer to each other in circles: two models at a time would double what the bench needs.
    gc.collect()
    return taken


def make_work(name: str, codes: int) -> Work:
    """One piece of work, to be done once per call."""
    if name in SHAPES:
        return make_training_step(name, codes)
    if name.startswith("decode"):
        return make_decoding(ROWS if "4 rows" in name else 1, "float16" if "16-bit" in name else "float32", codes)
    return make_encoding() if name == "dvae" else make_memory_reading()


def make_training_step(name: str, codes: int) -> Work:
    """Forward, backward and update of a GPT, dropout on."""
    gpt = build_gpt(name, "float32")
    variables = list_trained_variables(gpt)
    optimizer = AdamW(variables, list_decayed_paths(gpt), WEIGHT_DECAY)
    draw = np.random.default_rng(0)
    # Without padding; the prompt is as long as the recipe's.
    batch = GPTBatch(
        tf.constant(draw.standard_normal((ROWS, PROMPT_FRAMES, MEL_CHANNELS)).astype(np.float32)),
        make_text(ROWS),
        tf.fill([ROWS], TEXT_TOKENS),
        tf.constant(draw.integers(0, 1024, (ROWS, codes)), tf.int32),
        tf.fill([ROWS], codes),
    )

    @tf.function(autograph=False)
    def train(key: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = gpt.compute_losses(batch, dropout_key=key).weigh()
        gradients = tape.gradient(loss, [variable.value for variable in variables.values()])
        optimizer.apply(gradients, LEARNING_RATE)
        return loss

    return lambda: float(train(make_dropout_key(1, 1)))


def make_encoding() -> Work:
    """Mels of clips to codes, with a DVAE of the published size."""
    dvae = DVAE(DVAESize(width=DVAE_WIDTH, codes=1024))
    initialise_weights(dvae, 1)
    encode = tf.function(dvae.encode, autograph=False)
    mel = tf.random.stateless_normal([ROWS, CLIP_FRAMES, MEL_CHANNELS], [1, 2])
    return lambda: encode(mel).numpy()


def make_decoding(rows: int, dtype: str, codes: int) -> Work:
    """Text and prompt to exactly `codes` codes per row, sampled as in the published configuration."""
    gpt = build_gpt("step 8x512", dtype)
    weight = find_variable(gpt, "audio_head.bias")
    bias = weight.numpy()
    # No sentence ends before it has all its codes.
    bias[gpt.size.stop_audio_token] = -1e4
    weight.assign(bias)
    prompt = tf.random.stateless_normal([rows, PROMPT_LATENTS, gpt.size.width], [1, 2])
    text, seeds = make_text(rows), tf.stack([tf.zeros([rows], tf.int32), tf.range(rows)], 1)
    say = tf.function(partial(generate, gpt, rule=Sampling(), max_codes=codes), autograph=False)
    return lambda: say(prompt_BPC=prompt, text_BT=text, seeds_B2=seeds).codes_BM.numpy()


def make_memory_reading() -> Work:
    """Reads `READ_BYTES` once with all threads, and does next to nothing with them."""
    values = tf.fill([READ_BYTES // 4], 1.0)
    add_up = tf.function(tf.reduce_sum, autograph=False)
    return lambda: float(add_up(values))


def build_gpt(name: str, dtype: str) -> GPT:
    """A GPT with the published vocabulary and limits, at other widths."""
    layers, width, heads = SHAPES[name]
    limits = {"text_tokens": TEXT_VOCABULARY, "audio_codes": 1024, "max_text_tokens": 402, "max_audio_tokens": 605}
    size = GPTSize(layers=layers, width=width, heads=heads, **limits)
    gpt = GPT(size, dropout=DROPOUT, scores=CACHED_SCORES, dtype=dtype)
    initialise_weights(gpt, 1)
    return gpt


def make_text(rows: int) -> Any:
    return tf.constant(np.random.default_rng(1).integers(1, TEXT_VOCABULARY, (rows, TEXT_TOKENS)), tf.int32)


def print_sizes() -> None:
    """Parameters of every model size."""
    widths = (6, 9, 9, 9, 9, 9)
    print_row(widths, "size", "GPT", "DVAE", "decoder", "speaker", "total", "   (million parameters)")
    for size in ("tiny", "small", "base", "big"):
        counts = list(count_parameters(ModelConfig(size=size)).values())
        print_row(widths, size, *(f"{count / 1e6:.1f}" for count in (*counts, sum(counts))))
    print(flush=True)


def print_times(times: Mapping[str, Mapping[str, Sequence[float]]], codes: int) -> None:
    print(f"{THREADS} threads; batches of {ROWS}, text {TEXT_TOKENS}, codes {codes}, clips of 10 s. ", end="")
    print("The best round counts.")
    widths = (24, 8, 9, 9, 9, 9, 8)
    print_row(widths, "", "best", "median", "codes/s", "peer", "codes/s", "x time")
    for name, each in times.items():
        best = {who: min(found) for who, found in each.items()}
        rate = {who: f"{count_codes(name, codes) / best[who]:.0f}" if name.startswith("decode") else "" for who in best}
        cells = [f"{best['ours']:.3f}s", f"{median(each['ours']):.3f}s", rate["ours"]]
        if "peer" in each:
            cells += [f"{best['peer']:.3f}s", rate["peer"], f"{best['ours'] / best['peer']:.2f}"]
        print_row(widths, name, *cells)


def count_codes(name: str, codes: int) -> int:
    return codes * (ROWS if "4 rows" in name else 1)


def count_bytes_per_code() -> int:
    """Weights in float32 that must be read for one code: four matrices of a block, the head and the norms."""
    layers, width, _ = SHAPES["step 8x512"]
    return 4 * (layers * (12 * width**2 + 13 * width) + 4 * width + 1026 * (width + 1))


def print_targets(best: Mapping[str, Mapping[str, float]], codes: int) -> None:
    """The targets that this run can judge: those whose pieces of work were all done."""

    def print_target(text: str, found: float, is_met: bool) -> None:
        print(f"Target   {text}: {found:.2f}, {judge(is_met)}")

    rates = {name: count_codes(name, codes) / each["ours"] for name, each in best.items() if name.startswith("decode")}
    slower = {name: each["ours"] / each["peer"] for name, each in best.items() if "peer" in each}
    print()
    if "read memory" in best:
        bytes_per_s = READ_BYTES / best["read memory"]["ours"]
        roof = bytes_per_s / count_bytes_per_code()
        print(f"Roof     memory is read at {bytes_per_s / 1e9:.1f} GB/s: {roof:.0f} codes/s of one sentence in float32")
        if "decode" in rates:
            share = rates["decode"] / roof
            print_target("one sentence at least 0.8 of the roof", share, share >= 0.8)
    for name in sorted(SHAPES.keys() & slower.keys()):
        print_target(f"{name} at most 0.75 of the peer's time", slower[name], slower[name] <= 0.75)
    if "dvae" in slower:
        print_target("DVAE no slower than the peer's", slower["dvae"], slower["dvae"] <= 1)
    if "decode" in slower:
        gain = 1 / slower["decode"]
        print_target("one sentence at least 1.3 times the peer's codes/s", gain, gain >= 1.3)
        total = max(rates.get("decode 4 rows", 0), rates.get("decode 16-bit", 0)) * best["decode"]["peer"] / codes
        print_target("four sentences or 16-bit weights at least 3 times the peer's codes/s", total, total >= 3)


if __name__ == "__main__":
    run_bench(main)

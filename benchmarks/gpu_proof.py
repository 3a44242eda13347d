"""Launches and memory of the hot functions, compiled by XLA for an RTX 3090 and an RTX 4090 that are not there.

Prints the tables of a page. What was compiled once is kept by its text and not compiled again: a long run can be divided and resumed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.gpu_compile import CARDS
from benchmarks.gpu_functions import FUNCTIONS, LORA_RANK, PRECISIONS, SHAPES, Case, build_function
from benchmarks.measuring import run_bench, tell_machine
from myxtts.data.buckets import Bucket
from myxtts.devices.plan import DevicePlan, Growth, Mode, Process, ProcessPlan, Role, RolePlan
from myxtts.files import open_file_atomically, open_scratch_folder
from myxtts.pipeline.recipe import Target, choose_preparation
from myxtts.training.memory_estimate import RunShape, bill_model, list_fitting_batches
from myxtts.units import SAMPLES_PER_CODE

KEPT = Path("build/gpu-proof")
CLIPS_PER_UPDATE = 252
"""The reference recipe's."""
ALWAYS_FLOAT32 = ("prompt mels", "codec mels", "codes", "speech")
HEADER = (
    "| function | precision | card | launches | in graphs | library | temporary | arguments | results | compiled in |"
)
LIBRARIES = ("kCublasLtMatmul", "kGemm", "kConvolution", "kFft", "kDynamicSlice", "kCuDnn")
FITTED = (
    Case("tiny"),
    Case("tiny", shape=(16, 100, 200)),
    Case("tiny", "mixed_float16", shape=(16, 60, 100)),
    Case("small"),
    Case("small", "mixed_bfloat16", shape=(12, 100, 200)),
    Case("small", checkpointing=True, shape=(12, 100, 200)),
    Case("base"),
    Case("base", "mixed_bfloat16", shape=(8, 100, 200)),
    Case("base", "mixed_float16", checkpointing=True, shape=(8, 60, 120)),
    Case("big", "mixed_bfloat16"),
    Case("big", "mixed_bfloat16", checkpointing=True),
)
"""Steps that the constants of the bill were fitted to."""
UNSEEN = (
    *(Case(size, half) for size in ("tiny", "base") for half in PRECISIONS[1:]),
    Case("big"),
    Case("big", "mixed_float16"),
    Case("small", "mixed_float16", shape=(6, 50, 120)),
    Case("base", shape=(2, 150, 300)),
    Case("big", "mixed_bfloat16", rank=LORA_RANK),
    Case("tiny", accumulates=True),
    Case("base", "mixed_bfloat16", accumulates=True),
    Case("big", "mixed_bfloat16", accumulates=True),
)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_proof", description=__doc__)
    parser.add_argument("--python", metavar="PATH", required=True, help="that has jax and its CUDA plugin")
    parser.add_argument("--size", action="append", choices=SHAPES, help="again for more, as all below (all but small)")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--card", action="append", choices=CARDS)
    parser.add_argument("--function", action="append", choices=FUNCTIONS)
    parser.add_argument("--memory", action="store_true", help="hold the bill against the compiler instead")
    parser.add_argument("--kept", action="store_true", help="print what was compiled before, and compile nothing")
    chosen = parser.parse_args(words)
    KEPT.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    with tell_machine():
        print(f"Commit   {commit.strip()}, {date.today()}\n")
        print_memory(chosen) if chosen.memory else print_launches(chosen)


def print_launches(chosen: argparse.Namespace) -> None:
    for size in chosen.size or ("tiny", "base", "big"):
        print(f"\n{size}, {SHAPES[size]}\n\n{HEADER}\n|{'---|' * (HEADER.count('|') - 1)}")
        for name, precision, card in list_rows(size, chosen):
            found = compile_function(name, Case(size, precision), card, chosen)
            print(
                f"| {name} | {precision.removeprefix('mixed_')} | {card} | {found if isinstance(found, str) else describe(found)} |",
                flush=True,
            )


def list_rows(size: str, chosen: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    for name, precision in itertools.product(chosen.function or FUNCTIONS, chosen.precision or PRECISIONS):
        # Preparing knows one precision. Adapters are for a model that would not fit otherwise; from nothing, where prompts are shared, it
        # is not trained.
        is_asked = size == "big" if "lora" in name else size != "big" or "shared" not in name
        if is_asked and (name not in ALWAYS_FLOAT32 or precision == "float32"):
            yield from ((name, precision, card) for card in chosen.card or CARDS)


def describe(found: dict[str, Any]) -> str:
    library = sum(found["kinds"].get(kind, 0) for kind in LIBRARIES)
    share = f"{found['in_graphs'] / max(1, found['launches']):.0%}"
    sizes = " | ".join(f"{found[name] / 1e6:,.0f} MB" for name in ("temp", "argument", "output"))
    return f"{found['launches']:,} | {share} | {library:,} | {sizes} | {found['seconds']} s"


def print_memory(chosen: argparse.Namespace) -> None:
    print("| model and batch | fitted to | the bill | the compiler | bill / compiler |\n|---|---|---|---|---|")
    for case in (*FITTED, *UNSEEN):
        if case.size in (chosen.size or SHAPES):
            name = f"{case} | {'yes' if case in FITTED else 'no'}"
            job = "accumulation" if case.accumulates else "gradients"
            found = compile_function(f"gpt {job}", case, "3090", chosen)
            if isinstance(found, str):
                print(f"| {name} | {found} |", flush=True)
                continue
            items = bill_model(case.config, describe_batches(case), case.sizes[0])
            bill = {item.name: item.size_bytes for item in items}
            # Of two, one is what others are added to.
            carried = bill["gradients"] // 2 if case.accumulates else 0
            # Where weights are read as narrowed, those of 32 bits are no arguments, and there all the same. With checkpointing they are
            # narrowed inside the step.
            arguments = max(found["argument"], 0 if case.checkpointing else bill["weights"] + carried)
            needed = found["temp"] + arguments + found["output"] + bill["optimizer"]
            billed = sum(bill.values()) - bill["slots"]
            print(f"| {name} | {billed / 1e6:,.0f} MB | {needed / 1e6:,.0f} MB | {billed / needed:.2f} |", flush=True)
    cards = (8, 12, 16, 24)
    print(f"\n| model | {' | '.join(f'{card} GB' for card in cards)} |\n|{'---|' * (1 + len(cards))}")
    for size, precision, again in itertools.product(SHAPES, ("float32", "mixed_bfloat16"), (False, True)):
        case = Case(size, precision, again, (CLIPS_PER_UPDATE, 100, 216))
        name = f"{size}, {precision.removeprefix('mixed_')}{', checkpointing' if again else ''}"
        print(f"| {name} | {' | '.join(choose_batch(case, card) for card in cards)} |")


def describe_batches(case: Case) -> RunShape:
    rows, tokens, codes = case.sizes
    bucket = Bucket(rows, codes * SAMPLES_PER_CODE, tokens)
    # A prompt for each clip, as a model is fine-tuned.
    return RunShape("gpt", (bucket,), replace(choose_preparation(case.config, Target.GPT, ()), voices=0))


def choose_batch(case: Case, card_gb: int) -> str:
    """What the bill chooses for a card that prepares and trains: clips in a batch, and batches in an update."""
    model = RolePlan(Role.MODEL, Process.TRAINER, "/GPU:0", 0, Growth())
    plan = DevicePlan(Mode.SINGLE, False, replace(model, role=Role.DATA), model, (ProcessPlan(Process.TRAINER, ()),))
    fitting = list_fitting_batches(case.config, plan, describe_batches(case), (card_gb - 1) << 30)
    return f"{fitting[0].batch_size} x {fitting[0].accumulation}" if fitting else "-"


def compile_function(name: str, case: Case, card: str, chosen: argparse.Namespace) -> dict[str, Any] | str:
    """The compiler's figures, or why there are none."""
    text = lower(name, case)
    if text.startswith("not lowered"):
        return text
    # Without places, and without names, in which what was traced before is counted.
    plain = re.sub(r" loc[(].*|(?<=@)[\w.]+", "", text)
    kept = KEPT / f"{hashlib.sha256(plain.encode()).hexdigest()[:16]}-{card}.json"
    if not kept.exists():
        if chosen.kept:
            return "not compiled yet"
        script = str(Path(__file__).with_name("gpu_compile.py"))
        with open_scratch_folder("proof") as folder:
            source = folder / "function.mlir"
            source.write_text(text, encoding="utf-8")
            words = [chosen.python, script, str(source), card]
            ran = subprocess.run(words, capture_output=True, text=True, check=False)
        if ran.returncode:
            return f"not compiled: {(ran.stderr.strip() or 'killed').splitlines()[-1]}"
        with open_file_atomically(kept) as file:
            file.write(ran.stdout.encode())
    return json.loads(kept.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def lower(name: str, case: Case) -> str:
    """The function as StableHLO, or why it cannot be written so. TensorFlow keeps much of what it lowered: a process of its own ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(write_text, name, case).result()


def write_text(name: str, case: Case) -> str:
    function, specs = build_function(name, case, joins=True).compile(jit_compile=True)
    try:
        # For the processor: without a card TensorFlow lowers nothing that holds variables for one. The text is the same.
        return function.experimental_get_compiler_ir(*specs)(stage="stablehlo", platform_name="CPU")
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return f"not lowered: {str(error).splitlines()[0]}"


if __name__ == "__main__":
    run_bench(main)

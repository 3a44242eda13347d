"""Decoding on a CPU: int8 by onnxruntime beside float32 by TensorFlow, and beside Coqui's PyTorch code; and speaking in real time.

With --peer-python each round is done in turn with Coqui's, by `peer_coqui.py` in a Python that has torch and coqui-tts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.measuring import Windows, print_row, run_bench, tell_machine

# isort: split
import tensorflow as tf

from benchmarks.model import ROWS, THREADS, build_gpt, make_decoding, make_text, start_peer
from myxtts.checkpoints.store import BASE_FOLDER
from myxtts.config import ModelConfig
from myxtts.devices.runtime import set_thread_pools
from myxtts.inference.engine_rows import EngineChoice, open_decoders
from myxtts.inference.generation import Row
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import Synthesizer, load_synthesizer
from myxtts.inference.voices import Voice
from myxtts.models.gpt import GPT
from myxtts.models.sizes import PROMPT_LATENTS
from myxtts.models.weights import find_variable
from myxtts.models.xtts import XTTS, build_decoder, build_dvae
from myxtts.models.xtts import build_gpt as build_sized_gpt
from myxtts.text.tokenizer import Tokenizer

TEXT = "Please come to the meeting in the morning."
MODELS = ("tiny", "big", "base voice")
"""`big` is the published size. The first two have random weights: they say a fixed number of codes."""
WIDTHS = (22, 16, 16, 16, 16, 16)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.engine", description=__doc__)
    parser.add_argument("--peer-python", metavar="PATH", help="the Python that has torch and coqui-tts")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="of each contender (default: 5)")
    parser.add_argument("--codes", metavar="N", type=int, default=120, help="of a sentence (default: 120)")
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="that speaks; may be given again (default: all)"
    )
    arguments = parser.parse_args(words)
    set_thread_pools(THREADS, THREADS)
    with tell_machine(), ExitStack() as stack:
        peer = (
            stack.enter_context(start_peer(arguments.peer_python, arguments.codes)) if arguments.peer_python else None
        )
        windows = Windows()
        for rows in (1, ROWS):
            compare(rows, arguments.codes, arguments.rounds, peer, windows)
        for name in arguments.model or MODELS:
            speak(name, arguments.codes, arguments.rounds, windows)
        print(windows)


def compare(rows: int, codes: int, rounds: int, peer, windows: Windows) -> None:
    """Codes a second of a GPT of 8 x 512, text of 100 tokens and prompt included."""
    contenders = {"int8": make_int8(rows, codes), "float32": make_decoding(rows, "float32", codes)}
    for work in contenders.values():
        work()
    seconds = {name: lambda work=work: clock(work) for name, work in contenders.items()}
    if peer is not None:
        name = "decode" if rows == 1 else f"decode {rows} rows"
        peer.ask({"prepare": name})
        seconds["Coqui"] = lambda: peer.ask({"run": name})["seconds"]
    taken = windows.take_turns(seconds, rounds)
    rates = {name: rows * codes / min(each) for name, each in taken.items()}
    print_row(WIDTHS, f"8 x 512, {rows} rows", *(f"{name} {rate:.0f}/s" for name, rate in rates.items()))
    for other, least in {"float32": 4.0 if rows == 1 else None, "Coqui": 3.5 if rows == 1 else 3.0}.items():
        if least and other in rates:
            gain = rates["int8"] / rates[other]
            print(f"Target   at least {least} times the codes of {other}: {gain:.2f}, {windows.judge(gain >= least)}")
    del contenders
    gc.collect()


def make_int8(rows: int, codes: int) -> Callable[[], object]:
    gpt = build_gpt("step 8x512", "float32")
    say_on(gpt)
    generator, _, note = open_decoders(gpt, "int8", usual_penalty=5.0)
    print(note)
    prompts = tf.random.stateless_normal([rows, PROMPT_LATENTS, gpt.size.width], [1, 2]).numpy()
    texts = make_text(rows).numpy()
    asked = [Row(tuple(texts[row]), Voice(prompts[row], np.zeros(0, np.float32)), (0, row)) for row in range(rows)]
    return lambda: generator.generate(asked, SpeechSettings(max_codes=codes))


def say_on(gpt: GPT) -> None:
    """No sentence ends before it has all its codes."""
    weight = find_variable(gpt, "audio_head.bias")
    bias = weight.numpy()
    bias[gpt.size.stop_audio_token] = -1e4
    weight.assign(bias)


def clock(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def speak(name: str, codes: int, rounds: int, windows: Windows) -> None:
    """Seconds for a second of speech, codes and sound together, and until the first sound of a stream."""

    def measure(synthesizer: Synthesizer, settings: SpeechSettings) -> Callable[[], tuple[float, float]]:
        voice = synthesizer.find_voice()

        def run() -> tuple[float, float]:
            begun, first, samples = time.perf_counter(), 0.0, 0
            for chunk in synthesizer.stream(TEXT, voice, "en", settings):
                first = first or time.perf_counter() - begun
                samples += len(chunk.samples)
            return (time.perf_counter() - begun) * synthesizer.rate_hz / samples, first

        run()
        return run

    for engine in ("int8", "float32"):
        if name == "base voice":
            synthesizer, settings = load_synthesizer(BASE_FOLDER, engine=engine), SpeechSettings(seed=1)
        else:
            synthesizer, settings = build(name, engine), SpeechSettings(max_codes=codes)
        taken = windows.take_turns({engine: measure(synthesizer, settings)}, rounds)[engine]
        cost, first = (min(each) for each in zip(*taken, strict=True))
        cells = f"{engine}", f"{cost:.3f} s/s", f"first {first:.2f} s"
        print_row(WIDTHS, f"{name}, {synthesizer.vocoder.name}", *cells)
        if engine == "int8":
            most = 1.0 if name == "big" else 1 / 8
            print(f"Target   a second of speech in at most {most} s: {cost:.3f}, {windows.judge(cost <= most)}")
            if name == "big":
                print(f"Target   first sound within 1.5 s: {first:.2f}, {windows.judge(first <= 1.5)}")
        del synthesizer
        gc.collect()


def build(name: str, engine: EngineChoice) -> Synthesizer:
    tokenizer = Tokenizer(Path(BASE_FOLDER, "vocab.json"))
    config = ModelConfig(size=name, text_tokens=tokenizer.text_tokens)
    gpt = build_sized_gpt(config, seed=1, start_text_token=tokenizer.start_id, stop_text_token=tokenizer.stop_id)
    say_on(gpt)
    xtts = XTTS(gpt, decoder=build_decoder(config, seed=1), dvae=build_dvae(config, seed=1))
    draw = np.random.default_rng(1)
    speaker = {
        "gpt_cond_latent": draw.standard_normal((1, PROMPT_LATENTS, config.gpt_width)).astype(np.float32),
        "speaker_embedding": draw.standard_normal((1, 512, 1)).astype(np.float32),
    }
    return Synthesizer(xtts, tokenizer, speakers={"Ana": speaker}, engine=engine)


if __name__ == "__main__":
    run_bench(main)

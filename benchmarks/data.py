"""Reading: utterances/s by stage, and our reader against a plain loop, naive tf.data and the machine's own parallel gain.

Takes every flag of `myxtts train` and the same --config.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measuring import Windows, answer_questions, print_load, print_machine, run_bench, start_module
from myxtts.audio.reading import inspect_clip, read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.cli.parser import Parser
from myxtts.config import DataConfig, XTTSConfig, resolve_config
from myxtts.config.sources import add_setting_flags
from myxtts.data.buckets import plan_buckets
from myxtts.data.corpus import Corpus, TextIds
from myxtts.data.drops import DropReport
from myxtts.data.host_batches import BatchMaker, BatchReader
from myxtts.data.loaders import (
    Engine,
    LoadingEngine,
    choose_engine,
    choose_read_ahead,
    choose_workers,
    explain_no_native_loading,
    start_engine,
)
from myxtts.data.run_data import collect_run_data
from myxtts.data.sampler import IndexSampler, Position, follow_position
from myxtts.text.tokenizer import Tokenizer
from myxtts.units import SAMPLE_RATE_HZ

SHOWN = (
    "data.train_data", "data.language", "data.vocabulary", "data.batch_size", "data.num_workers",
    "data.pipeline_buffer_size", "data.use_tf_native_loading",
)  # fmt: skip
MOST_CLIPS = 2000
"""As many clips of a corpus are read, over and over: they stay in memory, so that it is not the disk that is measured."""
STAGE_CLIPS = 64
TARGET_SHARE = 0.85
"""Of the machine's own parallel gain: what our reader must at least reach over the plain loop."""
LEAST_NAIVE_BATCHES = 20
"""tf.data needs some batches to find its own settings."""
PLAIN, NAIVE = "plain loop, one thread", "naive tf.data"
ONE_PINNED, ALL_PINNED = "one pinned process, decoding", "all pinned processes, decoding"


Contender = Callable[[], AbstractContextManager[Iterator[int]]]
"""Opens whatever reads, without end: how many clips each time."""


def main(words: Sequence[str]) -> None:
    if words[:1] == ["decode"]:
        decode_when_asked(int(words[1]))
        return
    parser = Parser(prog="benchmarks.data", description=__doc__ or "")
    parser.add_argument("--seconds", metavar="N", type=float, default=1.0, help="of each window (default: 1)")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="windows of each contender (default: 5)")
    add_setting_flags(parser, show=SHOWN)
    arguments = parser.parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    print_machine()
    with TemporaryDirectory(prefix="myxtts-bench-") as folder:
        material = prepare_material(config, Path(folder))
        bench_stages(material, arguments.seconds)
        bench_readers(material, config.data, arguments.seconds, arguments.rounds)
    print_load("after")


@dataclass(frozen=True, eq=False)
class Material:
    """What is read."""

    corpus: Corpus
    ids: TextIds
    sampler: IndexSampler
    tokenizer: Tokenizer

    def iterate_batches(self) -> Iterator[list[int]]:
        """Clip numbers, micro-batch by micro-batch, without end."""
        for step in itertools.count():
            for micro_batch in self.sampler.make_batch(step).micro_batches:
                yield [clip for clip in micro_batch.clips.tolist() if clip >= 0]

    def take_clips(self, count: int) -> list[int]:
        """The first clips in the order of the run."""
        return list(itertools.islice(itertools.chain.from_iterable(self.iterate_batches()), count))

    def make_maker(self) -> BatchMaker:
        return BatchMaker(self.corpus, self.ids, self.sampler)

    def format_rate(self, name: str, clips_per_s: float | None) -> str:
        if clips_per_s is None:
            return f"{name:<32}    not needed"
        return f"{name:<32}  {clips_per_s:>12.0f}  {clips_per_s * self.corpus.total_seconds / len(self.corpus):>9.0f}"


def prepare_material(config: XTTSConfig, folder: Path) -> Material:
    """Clips from all over the corpus of a run, with their texts and batches."""
    data = collect_run_data(config, folder=folder)
    some = np.linspace(0, len(data.train) - 1, min(len(data.train), MOST_CLIPS)).astype(np.intp)
    corpus, ids = data.train.take(some), data.train_ids.take(some)
    plan = plan_buckets(corpus.samples, corpus.tokens, batch_size=config.data.batch_size)
    sampler = IndexSampler(plan, seed=config.training.seed, accumulation=config.training.gradient_accumulation_steps)
    print(
        f"Corpus   {corpus.root}: {len(corpus)} clips of {corpus.total_seconds / len(corpus):.1f} s on average, read from memory"
    )
    return Material(corpus, ids, sampler, Tokenizer(data.tokenizer_path))


def bench_stages(material: Material, seconds: float) -> None:
    """What each stage does on one thread with nothing else to do."""
    corpus, tokenizer, clips = material.corpus, material.tokenizer, material.take_clips(STAGE_CLIPS)
    rates_hz = {clip: inspect_clip(corpus.find_file(clip)).rate_hz for clip in clips}
    decoded = {clip: read_clip(corpus.find_file(clip), rates_hz[clip]) for clip in clips}
    foreign = [clip for clip in clips if rates_hz[clip] != SAMPLE_RATE_HZ]

    def work_on(work: Callable[[int], Any], chosen: Sequence[int] = clips) -> Iterator[int]:
        for clip in itertools.cycle(chosen):
            work(clip)
            yield 1

    stages: Mapping[str, Iterator[int]] = {
        "read bytes": work_on(lambda clip: corpus.find_file(clip).read_bytes()),
        "decode": work_on(lambda clip: read_clip(corpus.find_file(clip), rates_hz[clip])),
        "resample": work_on(lambda clip: resample_clip(decoded[clip], rates_hz[clip], SAMPLE_RATE_HZ), foreign),
        "tokenise": work_on(lambda clip: tokenizer.encode(corpus.text[clip], corpus.language[clip])),
        "assemble": assemble(material),
    }
    print("\nstage (one thread, alone)         utterances/s  audio s/s")
    for name, pieces in stages.items():
        is_needed = name != "resample" or foreign
        print(material.format_rate(name, count_clips(pieces, seconds) if is_needed else None), flush=True)


def assemble(material: Material) -> Iterator[int]:
    """Makes the first batch again and again from samples that are in memory."""
    maker, batch = material.make_maker(), material.sampler.make_batch(0)
    clips, bucket = batch.micro_batches[0].clips.tolist(), batch.micro_batches[0].bucket
    wavs = {clip: read_clip(material.corpus.find_file(clip)) for clip in clips if clip >= 0}
    while True:
        wav_BS = np.zeros((len(clips), bucket.samples), np.float32)
        for row, clip in enumerate(clips):
            if clip >= 0:
                wav_BS[row, : len(wavs[clip])] = wavs[clip]
        maker.make_batch(batch, Position(0), wav_BS)
        yield len(wavs)


def bench_readers(material: Material, data: DataConfig, seconds: float, rounds: int) -> None:
    """All contenders in turn; medians over their windows."""
    workers = max(1, choose_workers(data))
    ahead = choose_read_ahead(data, [material.sampler.plan], accumulation=material.sampler.accumulation)
    choice = choose_engine(data, [material.corpus])
    is_plain_wav = explain_no_native_loading([material.corpus]) is None
    engines = dict.fromkeys([Engine.PROCESSES, *([Engine.NATIVE] if is_plain_wav else []), choice.engine])
    contenders: dict[str, Contender] = {
        PLAIN: partial(open_plain_loop, material),
        NAIVE: partial(open_naive_dataset, material, data.batch_size, is_plain_wav),
        ONE_PINNED: partial(open_pinned_processes, material, 1, seconds),
        ALL_PINNED: partial(open_pinned_processes, material, workers, seconds),
        **{
            f"ours, {engine}": partial(open_reader, material, partial(start_engine, engine, data, ahead), ahead.depth)
            for engine in engines
        },
    }
    windows = Windows()
    least = {NAIVE: LEAST_NAIVE_BATCHES, **{f"ours, {engine}": ahead.depth for engine in engines}}
    taken = windows.take_turns(
        {name: partial(time_window, each, seconds, least.get(name, 1)) for name, each in contenders.items()}, rounds
    )
    rates = {name: median(found) for name, found in taken.items()}
    in_force, plain = f"ours, {choice.engine}", rates[PLAIN]
    print(f"\nbatches of {data.batch_size:<20}   utterances/s  audio s/s  x plain loop")
    for name, rate in rates.items():
        mark = "  <- a run uses this" if name == in_force else ""
        print(f"{material.format_rate(name, rate)}  {rate / plain:>12.2f}{mark}")
    why = f"not in force: {choice.why_not_native}" if choice.why_not_native else "in force"
    print(f"\nTF-native loading is {why}.")
    ours = rates[in_force]
    if data.prompt_from == "speaker":
        print("Training reads a second clip for each voice prompt (prompt_from speaker), so")
        print(f"it gets at most {ours / 2:.0f} utterances/s of what is read here.")
    # With one worker the same thing is measured twice: what differs is the machine's mood.
    gain = rates[ALL_PINNED] / rates[ONE_PINNED] if workers > 1 else 1.0
    print(f"The machine's own parallel gain: {gain:.2f} ({workers} pinned processes over one).")
    print(
        f"Target   {TARGET_SHARE} of it, {TARGET_SHARE * gain:.2f} times the plain loop: {ours / plain:.2f}, ", end=""
    )
    print(windows.judge(ours / plain >= TARGET_SHARE * gain))
    over_naive = ours / rates[NAIVE]
    print(
        f"Target   not below naive tf.data: {over_naive:.2f} times as fast, {windows.judge(over_naive >= 1)}\n{windows}"
    )


def time_window(contender: Contender, seconds: float, least: int) -> float:
    """The rate of a contender, after so many batches as it may have had ready, and some time."""
    with contender() as batches:
        count_clips(batches, 0.3 * seconds, least)
        return count_clips(batches, seconds)


def count_clips(batches: Iterator[int], seconds: float, least: int = 1) -> float:
    """Clips per second, over at least so many seconds and batches."""
    taken: list[int] = []
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds or len(taken) < least:
        taken.append(next(batches))
    return sum(taken) / elapsed


@contextmanager
def open_plain_loop(material: Material) -> Iterator[Iterator[int]]:
    """What one would write first: read, tokenise and pad, one clip after the other."""
    corpus = material.corpus

    def loop() -> Iterator[int]:
        for clips in material.iterate_batches():
            wavs = [read_clip(corpus.find_file(clip)) for clip in clips]
            texts = [material.tokenizer.encode(corpus.text[clip], corpus.language[clip]) for clip in clips]
            wav_BS = np.zeros((len(clips), max(map(len, wavs))), np.float32)
            text_BL = np.zeros((len(clips), max(map(len, texts))), np.int32)
            for row, (wav, text) in enumerate(zip(wavs, texts, strict=True)):
                wav_BS[row, : len(wav)] = wav
                text_BL[row, : len(text)] = text
            yield len(clips)

    yield loop()


@contextmanager
def open_reader(material: Material, make_engine: Callable[[], LoadingEngine], depth: int) -> Iterator[Iterator[int]]:
    """Our reader, as a run uses it."""
    report = DropReport(lines=len(material.corpus), kept_seconds=material.corpus.total_seconds)

    def loop(reader: BatchReader) -> Iterator[int]:
        position = Position(0)
        while True:
            yield int(np.count_nonzero(reader.read(position).weights_B))
            position = follow_position(material.sampler, position)

    with make_engine() as engine, BatchReader(material.make_maker(), engine, depth=depth, report=report) as reader:
        yield loop(reader)


@contextmanager
def open_naive_dataset(material: Material, batch_size: int, is_plain_wav: bool) -> Iterator[Iterator[int]]:
    """Clips in the order of the run through `map`, `padded_batch` and `prefetch`, each with tf.data's own tuning.

    Its texts are tokenised beforehand, which is more than it would get in life. Plain wav is decoded by TensorFlow's own
    operation, other formats by a Python function, as they need it.
    """
    # Not above: a process that only decodes must not wait for it. In this order: the first imports it without its remarks.
    from myxtts.devices import runtime  # noqa: F401

    # isort: split
    import tensorflow as tf

    def decode_wav(path: Any) -> Any:
        return tf.audio.decode_wav(tf.io.read_file(path), desired_channels=1).audio[:, 0]

    def decode_anything(path: Any) -> Any:
        wav_S = tf.numpy_function(lambda name: read_clip(os.fsdecode(name)), [path], tf.float32, stateful=False)
        wav_S.set_shape([None])
        return wav_S

    def load(path: Any, text: Any) -> Any:
        return decode_wav(path) if is_plain_wav else decode_anything(path), text

    steps = range(material.sampler.steps_per_epoch)
    order = np.concatenate([material.sampler.make_batch(step).clips for step in steps]).astype(np.intp)
    ids = material.ids.take(order)
    paths = tf.constant([os.fsencode(material.corpus.find_file(clip)) for clip in order.tolist()])
    texts = tf.RaggedTensor.from_row_splits(ids.ids.astype(np.int32), ids.offsets)
    dataset = tf.data.Dataset.from_tensor_slices((paths, texts)).repeat().map(load, num_parallel_calls=tf.data.AUTOTUNE)
    batches = dataset.padded_batch(batch_size).prefetch(tf.data.AUTOTUNE)
    yield (len(wav_BS) for wav_BS, _ in batches)


@contextmanager
def open_pinned_processes(material: Material, count: int, seconds: float) -> Iterator[Iterator[int]]:
    """Processes that only decode, each on a core of its own. Counts what all of them do in `seconds`, at the same time."""
    cores = sorted(os.sched_getaffinity(0))
    paths = [str(material.corpus.find_file(clip)) for clip in material.take_clips(STAGE_CLIPS)]
    with ExitStack() as stack:
        children = [start_module("benchmarks.data", "decode", str(cores[n % len(cores)])) for n in range(count)]
        for child in children:
            stack.enter_context(child).send(paths)

        def loop() -> Iterator[int]:
            while True:
                for child in children:
                    child.send(seconds)
                yield sum(child.receive() for child in children)

        yield loop()


def decode_when_asked(core: int) -> None:
    """The work of a pinned process: is given paths, then seconds, and answers with the clips decoded in them."""
    os.sched_setaffinity(0, [core])
    order = itertools.cycle(json.loads(sys.stdin.readline()))

    def decode(seconds: float) -> int:
        clips, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            read_clip(next(order))
            clips += 1
        return clips

    answer_questions(decode)


if __name__ == "__main__":
    run_bench(main)

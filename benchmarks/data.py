"""Reading: utterances/s by stage, and our reader against a plain loop, naive tf.data and the machine's own parallel gain.

Takes every flag of `myxtts train` and the same --config.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measuring import Windows, answer_questions, print_row, run_bench, start_module, tell_machine
from myxtts.audio.reading import inspect_clip, read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.cli.parser import Parser
from myxtts.config import DataConfig, XTTSConfig, resolve_config
from myxtts.config.sources import add_setting_flags
from myxtts.data.buckets import plan_buckets
from myxtts.data.corpus import Corpus
from myxtts.data.drops import DropReport
from myxtts.data.host_batches import BatchReader, CorpusBatches
from myxtts.data.loaders import (
    Engine,
    ReadAhead,
    choose_engine,
    choose_read_ahead,
    choose_readers,
    explain_no_native_loading,
    open_engine,
)
from myxtts.data.run_data import RunData, collect_run_data
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
WIDTHS = (32, 14, 11, 14)


def main(words: Sequence[str]) -> None:
    if words[:1] == ["decode"]:
        decode_when_asked(int(words[1]))
        return
    parser = Parser("benchmarks.data")
    parser.description = __doc__
    parser.add_argument("--seconds", metavar="N", type=float, default=1.0, help="of each window (default: 1)")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="windows of each contender (default: 5)")
    add_setting_flags(parser, show=SHOWN)
    arguments = parser.parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    with tell_machine(), TemporaryDirectory(prefix="myxtts-bench-") as folder:
        data = collect_run_data(config, folder=Path(folder))
        maker, tokenizer = choose_clips(data, config), Tokenizer(data.tokenizer_path)
        bench_stages(maker, tokenizer, arguments.seconds)
        bench_readers(maker, tokenizer, config.data, arguments.seconds, arguments.rounds)


def choose_clips(data: RunData, config: XTTSConfig) -> CorpusBatches:
    """Makes batches of clips from all over the corpus of a run."""
    some = np.linspace(0, len(data.train) - 1, min(len(data.train), MOST_CLIPS)).astype(np.intp)
    corpus = data.train.take(some)
    plan = plan_buckets(corpus.samples, corpus.tokens, batch_size=config.data.batch_size)
    sampler = IndexSampler(plan, seed=config.training.seed, accumulation=config.training.gradient_accumulation_steps)
    average_s = corpus.total_seconds / len(corpus)
    print(f"Corpus   {corpus.root}: {len(corpus)} clips of {average_s:.1f} s on average, read from memory")
    return CorpusBatches(corpus, sampler)


def bench_stages(maker: CorpusBatches, tokenizer: Tokenizer, seconds: float) -> None:
    """What each stage does on one thread with nothing else to do."""
    corpus, clips = maker.corpus, take_clips(maker)
    rates_hz = {clip: inspect_clip(corpus.find_file(clip)).rate_hz for clip in clips}
    decoded = {clip: read_clip(corpus.find_file(clip), rates_hz[clip]) for clip in clips}
    foreign = [clip for clip in clips if rates_hz[clip] != SAMPLE_RATE_HZ]

    def work_on(work: Callable[[int], Any], chosen: Sequence[int] = clips) -> Iterator[int]:
        for clip in itertools.cycle(chosen):
            work(clip)
            yield 1

    stages = {
        "read bytes": work_on(lambda clip: corpus.find_file(clip).read_bytes()),
        "decode": work_on(lambda clip: read_clip(corpus.find_file(clip), rates_hz[clip])),
        "resample": work_on(lambda clip: resample_clip(decoded[clip], rates_hz[clip], SAMPLE_RATE_HZ), foreign),
        "tokenise": work_on(lambda clip: tokenizer.encode(corpus.text[clip], corpus.language[clip])),
        "assemble": assemble(maker),
    }
    print()
    print_row(WIDTHS, "stage (one thread, alone)", "utterances/s", "audio s/s")
    for name, pieces in stages.items():
        if name == "resample" and not foreign:
            print_row(WIDTHS, name, "not needed")
        else:
            print_row(WIDTHS, name, *format_rate(corpus, count_clips(pieces, seconds)))


def format_rate(corpus: Corpus, clips_per_s: float) -> tuple[str, str]:
    """Clips a second, and seconds of audio."""
    return f"{clips_per_s:.0f}", f"{clips_per_s * corpus.total_seconds / len(corpus):.0f}"


def bench_readers(maker: CorpusBatches, tokenizer: Tokenizer, data: DataConfig, seconds: float, rounds: int) -> None:
    """All contenders in turn; medians over their windows."""
    corpora, workers = [maker.corpus], max(1, choose_readers(data))
    ahead = choose_read_ahead(data, [maker.sampler.plan], accumulation=maker.sampler.accumulation)
    chosen, why_not = choose_engine(data, corpora)
    is_plain_wav = explain_no_native_loading(corpora) is None
    engines = dict.fromkeys([Engine.PROCESSES, *([Engine.NATIVE] if is_plain_wav else []), chosen])

    def time_window(least: int, read: Callable[..., Iterator[int]], *what: Any) -> float:
        """The rate of a contender, after so many batches as it may have had ready, and some time."""
        with closing(read(maker, *what)) as batches:
            count_clips(batches, 0.3 * seconds, least)
            return count_clips(batches, seconds)

    contenders = {
        PLAIN: partial(time_window, 1, read_plainly, tokenizer),
        NAIVE: partial(time_window, LEAST_NAIVE_BATCHES, read_naively, data.batch_size, is_plain_wav),
        ONE_PINNED: partial(time_window, 1, decode_pinned, 1, seconds),
        ALL_PINNED: partial(time_window, 1, decode_pinned, workers, seconds),
    }
    for engine in engines:
        contenders[f"ours, {engine}"] = partial(time_window, ahead.depth, read_by_engine, engine, data, ahead)
    windows = Windows()
    rates = {name: median(found) for name, found in windows.take_turns(contenders, rounds).items()}
    in_force, plain = f"ours, {chosen}", rates[PLAIN]
    print()
    print_row(WIDTHS, f"batches of {data.batch_size}", "utterances/s", "audio s/s", "x plain loop")
    for name, rate in rates.items():
        mark = "  <- a run uses this" if name == in_force else ""
        print_row(WIDTHS, name, *format_rate(maker.corpus, rate), f"{rate / plain:.2f}", mark)
    why = f"not in force: {why_not}" if why_not else "in force"
    print(f"\nTF-native loading is {why}.")
    ours = rates[in_force]
    if data.prompt_from == "speaker":
        print("Training reads a second clip for each voice prompt (prompt_from speaker), so")
        print(f"it gets at most {ours / 2:.0f} utterances/s of what is read here.")
    # With one worker the same thing is measured twice: what differs is the machine's mood.
    gain = rates[ALL_PINNED] / rates[ONE_PINNED] if workers > 1 else 1.0
    asked, found, over_naive = TARGET_SHARE * gain, ours / plain, ours / rates[NAIVE]
    print(f"The machine's own parallel gain: {gain:.2f} ({workers} pinned processes over one).")
    print(
        f"Target   {TARGET_SHARE} of it, {asked:.2f} times the plain loop: {found:.2f}, {windows.judge(found >= asked)}"
    )
    print(f"Target   not below naive tf.data: {over_naive:.2f} times as fast, {windows.judge(over_naive >= 1)}")
    print(windows)


def count_clips(batches: Iterator[int], seconds: float, least: int = 1) -> float:
    """Clips per second, over at least so many seconds and batches."""
    taken: list[int] = []
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds or len(taken) < least:
        taken.append(next(batches))
    return sum(taken) / elapsed


def iterate_batches(maker: CorpusBatches) -> Iterator[list[int]]:
    """Clip numbers, micro-batch by micro-batch, without end."""
    for step in itertools.count():
        for micro_batch in maker.sampler.make_batch(step).micro_batches:
            yield [clip for clip in micro_batch.clips.tolist() if clip >= 0]


def take_clips(maker: CorpusBatches) -> list[int]:
    """The first clips in the order of the run."""
    return list(itertools.islice(itertools.chain.from_iterable(iterate_batches(maker)), STAGE_CLIPS))


# What is measured: each reads without end, and says how many clips each time.


def assemble(maker: CorpusBatches) -> Iterator[int]:
    """Makes the first batch again and again from samples that are in memory."""
    batch = maker.sampler.make_batch(0)
    clips, bucket = batch.micro_batches[0].clips.tolist(), batch.micro_batches[0].bucket
    wavs = {row: read_clip(maker.corpus.find_file(clip)) for row, clip in enumerate(clips) if clip >= 0}
    while True:
        wav_BS = np.zeros((len(clips), bucket.samples), np.float32)
        for row, wav in wavs.items():
            wav_BS[row, : len(wav)] = wav
        maker.make_batch(batch, Position(0), wav_BS)
        yield len(wavs)


def read_plainly(maker: CorpusBatches, tokenizer: Tokenizer) -> Iterator[int]:
    """What one would write first: read, tokenise and pad, one clip after the other."""
    corpus = maker.corpus
    for clips in iterate_batches(maker):
        wavs = [read_clip(corpus.find_file(clip)) for clip in clips]
        texts = [tokenizer.encode(corpus.text[clip], corpus.language[clip]) for clip in clips]
        wav_BS = np.zeros((len(clips), max(map(len, wavs))), np.float32)
        text_BL = np.zeros((len(clips), max(map(len, texts))), np.int32)
        for row, (wav, text) in enumerate(zip(wavs, texts, strict=True)):
            wav_BS[row, : len(wav)] = wav
            text_BL[row, : len(text)] = text
        yield len(clips)


def read_by_engine(maker: CorpusBatches, engine: Engine, data: DataConfig, ahead: ReadAhead) -> Iterator[int]:
    """Our reader, as a run uses it."""
    report = DropReport(lines=len(maker.corpus), kept_seconds=maker.corpus.total_seconds)
    position = Position(0)
    readers = 0 if engine is Engine.HERE else max(1, choose_readers(data))
    chosen = data.model_copy(update={"use_tf_native_loading": engine is Engine.NATIVE, "num_workers": readers})
    with (
        open_engine(chosen, [maker.corpus], ahead) as started,
        BatchReader(maker, started, depth=ahead.depth, report=report) as reader,
    ):
        while True:
            yield int(np.count_nonzero(reader.read(position).weights_B))
            position = follow_position(maker.sampler, position)


def read_naively(maker: CorpusBatches, batch_size: int, is_plain_wav: bool) -> Iterator[int]:
    """Clips in the order of the run through `map`, `padded_batch` and `prefetch`, each with tf.data's own tuning.

    Its texts are tokenised beforehand, which is more than it would get in life. Plain wav is decoded by TensorFlow's own
    operation, other formats by a Python function, as they need it.
    """
    # Not above: a process that only decodes must not wait for it. In this order: the first imports it without its remarks.
    from myxtts.devices import runtime  # noqa: F401

    # isort: split
    import tensorflow as tf

    def load(path: Any, text: Any) -> Any:
        if is_plain_wav:
            return tf.audio.decode_wav(tf.io.read_file(path), desired_channels=1).audio[:, 0], text
        wav_S = tf.numpy_function(lambda name: read_clip(os.fsdecode(name)), [path], tf.float32, stateful=False)
        wav_S.set_shape([None])
        return wav_S, text

    steps = range(maker.sampler.steps_per_epoch)
    order = np.concatenate([maker.sampler.make_batch(step).clips for step in steps]).astype(np.intp)
    ids = maker.corpus.ids.take(order)
    paths = tf.constant([os.fsencode(maker.corpus.find_file(clip)) for clip in order.tolist()])
    texts = tf.RaggedTensor.from_row_splits(ids.ids.astype(np.int32), ids.offsets)
    dataset = tf.data.Dataset.from_tensor_slices((paths, texts)).repeat().map(load, num_parallel_calls=tf.data.AUTOTUNE)
    for wav_BS, _ in dataset.padded_batch(batch_size).prefetch(tf.data.AUTOTUNE):
        yield len(wav_BS)


def decode_pinned(maker: CorpusBatches, count: int, seconds: float) -> Iterator[int]:
    """Processes that only decode, each on a core of its own. Counts what all of them do in `seconds`, at the same time."""
    cores = sorted(os.sched_getaffinity(0))
    paths = [str(maker.corpus.find_file(clip)) for clip in take_clips(maker)]
    words = [("decode", str(cores[number % len(cores)])) for number in range(count)]
    with ExitStack() as stack:
        children = [stack.enter_context(start_module("benchmarks.data", *each)) for each in words]
        for child in children:
            child.send(paths)
        while True:
            for child in children:
                child.send(seconds)
            yield sum(child.receive() for child in children)


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

"""`myxtts bench data`: how fast this machine turns clips into batches, and against what."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.bench_seconds import add_seconds_flag, read_seconds
from myxtts.cli.parser import Parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.flags import add_setting_flags

if TYPE_CHECKING:
    from myxtts.data.corpus import Corpus
    from myxtts.data.throughput import Rate
    from myxtts.data.throughput_bench import BenchResult
    from myxtts.data.throughput_loops import Material
    from myxtts.data.workers import Task

SHOWN = (
    "data.train_data", "data.language", "data.vocabulary", "data.batch_size", "data.num_workers",
    "data.pipeline_buffer_size", "data.use_tf_native_loading",
)  # fmt: skip

ROUNDS = 5
MOST_CLIPS = 2000
"""As many clips of a corpus are read, over and over: they stay in memory, so that it is not the disk that is measured."""


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Measure reading: each stage alone, then our reader against a plain loop, naive tf.data and the machine's "
        "own parallel gain, in turn. Takes every flag of `train` and the same --config.",
    )
    add_seconds_flag(parser, 1.0)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures")
    add_setting_flags(parser, show=SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    from myxtts.checkpoints.atomic_directory import open_scratch_folder

    arguments = build_parser(prog).parse_all(words)
    seconds = read_seconds(arguments)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # Not imported above: --help needs none of it.
    from myxtts.cli.files import check_writable, write_text
    from myxtts.data.throughput_bench import bench_reading
    from myxtts.devices.environment import VISIBLE_DEVICES, prepare_environment

    check_writable(arguments.json)
    # Reading needs no GPU, and TensorFlow would take the memory of each that it sees.
    os.environ[VISIBLE_DEVICES] = ""
    prepare_environment(os.environ)
    with open_scratch_folder("bench") as folder:
        material = prepare_material(config, folder)
        result = bench_reading(material, config.data, seconds, ROUNDS)
    print(format_result(result, material.corpus.root))
    if arguments.json:
        figures = {
            "corpus": str(material.corpus.root),
            **asdict(result),
            "machine_gain": result.machine_gain,
            "gain": result.gain,
            "over_naive": result.over_naive,
            "rows_per_s": result.rows_per_s,
        }
        write_text(arguments.json, json.dumps(figures, indent=1) + "\n")
        print(f"Figures  {arguments.json}")
    return 0


def prepare_material(config: XTTSConfig, folder: Path) -> Material:
    """Some clips of the corpus, their texts and their batches. Without a vocabulary one is made in `folder`."""
    from myxtts.data.buckets import plan_buckets
    from myxtts.data.checks import make_vocabulary_task
    from myxtts.data.sampler import IndexSampler
    from myxtts.data.scan_choice import scan_train_data
    from myxtts.data.text_ids import collect_text_ids
    from myxtts.data.throughput_loops import Material
    from myxtts.data.vocabulary_choice import make_vocabulary

    vocabulary = Path(config.data.vocabulary) if config.data.vocabulary else folder / "vocab.json"

    def choose_text_task(corpus: Corpus) -> Task:
        if not config.data.vocabulary:
            make_vocabulary(_thin_out(corpus), vocabulary, most_tokens=config.model.text_tokens)
        return make_vocabulary_task(vocabulary)

    corpus = _thin_out(scan_train_data(config, choose_text_task).corpus)
    ids = collect_text_ids(corpus, vocabulary, workers=0, folder=None)
    plan = plan_buckets(corpus.samples, corpus.tokens, batch_size=config.data.batch_size)
    sampler = IndexSampler(plan, seed=config.training.seed, accumulation=config.training.gradient_accumulation_steps)
    return Material(corpus, ids, sampler, vocabulary)


def _thin_out(corpus: Corpus) -> Corpus:
    """At most `MOST_CLIPS` clips, from all over the corpus."""
    import numpy as np

    return corpus.take(np.linspace(0, len(corpus) - 1, min(len(corpus), MOST_CLIPS)).astype(np.intp))


def format_result(result: BenchResult, root: Path) -> str:
    """The figures as plain text, within 80 columns."""
    from myxtts.data.throughput_bench import PLAIN, TARGET_SHARE

    needed = TARGET_SHARE * result.machine_gain
    plain = result.loading[PLAIN].clips_per_s
    lines = [
        f"Corpus   {root}: {result.clips} clips of {result.mean_seconds:.1f} s on average, read from memory",
        f"Machine  {result.workers} workers; load average {result.load_average[0]:.1f} before, "
        f"{result.load_average[1]:.1f} after; {result.discarded} of {result.windows + result.discarded} windows discarded (steal)",
        "",
        "stage (one thread, alone)         utterances/s  audio s/s",
        *(_format_row(name, rate) for name, rate in result.stages.items()),
        "",
        f"batches of {result.batch_size:<20}   utterances/s  audio s/s  x plain loop",
        *(
            f"{_format_row(name, rate)}  {rate.clips_per_s / plain:>12.2f}{'  <- a run uses this' if name == result.in_force else ''}"
            for name, rate in result.loading.items()
        ),
        "",
        f"TF-native loading is not in force: {result.native_objection}."
        if result.native_objection
        else "TF-native loading is in force.",
        *_describe_prompts(result),
        f"The machine's own parallel gain: {result.machine_gain:.2f} ({result.workers} pinned processes over one).",
        f"Target   {TARGET_SHARE} of it, {needed:.2f} times the plain loop: {result.gain:.2f}, {_judge(result.gain >= needed)}",
        f"Target   not below naive tf.data: {result.over_naive:.2f} times as fast, {_judge(result.over_naive >= 1)}",
    ]
    if result.was_busy:
        lines.append(
            "Warning  the machine was busy, and a contender with more threads then gets more of it: measure again."
        )
    return "\n".join(lines)


def _describe_prompts(result: BenchResult) -> list[str]:
    if result.clips_per_row == 1:
        return []
    return [
        "Training reads a second clip for each voice prompt (prompt_from speaker), so",
        f"it gets at most {result.rows_per_s:.0f} utterances/s of what is read here.",
    ]


def _format_row(name: str, rate: Rate | None) -> str:
    if rate is None:
        return f"{name:<32}    not needed"
    return f"{name:<32}  {rate.clips_per_s:>12.0f}  {rate.audio_seconds_per_s:>9.0f}"


def _judge(is_met: bool) -> str:
    return "met" if is_met else "not met"

"""Runs that are measured: the training alone, the pipeline alone, and both together.

Of both together nobody waits for a step in one half, as in a run: what a step takes. In the other every step is waited for, so that
its time is its own and not that of whoever asks for a number later: what it is made of."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.eager.polymorphic_function import compiler_ir
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

from myxtts.checkpoints import write_model_directory
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.devices.plan import DevicePlan
from myxtts.errors import UserError
from myxtts.models.sizes import MEL_CHANNELS
from myxtts.models.weights import to_checkpoint
from myxtts.models.xtts import build_dvae
from myxtts.monitoring.profile_facts import BatchTimes, Launches
from myxtts.pipeline.batch import Batch, Span
from myxtts.pipeline.batches import PRODUCER_FOLDER, Batches, open_batches
from myxtts.pipeline.codes import FOLDER_NAME, choose_cache_folder
from myxtts.pipeline.recipe import BatchRecipe, Target, choose_preparation
from myxtts.pipeline.threads import SLOTS
from myxtts.training.model import build_codec_step, build_gpt_step
from myxtts.training.starting_point import (
    MEL_STATISTICS,
    Codec,
    StartingPoint,
    find_codec,
    fit_model_config,
    read_codec,
    read_starting_point,
)
from myxtts.training.step import UpdateMaker, split_rows
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)

NEVER = 10**6
"""Steps; no measurement comes so far."""
EVEN_NORMS = np.ones(MEL_CHANNELS, np.float32)
"""Mel statistics that change nothing."""


@dataclass(frozen=True, eq=False)
class ProfileSetup:
    """Everything a profile needs, before the model is built."""

    config: XTTSConfig
    plan: DevicePlan
    data: RunData
    codec: Codec | None
    """None when the codec itself is trained."""
    start: StartingPoint | None
    folder: Path
    notes: tuple[str, ...] = ()
    """What differs from the run that was asked for."""

    def open_batches(self, recipe: BatchRecipe | None = None) -> Batches:
        """The batches of the run, or of another recipe."""
        return open_batches(recipe or self.make_recipe(), self.data, folder=self.folder / PRODUCER_FOLDER)

    def make_recipe(self, *, keeps_codes_aside: bool = False) -> BatchRecipe:
        """What batches are made of: no validation, and no end. Codes may be kept aside: in the profile's own folder, where none are at first."""
        codec = self.codec
        target, norms = (Target.CODEC, EVEN_NORMS) if codec is None else (Target.GPT, codec.mel_norms)
        # Codes of weights that nobody keeps are not kept beside the corpus.
        is_aside = keeps_codes_aside or codec is None or codec.folder.is_relative_to(self.folder)
        return BatchRecipe(
            config=self.config,
            plan=self.plan,
            preparation=choose_preparation(self.config, target, norms.tolist(), speakers=self.data.speakers),
            validation_interval=NEVER,
            first_step=0,
            end_step=NEVER,
            codec_folder=None if codec is None else codec.folder,
            cache_folder=self.folder / FOLDER_NAME if is_aside else choose_cache_folder(self.data, self.folder),
        )


def set_up_profile(config: XTTSConfig, plan: DevicePlan, folder: Path) -> ProfileSetup:
    """The run of a configuration, its data read and its codec found, in a folder. The plan must be in force already."""
    start, codec, notes, trains_codec = None, None, list[str](), config.training.stage == "codec"
    if not trains_codec and config.training.init_from:
        start = read_starting_point(Path(config.training.init_from), folder, is_resumed=False)
    data = collect_run_data(config, folder=folder, vocabulary=None if start is None else start.vocabulary)
    if not trains_codec and (codec := find_codec(config, start)) is None:
        # On the host: the device that prepares loads it from the folder, as it does in a run.
        with get_device_context("/CPU:0"):
            weights = to_checkpoint(build_dvae(config.model, seed=0))
        write_model_directory(folder / "codec", config=config, model={MEL_STATISTICS: EVEN_NORMS}, dvae=weights)
        codec = read_codec(folder / "codec")
        notes.append("No codec was given: one of random weights prepares here. It costs the same.")
    fitted = fit_model_config(config, start, None if codec is None else codec.config, data.text_tokens)
    return ProfileSetup(fitted, plan, data, codec, start, folder, tuple(notes))


FILL_BATCHES = 2 * SLOTS + 2
"""Batches until a pipeline that stood still, with its slots full, is at its own speed."""
WAITED_S = 0.001
"""A batch whose clips took longer was not read ahead: the reading buffer is empty."""
CACHED_REPEATS = 4
"""Of a batch of each shape, before the other runs and after them: a machine that gets busier meanwhile counts in both."""
FREE_STEPS = 10
"""Until a half that nobody waits for is waited for: a run that logs does it too, and what traces spoils no more than these."""
RATE = 1e-5
WINDOWS = 2
"""In which a mode is timed; the faster counts. Eight batches are soon spoilt by a hiccup of the machine, and never sped up."""
MOST_WINDOWS = 8
_HALF = -1
"""In the place of a bucket's number."""


class MeasuredTraining:
    """A step as every mode does it, of the model of a run that is set up. Build it under the model device's scope."""

    def __init__(self, setup: ProfileSetup):
        training = setup.config.training
        if setup.codec is None:
            # From the first step with codes, as in most of a run.
            self.step = build_codec_step(setup.config, EVEN_NORMS, steps=NEVER, free_steps=0).step
        else:
            self.step = build_gpt_step(setup.config, setup.data, setup.codec, setup.start).step
        accumulation, retries = training.gradient_accumulation_steps, training.on_oom == "retry"
        self._updates = UpdateMaker(self.step, lambda _: RATE, accumulation=accumulation, retries=retries)
        self._last: tf.Tensor | None = None

    def train(self, batch: Batch) -> bool:
        """Trains on a batch, waits for it, and says whether something was traced for it."""
        has_traced = self.dispatch(batch)
        self.settle()
        return has_traced

    def dispatch(self, batch: Batch) -> bool:
        """The same as a run does it: without waiting."""
        traces = self.step.count_traces()
        self._last = self._updates.add(batch.tensors, batch.info.facts)
        return self.step.count_traces() != traces

    def count_launches(self) -> Launches | None:
        """Kernels of the step that was traced last. What XLA has compiled is compiled once more to be counted; None where that fails."""
        traced = self.step.traced
        gradients = traced.get("_add_gradients") or traced["_compute_gradients"]
        # Where more batches make an update than were measured, there was none.
        functions = (gradients, traced.get("_apply_gradients"))
        try:
            counts = [0 if each is None else count_launches(each).total() for each in functions]
        except tf.errors.OpError as error:
            _log.warning("Launches are not counted: %s", str(error).partition("\n")[0])
            return None
        return Launches(counts[0], counts[1], is_compiled=self.step.xla_functions > 0)

    def settle(self) -> None:
        """Waits until all that was dispatched is done."""
        # Work of one device is done in the order it was asked for: fetching the last of it waits for all.
        (tf.constant(1.0) + 1.0 if self._last is None else self._last).numpy()


class Profiler:
    """Takes batches from a source and trains on them, or not. For one thread, under the model device's scope.

    Args:
        steps: batches of the real run that count.
        read_ahead: batches that may have been read before they are asked for.
        shapes: of batches.
    """

    def __init__(
        self, source: Batches, training: MeasuredTraining, *, steps: int, read_ahead: int = 0, shapes: int = 1
    ):
        self.source, self.training = source, training
        self._steps, self._read_ahead, self._shapes = steps, read_ahead, shapes
        self._kept: dict[int, Batch] = {}
        """One batch of each shape, for the run without the pipeline."""
        self._cached_s: dict[int, list[float]] = defaultdict(list)
        """Seconds of training on those, by shape."""
        self._waits_since = time.perf_counter()

    def warm_up(self) -> None:
        """Traces the step for the shapes that come, so that no measured step has to."""
        for _ in range(3 * self._shapes):
            self._do_batch(lambda each: each.info.facts.bucket_number not in self._kept and self.training.train(each))
            if len(self._kept) == self._shapes:
                return

    def run_pipeline(self) -> list[BatchTimes]:
        """The pipeline alone: batches are taken and thrown away."""
        self.drain()
        return [self._do_batch() for _ in range(max(3, self._steps // 2))]

    def run_free(self) -> tuple[list[BatchTimes], float, int]:
        """Pipeline and training together, as a run is: the batches that count, the seconds of each, and how many were left out."""
        times, seconds, taken = list[BatchTimes](), 0.0, 0
        wanted, is_full = self._steps // 2, True
        # A corpus with many rare shapes traces again and again; it must come to an end all the same.
        while len(times) < wanted and taken < FILL_BATCHES + 4 * max(wanted, FREE_STEPS):
            if is_full:
                taken += len(self._dispatch(FILL_BATCHES)[1])
            window_s, window = self._dispatch(min(FREE_STEPS, wanted - len(times)))
            taken += len(window)
            # While it traced, the pipeline has filled up.
            is_full = any(each.has_traced for each in window)
            if not is_full:
                times, seconds = times + window, seconds + window_s
        if not times:
            raise _explain_traces(f"Every one of {taken} steps was traced anew", "more --num-steps")
        return times, seconds / len(times), taken - len(times)

    def run_synced(self) -> tuple[list[BatchTimes], int]:
        """The same with every step waited for: the batches that count, and how many were left out."""
        times, left_out, skip = list[BatchTimes](), 0, FILL_BATCHES
        wanted = self._steps - self._steps // 2
        while len(times) < wanted and left_out + len(times) < FILL_BATCHES + 3 * wanted:
            done = self._do_batch(self.training.train)
            if done.has_traced:
                skip = max(skip, SLOTS + 1)
            if skip:
                skip, left_out = skip - 1, left_out + 1
            else:
                times.append(done)
        if not times:
            raise _explain_traces(f"Every one of {left_out} steps was traced anew", "more --num-steps")
        return times, left_out

    def time_best_window(self, batches: int) -> tuple[float, list[BatchTimes]]:
        """The faster of some windows in which nothing was traced: seconds per batch at full speed, and its batches."""
        windows: list[tuple[float, list[BatchTimes]]] = []
        for _ in range(MOST_WINDOWS):
            self._dispatch(FILL_BATCHES)
            seconds, times = self._dispatch(batches)
            if not any(each.has_traced for each in times):
                windows.append((seconds / batches, times))
            if len(windows) == WINDOWS:
                break
        if not windows:
            problem = f"The step was traced anew in each of {MOST_WINDOWS} stretches of {batches} batches"
            raise _explain_traces(problem, "--mode")
        return min(windows, key=lambda window: window[0])

    def _dispatch(self, batches: int) -> tuple[float, list[BatchTimes]]:
        """Seconds until some batches were trained on, of which only the last is waited for, and by that all."""
        began = time.perf_counter()
        done = [self._do_batch(self.training.dispatch) for _ in range(batches - 1)]
        done.append(self._do_batch(self.training.train))
        return time.perf_counter() - began, done

    def run_cached(self) -> None:
        """The training alone, on batches that are on its device already."""
        for bucket, batch in self._kept.items():
            # Once more where the first time traced: others of its shape may have come only where nothing was trained.
            for _ in range(2):
                began = time.perf_counter()
                has_traced = [self.training.dispatch(batch) for _ in range(CACHED_REPEATS)]
                self.training.settle()
                if not any(has_traced):
                    self._cached_s[bucket].append((time.perf_counter() - began) / CACHED_REPEATS)
                    break

    def keep_half(self) -> None:
        """Has the training alone be timed on half of a batch's rows too."""
        self._halved = sorted(self._kept)[len(self._kept) // 2]
        whole = self._kept[self._halved]
        self._kept[_HALF] = Batch(dict(next(split_rows(whole.tensors, 2))), whole.info)

    def measure_half(self) -> float:
        """Of the time of the training alone, the share that it takes on half of the rows."""
        return fmean(self._cached_s[_HALF]) / fmean(self._cached_s[self._halved])

    def list_cached(self, times: Sequence[BatchTimes]) -> list[float]:
        """Seconds of the training alone, for batches of the same shapes."""
        return [fmean(self._cached_s[each.bucket]) for each in times]

    def drain(self) -> None:
        """Uses up what was read ahead while the step was traced: it would hide how slow reading is."""
        for number in range(self._read_ahead + FILL_BATCHES):
            if self._do_batch().spans.read.seconds > WAITED_S and number >= FILL_BATCHES:
                return

    def _do_batch(self, work: Callable[[Batch], bool] = lambda _: False) -> BatchTimes:
        """The next batch; `work` says whether something was traced for it."""
        batch = self.source.take()
        began = time.perf_counter()
        has_traced = work(batch)
        ended = time.perf_counter()
        # What follows belongs to the wait for the next batch: where nothing runs beside the model, it is prepared now.
        wait, self._waits_since = Span(self._waits_since, began), ended
        self.source.advance()
        self.source.release()
        facts = batch.info.facts
        self._kept.setdefault(facts.bucket_number, batch)
        return BatchTimes(facts.number, batch.info.spans, wait, Span(began, ended), facts.bucket_number, has_traced)


def _explain_traces(problem: str, other: str) -> UserError:
    return UserError(
        f"{problem}, so there is none whose time means anything. Measure with --enable-static-shapes, or give {other}."
    )


FREE = {
    "Placeholder", "Const", "NoOp", "Identity", "IdentityN", "_Arg", "_Retval", "StopGradient", "PreventGradient", "VarHandleOp",
    "ReadVariableOp", "Reshape", "ExpandDims", "Squeeze", "Shape", "ShapeN", "Size", "BroadcastGradientArgs", "ConcatOffset", "Bitcast",
    "InvertPermutation", "Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "If", "StatelessIf", "While",
    "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall",
}  # fmt: skip
"""Names, shapes, constants and calls: nothing that a GPU would be asked for."""
ON_HOST = {"StridedSlice", "Pack", "Range", "ConcatV2", "Prod", "Mul", "AddV2", "Sub"}
"""Of int32, which TensorFlow keeps in host memory."""
NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
"""What XLA writes down and does not launch."""
HOLDERS = {"call", "while", "conditional"}
"""What launches nothing but what it holds."""


def count_launches(traced: Any) -> Counter[str]:
    """What one call of a concrete function launches, by kind, after TensorFlow has optimised its graph, or after XLA has compiled it. A
    loop's body counts once, and of a condition both branches. What XLA compiles of a function that is not compiled counts as one."""
    if traced.function_def.attr["_XlaMustCompile"].b:
        free = len(traced.inputs) - len(traced.captured_inputs)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in traced.inputs[:free]]
        return count_compiled(compiler_ir.from_concrete_function(traced, specs)(stage="optimized_hlo"))
    meta = export_meta_graph(graph=traced.graph, graph_def=traced.graph.as_graph_def(add_shapes=True))
    # Whatever is not needed for these is pruned; an update that gives nothing back is kept by its side effect.
    kept = [*(tensor.name for tensor in traced.outputs), *(each.name for each in traced.graph.control_outputs)]
    meta.collection_def["train_op"].node_list.value.extend(kept)
    settings = ConfigProto()
    settings.graph_options.rewrite_options.min_graph_nodes = -1
    graph = tf_optimizer.OptimizeGraph(settings, meta)
    functions = {each.signature.name: each for each in graph.library.function}
    int32, kinds, bodies = tf.int32.as_datatype_enum, Counter[str](), [graph.node]
    while bodies:
        for node in bodies.pop():
            if node.op not in FREE and (node.op not in ON_HOST or node.attr["T"].type != int32):
                kinds[node.op] += 1
            called = (each for value in node.attr.values() for each in (value.func, *value.list.func))
            for function in (functions[each.name] for each in called if each.name in functions):
                if function.attr["_XlaMustCompile"].b:
                    kinds["XLA"] += 1
                else:
                    bodies.append(function.node_def)
    return kinds


def count_compiled(text: str) -> Counter[str]:
    """What XLA launches, by kind, of what it has compiled and written down (optimised HLO)."""
    bodies: dict[str, list[tuple[str, str]]] = {}
    body = entry = ""
    for line in text.splitlines():
        if opened := re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line):
            body = opened[2]
            bodies[body], entry = [], body if opened[1] else entry
        elif body and (found := re.search(r" = .*? ([a-z][a-z0-9-]*)\(.*?\)(.*)", line)):
            bodies[body].append((found[1], found[2]))

    def walk(body: str) -> Iterator[str]:
        for kind, attributes in bodies[body]:
            if kind in HOLDERS:
                for held in re.findall(r"%([\w.-]+)", attributes):
                    yield from walk(held) if held in bodies else ()
            elif kind not in NOTHING:
                yield kind

    return Counter(walk(entry))

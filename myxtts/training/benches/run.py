"""A small run for measuring: the tiny model, some clips of the demo corpus, a codec of random weights, no cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData, collect_run_data, load_run_data, save_run_data
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest, Process, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.pipeline.batch_source import PRODUCER_FOLDER, SourceRequest
from myxtts.pipeline.code_cache import FOLDER_NAME
from myxtts.pipeline.preparation_settings import Target
from myxtts.pipeline.production import Production
from myxtts.training.endless_production import describe_endless_production
from myxtts.training.random_codec import write_random_codec
from myxtts.training.starting_point import Codec, fit_model_config, read_codec

INTRA_OP, INTER_OP = 1, 8
"""One core for a device comes from running each call in one thread (`run_calls_in_one_thread`), not from the pools. A call
that waits for one within it holds a thread of the inter-op pool: with two of them, two devices stood still for ever."""
CODEC_FOLDER = "codec"
DVAE_WIDTH = 512
"""The published codec's, which is what a fine-tuned model prepares with. A tiny one would cost next to nothing."""


def make_config(folder: Path, mode: Mode) -> XTTSConfig:
    """The configuration of the run in a folder."""
    return XTTSConfig(
        model={"size": "tiny", "dvae_width": DVAE_WIDTH},
        data={
            "batch_size": 4,
            # All in one bucket: every batch costs the same, and one shape is traced.
            "min_clip_seconds": 2.61,
            "max_clip_seconds": 2.965,
            "max_text_length": 32,
            "prompt_seconds": 1.0,
            "cache": "off",
            # Reading belongs to preparing here: reader processes would need a core of their own.
            "num_workers": 0,
            "use_tf_native_loading": False,
            "prefetch_buffer_size": 3,
            "model_start_delay": 0.0,
        },
        training={"rehearsal": True, "mode": str(mode), "checkpoint_dir": str(folder)},
    )


def write_bench_run(folder: Path) -> None:
    """Writes what all processes of a measurement read: the clips' order, and the codec. Needs TensorFlow."""
    config = make_config(folder, Mode.SINGLE)
    save_run_data(collect_run_data(config, folder=folder), folder)
    write_random_codec(config, folder / CODEC_FOLDER)


@dataclass(frozen=True, eq=False)
class BenchRun:
    """The run as one process sees it."""

    folder: Path
    config: XTTSConfig
    plan: DevicePlan
    data: RunData
    codec: Codec
    production: Production

    def request_source(self, *, in_series: bool = False) -> SourceRequest:
        """What a source is opened with.

        Args:
            in_series: prepare on the model device, by the thread that trains, whatever the plan says.
        """
        plan = self.plan
        if in_series:
            plan = put_on_one_device(plan)
        order = self.production.make_order(self.data)
        return SourceRequest(plan, self.data, order, self.production, self.folder / PRODUCER_FOLDER)


def open_bench_run(folder: Path, mode: Mode) -> BenchRun:
    """The run that was written to a folder, with the plan of a mode in force in this process."""
    asked = make_config(folder, mode)
    plan = plan_devices(PlanRequest.from_config(asked), read_machine())
    runtime.set_thread_pools(INTRA_OP, INTER_OP)
    runtime.apply_plan(plan, Process.TRAINER)
    data: RunData = load_run_data(folder)
    codec = read_codec(folder / CODEC_FOLDER)
    config = fit_model_config(asked, None, codec.config, data.text_tokens)
    production = describe_endless_production(
        config, Target.GPT, codec.mel_norms, codec_folder=codec.folder, cache_folder=folder / FOLDER_NAME
    )
    return BenchRun(folder, config, plan, data, codec, production)

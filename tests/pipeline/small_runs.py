"""A small run: some clips of the demo corpus, a random codec, a configuration."""

import shutil
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np

from myxtts.checkpoints import write_model_directory
from myxtts.config import XTTSConfig
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.devices.plan import DevicePlan, Mode, Process, ProcessPlan, Role, RolePlan
from myxtts.pipeline.recipe import BatchRecipe, Target, choose_preparation
from tests.support.tiny_run import damage_clip as damage_clip

MEL_NORMS = np.linspace(0.5, 2.0, 80).tolist()

Run = tuple[RunData, BatchRecipe]


def make_config(folder, **sections):
    """A configuration of the smallest model that reads the corpus in the folder."""
    data = {
        "train_data": str(folder / "corpus"),
        "batch_size": 6,
        "num_workers": 1,
        "cache": "off",
        "prompt_seconds": 1.0,
    }
    training = {"rehearsal": True, "checkpoint_dir": str(folder), "mode": "single"}
    return XTTSConfig(
        model={"size": "tiny", **sections.get("model", {})},
        data={**data, **sections.get("data", {})},
        training={**training, **sections.get("training", {})},
    )


def make_run_folder(folder, clips=30):
    """A folder with a corpus and a codec."""
    source = demo_corpus_path()
    (folder / "corpus" / "wavs").mkdir(parents=True)
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()[: clips + 1]
    (folder / "corpus" / "metadata.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for file in (source / "wavs").iterdir():
        shutil.copy2(file, folder / "corpus" / "wavs")
    write_codec(folder / "codec")
    return folder


def write_codec(folder):
    """A codec of random weights that uses many of its codes."""
    import myxtts.devices.runtime  # noqa: F401  (sets the environment before TensorFlow reads it)
    from myxtts.models.weights import to_checkpoint
    from myxtts.models.xtts import build_dvae

    config = make_config(folder)
    dvae = build_dvae(config.model, seed=7)
    vectors = np.random.default_rng(1).normal(size=dvae.codebook.vectors.shape) * 0.05
    dvae.codebook.vectors.assign(vectors.astype(np.float32))
    write_model_directory(folder, config=config, model={"mel_stats": np.ones(80, np.float32)}, dvae=to_checkpoint(dvae))


def make_plan(mode=Mode.SINGLE):
    """A plan on the devices that every process has, so that it need not be applied."""
    producer = Process.PRODUCER if mode is Mode.ISOLATED else Process.TRAINER
    return DevicePlan(
        mode,
        True,
        RolePlan(Role.DATA, producer, "/CPU:0", None, None),
        RolePlan(Role.MODEL, Process.TRAINER, "/CPU:0", None, None),
        tuple(ProcessPlan(process, ()) for process in Process),
    )


def make_run(folder, target=Target.GPT, plan=None, **sections):
    """The clips of a run and what its batches are made of."""
    config = make_config(folder, **sections)
    data = collect_run_data(config, folder=folder)
    return data, BatchRecipe(
        config=config,
        plan=plan or make_plan(),
        preparation=choose_preparation(config, target, MEL_NORMS, speakers=data.speakers),
        validation_interval=4,
        first_step=0,
        end_step=8,
        codec_folder=folder / "codec" if target is not Target.CODEC else None,
        cache_folder=folder / "features",
    )


@contextmanager
def open_factory(run, **preparation):
    """What makes the batches of a run, or with other settings of preparation."""
    from myxtts.pipeline.factory import BatchFactory

    data, recipe = run
    settings = replace(recipe.preparation, **preparation)
    with closing(BatchFactory(data, replace(recipe, preparation=settings))) as factory:
        yield factory


def make_batches(run, numbers, *, warm=False, **preparation):
    """Batches of a run, on the host."""
    with open_factory(run, **preparation) as factory:
        if warm:
            factory.warm_up()
        return [factory.finish(factory.make(number), on_host=True) for number in numbers]

"""A small run: some clips of the demo corpus, a random codec, a configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints import write_model_directory
from myxtts.data.demo_corpus import demo_corpus_path
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.pipeline.preparation_settings import Target, choose_preparation
from myxtts.pipeline.production import Production
from tests.pipeline.source_program import make_config
from tests.support.processes import run_python
from tests.support.tiny_run import damage_clip as damage_clip

MEL_NORMS = np.linspace(0.5, 2.0, 80).tolist()


def make_run_folder(folder: Path, clips: int = 30) -> Path:
    """A folder with a corpus and a codec."""
    source = demo_corpus_path()
    (folder / "corpus" / "wavs").mkdir(parents=True)
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()[: clips + 1]
    (folder / "corpus" / "metadata.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for file in (source / "wavs").iterdir():
        shutil.copy2(file, folder / "corpus" / "wavs")
    write_codec(folder / "codec")
    return folder


def write_codec(folder: Path) -> None:
    """A codec of random weights that uses many of its codes."""
    import myxtts.devices.runtime  # noqa: F401  (sets the environment before TensorFlow reads it)
    from myxtts.models.build import build_dvae
    from myxtts.models.names import to_checkpoint

    config = make_config(folder)
    dvae = build_dvae(config.model, seed=7)
    vectors = np.random.default_rng(1).normal(size=dvae.codebook.vectors.shape) * 0.05
    dvae.codebook.vectors.assign(vectors.astype(np.float32))
    write_model_directory(folder, config=config, model={"mel_stats": np.ones(80, np.float32)}, dvae=to_checkpoint(dvae))


def make_production(folder: Path, target: Target = Target.GPT, **sections: Any) -> tuple[RunData, Production]:
    config = make_config(folder, **sections)
    return collect_run_data(config, folder=folder), Production(
        config=config,
        preparation=choose_preparation(config, target, MEL_NORMS),
        validation_interval=4,
        first_step=0,
        end_step=8,
        codec_folder=folder / "codec" if target is not Target.CODEC else None,
        cache_folder=folder / "features",
    )


def run_ways(folder: Path, ways: dict[str, Any], *, asynchronous: bool = False) -> dict[str, Any]:
    """What a process that takes all batches in these ways got, by way."""
    words = json.dumps({"folder": str(folder), "asynchronous": asynchronous, "ways": ways})
    result = run_python(["-m", "tests.pipeline.source_program", words])
    assert result.returncode == 0, result.stderr[-4000:]
    told: dict[str, Any] = json.loads(result.stdout.rpartition("@@")[2])
    return told

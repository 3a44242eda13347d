"""The run of a check that trains: a small model, a few updates, on the demo corpus. No TensorFlow."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import soundfile

from myxtts.config import XTTSConfig
from myxtts.data.demo_corpus import demo_corpus_path
from myxtts.monitoring.metrics_log import FILE_NAME, list_losses, read_metrics
from myxtts.training.selfcheck.situation import Situation
from myxtts.training.selfcheck.work import CheckFailedError

STEPS = 6
CODEC_STEPS = 4
CODEC_CHECK = "train-codec"
GPT_CHECK = "train-single"
WAV_CORPUS = "wav-corpus"
DECODER_RATE = 2e-4
DECODER_MODEL = {"decoder_width": 32}
"""All else is that of the GPT which it speaks for."""
MODEL = {
    "size": "tiny", "gpt_layers": 2, "gpt_width": 64, "gpt_heads": 2, "dvae_width": 32, "audio_codes": 64,
    # Without it an update made in parts is the same up to rounding.
    "dropout": 0.0,
}  # fmt: skip


def make_config(
    situation: Situation,
    name: str,
    *,
    stage: str = "gpt",
    precision: str = "float32",
    xla: bool = False,
    checkpointing: bool = False,
    is_deterministic: bool = True,
    has_codec: bool = True,
    cache: str = "off",
    is_native: bool = False,
) -> XTTSConfig:
    """The configuration of a check; its run is in the folder with its name."""
    codec = str(situation.root / CODEC_CHECK) if stage == "gpt" and has_codec else None
    is_decoder = stage == "decoder"
    model = DECODER_MODEL if is_decoder else {**MODEL, "enable_gradient_checkpointing": checkpointing}
    return XTTSConfig(
        model=model,
        data={
            "batch_size": 4,
            # All in one bucket, so that one shape is traced, and so few that every clip comes twice.
            "min_clip_seconds": 2.61,
            "max_clip_seconds": 2.81,
            **({} if is_decoder else {"prompt_seconds": 1.0}),
            "cache": cache,
            "num_workers": 0,
            "use_tf_native_loading": is_native,
            "train_data": str(_keep_wav_corpus(situation.root / WAV_CORPUS)),
            "model_start_delay": 0.0,
            "mixed_precision": precision,
            "enable_xla": xla,
        },
        training={
            "rehearsal": situation.rehearsal,
            "stage": stage,
            "codec": codec,
            "init_from": str(situation.root / GPT_CHECK) if is_decoder else None,
            "max_steps": CODEC_STEPS if stage == "codec" else STEPS,
            "learning_rate": DECODER_RATE if is_decoder else 0.003,
            "warmup_steps": 0,
            "log_interval": 1,
            "speak": False,
            "deterministic": is_deterministic,
            "on_oom": "retry",
            "checkpoint_dir": str(situation.root / name),
        },
    )


def read_falling_losses(folder: Path) -> list[float]:
    """The losses of a run, which must be finite and fall."""
    losses = [loss for _, loss in list_losses(read_metrics(folder / FILE_NAME))]
    if not losses or not all(map(math.isfinite, losses)):
        raise CheckFailedError(f"Losses must be finite numbers, but are {losses}.")
    if not losses[-1] < losses[0]:
        raise CheckFailedError(
            f"The loss must fall, but goes from {losses[0]} to {losses[-1]} in {len(losses)} updates."
        )
    return losses


def _keep_wav_corpus(folder: Path) -> Path:
    """The demo corpus as plain wav, the only format that TensorFlow reads by itself; made by the first check that needs it."""
    if folder.exists():
        return folder
    source, unfinished = demo_corpus_path(), folder.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "wavs").mkdir(parents=True)
    for path in (source / "wavs").iterdir():
        samples, rate_hz = soundfile.read(path, dtype="int16")
        soundfile.write(unfinished / "wavs" / f"{path.stem}.wav", samples, rate_hz, subtype="PCM_16")
    shutil.copy(source / "metadata.csv", unfinished)
    return unfinished.rename(folder)

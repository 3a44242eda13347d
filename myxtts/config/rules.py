"""Rules between settings. Each finding names the keys, what is, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from myxtts.config.settings import parse_gpu_ids

if TYPE_CHECKING:
    from myxtts.config.config import XTTSConfig

Problem = tuple[str, str]

CODE_SECONDS = 1024 / 22050
"""One audio code stands for so much sound."""


def find_problems(config: XTTSConfig) -> list[Problem]:
    """What does not fit together, as (dotted key, sentence) pairs; empty when everything does."""
    return [*_check_devices(config), *_check_data(config), *_check_lora(config)]


def _check_devices(config: XTTSConfig) -> Iterator[Problem]:
    data, training = config.data, config.training
    mode, has_pair = training.mode, data.data_gpu is not None and data.model_gpu is not None
    is_split = has_pair and data.data_gpu == data.model_gpu
    several = [] if training.model_gpus is None else parse_gpu_ids(training.model_gpus)
    if several and data.model_gpu is not None:
        yield (
            "training.model_gpus",
            f"is {training.model_gpus}, but data.model_gpu ({data.model_gpu}) asks for one GPU that trains. Give one of the two.",
        )
    elif several and data.data_gpu in several:
        yield (
            "training.model_gpus",
            f"is {training.model_gpus}, so that GPU {data.data_gpu} trains, but data.data_gpu asks for it to prepare. Leave out "
            f"--data-gpu: GPU {several[0]} then prepares what all of them train on. Or give the id of another card.",
        )
    elif several and mode == "auto":
        yield (
            "training.model_gpus",
            f"is {training.model_gpus}, but training.mode is auto, which chooses by itself what trains. Give one of the two.",
        )
    elif several and training.loss_mean != "tokens":
        yield (
            "training.loss_mean",
            f"is {training.loss_mean}, but training.model_gpus is {training.model_gpus}: devices hold rows of a batch, and only tokens "
            "count alike however a batch is shared. Leave it out.",
        )
    elif len(several) > data.batch_size:
        yield (
            "training.model_gpus",
            f"names {len(several)} GPUs, but data.batch_size is {data.batch_size}: each needs a clip of every batch. Give a larger "
            "--batch-size, or fewer GPUs.",
        )
    elif not several and (data.data_gpu is None) != (data.model_gpu is None):
        given, missing = ("data", "model") if data.model_gpu is None else ("model", "data")
        yield (
            f"data.{given}_gpu",
            f"is given, but data.{missing}_gpu is not. --data-gpu and --model-gpu belong together: give both, "
            "or neither for single-GPU training.",
        )
    if mode == "single" and data.data_gpu is not None:
        yield (
            "training.mode",
            f"is single, but data.data_gpu ({data.data_gpu}) and data.model_gpu ({data.model_gpu}) ask for two roles. "
            "Leave out --data-gpu and --model-gpu, or --mode single.",
        )
    elif mode in ("dual", "auto") and is_split:
        yield (
            "training.mode",
            f"is {mode}, but data.data_gpu and data.model_gpu are both {data.data_gpu}: a split card has one mode. Leave out "
            "--mode (with both memory limits two processes share the card), or give two ids.",
        )
    elif mode in ("single", "dual") and data.enable_memory_isolation:
        yield (
            "training.mode",
            f"is {mode}, but data.enable_memory_isolation is true, which is the isolated mode. "
            "Leave out --mode, or --enable-memory-isolation.",
        )
    others = {
        "data.data_gpu": data.data_gpu is not None,
        "data.enable_memory_isolation": data.enable_memory_isolation,
        "training.mode": mode not in (None, "single"),
    }
    asked = [key for key, is_given in others.items() if is_given]
    if (training.preparers or training.trainers > 1) and training.cluster is None:
        yield (
            "training.preparers" if training.preparers else "training.trainers",
            "is given, but training.cluster is not: preparers and trainers are actors of a Ray cluster. Give --cluster its address, or "
            "--cluster local for this machine alone.",
        )
    if training.preparers and asked:
        yield (
            "training.preparers",
            f"is {training.preparers}, so that these prepare, but {asked[0]} asks for another way to do it. Give one of the two.",
        )
    if training.preparers % training.trainers:
        yield (
            "training.preparers",
            f"is {training.preparers}, which cannot be divided equally among {training.trainers} trainers. Give a multiple of that.",
        )


def _check_data(config: XTTSConfig) -> Iterator[Problem]:
    data, model = config.data, config.model
    if data.enable_xla is True and not data.pad_to_fixed_length:
        yield (
            "data.enable_xla",
            "is true, but data.pad_to_fixed_length is false: XLA would compile the step anew for nearly every batch. "
            "Use --enable-static-shapes, or --no-enable-xla.",
        )
    if data.min_clip_seconds >= data.max_clip_seconds:
        yield (
            "data.min_clip_seconds",
            f"must be below data.max_clip_seconds ({data.max_clip_seconds}), but is {data.min_clip_seconds}.",
        )
    if data.max_text_length > model.max_text_tokens:
        yield (
            "data.max_text_length",
            f"must be at most model.max_text_tokens ({model.max_text_tokens}), but is {data.max_text_length}.",
        )
    longest_s = model.max_audio_tokens * CODE_SECONDS
    if data.max_clip_seconds > longest_s:
        yield (
            "data.max_clip_seconds",
            f"must be at most {longest_s:.1f}, since model.max_audio_tokens is {model.max_audio_tokens}, "
            f"but is {data.max_clip_seconds}.",
        )
    if config.training.stage == "codec" and config.training.init_from is not None:
        yield (
            "training.init_from",
            f"is {config.training.init_from}, but training.stage is codec: a codec is trained from nothing. Leave out --init-from.",
        )
    if config.training.blank_prompt and data.prompt_from != "clip":
        yield (
            "training.blank_prompt",
            f"is true, but no prompt is cut from its own clip: data.prompt_from is {data.prompt_from}. Use --prompt-from clip, or "
            "leave blank_prompt out.",
        )
    changes = {key: value for key, value in data.model_dump().items() if key.startswith("augment_")}
    asked = next((f"data.{key}" for key, value in changes.items() if value not in (0, None)), None)
    if data.prompt_from == "shared" and asked is not None:
        yield (
            "data.prompt_from",
            f"is shared: prompts are prepared once and kept. But {asked} changes them every time. Use --prompt-from speaker.",
        )


def _check_lora(config: XTTSConfig) -> Iterator[Problem]:
    training = config.training
    if training.lora_rank and training.stage != "gpt":
        yield (
            "training.lora_rank",
            f"is {training.lora_rank}, but training.stage is {training.stage}: only a GPT has adapters. Leave out --lora-rank.",
        )
    elif training.lora_rank and training.init_from is None:
        yield (
            "training.lora_rank",
            f"is {training.lora_rank}, but training.init_from is not given: adapters are added to a model that has learnt to speak. "
            "Name it with --init-from, or leave out --lora-rank to train from nothing.",
        )

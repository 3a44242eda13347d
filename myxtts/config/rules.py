"""Rules between settings. Each finding names the keys, what is, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from myxtts.config.config import XTTSConfig

Problem = tuple[str, str]

CODE_SECONDS = 1024 / 22050
"""One audio code stands for so much sound."""


def find_problems(config: XTTSConfig) -> list[Problem]:
    """What does not fit together, as (dotted key, sentence) pairs; empty when everything does."""
    return [
        *_check_gpu_pair(config),
        *_check_mode(config),
        *_check_parallel(config),
        *_check_shapes(config),
        *_check_lengths(config),
        *_check_prompts(config),
    ]


def _check_gpu_pair(config: XTTSConfig) -> list[Problem]:
    data = config.data
    if (data.data_gpu is None) == (data.model_gpu is None):
        return []
    given, missing = ("data", "model") if data.model_gpu is None else ("model", "data")
    return [
        (
            f"data.{given}_gpu",
            f"is given, but data.{missing}_gpu is not. --data-gpu and --model-gpu belong together: give both, "
            "or neither for single-GPU training.",
        )
    ]


def _check_mode(config: XTTSConfig) -> list[Problem]:
    mode, data = config.training.mode, config.data
    if mode == "single" and data.data_gpu is not None:
        return [
            (
                "training.mode",
                f"is single, but data.data_gpu ({data.data_gpu}) and data.model_gpu ({data.model_gpu}) ask for two roles. "
                "Leave out --data-gpu and --model-gpu, or --mode single.",
            )
        ]
    if mode == "dual" and data.data_gpu is not None and data.data_gpu == data.model_gpu:
        return [
            (
                "training.mode",
                f"is dual, but data.data_gpu and data.model_gpu are both {data.data_gpu}. Give two ids, or leave out --mode: "
                "with both memory limits one card is split between two processes.",
            )
        ]
    if mode == "auto" and data.data_gpu is not None and data.data_gpu == data.model_gpu:
        return [
            (
                "training.mode",
                f"is auto, but data.data_gpu and data.model_gpu are both {data.data_gpu}: a split card has one mode. Leave out "
                "--mode, or give two ids to choose between.",
            )
        ]
    if mode in ("single", "dual") and data.enable_memory_isolation:
        return [
            (
                "training.mode",
                f"is {mode}, but data.enable_memory_isolation is true, which is the isolated mode. "
                "Leave out --mode, or --enable-memory-isolation.",
            )
        ]
    return []


def _check_parallel(config: XTTSConfig) -> list[Problem]:
    training, data = config.training, config.data
    others = {
        "data.data_gpu": data.data_gpu is not None,
        "data.enable_memory_isolation": data.enable_memory_isolation,
        "training.mode": training.mode not in (None, "single"),
    }
    given = [key for key, is_given in others.items() if is_given]
    if training.model_gpus is None or not given:
        return []
    return [
        (
            "training.model_gpus",
            f"is {training.model_gpus}, so that each of these GPUs prepares and trains, but {given[0]} asks for another way to use "
            "them. Give one of the two.",
        )
    ]


def _check_prompts(config: XTTSConfig) -> list[Problem]:
    if config.training.blank_prompt and config.data.prompt_from != "clip":
        return [
            (
                "training.blank_prompt",
                "is true, but no prompt is cut from its own clip: data.prompt_from is speaker. Use --prompt-from clip, or leave "
                "blank_prompt out.",
            )
        ]
    return []


def _check_shapes(config: XTTSConfig) -> list[Problem]:
    if config.data.enable_xla and not config.data.pad_to_fixed_length:
        return [
            (
                "data.enable_xla",
                "is true, but data.pad_to_fixed_length is false: XLA would compile the step anew for nearly every batch. "
                "Use --enable-static-shapes, or --no-enable-xla.",
            )
        ]
    return []


def _check_lengths(config: XTTSConfig) -> list[Problem]:
    data, model = config.data, config.model
    problems: list[Problem] = []
    if data.min_clip_seconds >= data.max_clip_seconds:
        problems.append(
            (
                "data.min_clip_seconds",
                f"must be below data.max_clip_seconds ({data.max_clip_seconds}), but is {data.min_clip_seconds}.",
            )
        )
    if data.max_text_length > model.max_text_tokens:
        problems.append(
            (
                "data.max_text_length",
                f"must be at most model.max_text_tokens ({model.max_text_tokens}), but is {data.max_text_length}.",
            )
        )
    longest_s = model.max_audio_tokens * CODE_SECONDS
    if data.max_clip_seconds > longest_s:
        problems.append(
            (
                "data.max_clip_seconds",
                f"must be at most {longest_s:.1f}, since model.max_audio_tokens is {model.max_audio_tokens}, "
                f"but is {data.max_clip_seconds}.",
            )
        )
    return problems

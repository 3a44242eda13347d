"""May this run go on? Which settings it may change when it is resumed, and what several workers cannot train.

A resumed run must give what the unbroken one would have given. So every setting is one of these; a new one has to be
put into the table before anything can be resumed with it (a test sees to that)."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.config.config import SECTIONS, TrainingConfig, setting_keys
from myxtts.config.settings import GIVEN
from myxtts.config.sources import dump_sections, format_value, iterate_flags
from myxtts.devices.plan import DevicePlan, Mode
from myxtts.errors import ClusterError, RunChangedError

_log = logging.getLogger(__name__)


Sections = Mapping[str, Mapping[str, Any]]
"""Settings by section and name, as `config.resolve.dump_sections` gives them."""


class Rule(StrEnum):
    """What changing a setting does to a run that goes on."""

    FREE = "free"
    """Nothing: how the work is done, what is shown and what is kept."""
    ROUNDING = "rounding"
    """The same result up to rounding: losses are no longer bit for bit those of an unbroken run."""
    LENGTH = "length"
    """Where the run ends. A cosine falls to that end, so it changes from there on (`report_moved_end` says so)."""
    RESULT = "result"
    """Another result."""


_RULES: Mapping[Rule, Sequence[str]] = {
    Rule.RESULT: (
        "model.size", "model.gpt_layers", "model.gpt_width", "model.gpt_heads", "model.dvae_width", "model.decoder_width",
        "model.audio_codes", "model.text_tokens", "model.max_text_tokens", "model.max_audio_tokens", "model.max_prompt_tokens",
        "model.dropout",
        # Which clips, in which batches, padded how far.
        "data.language", "data.vocabulary", "data.min_clip_seconds", "data.max_clip_seconds", "data.max_text_length",
        "data.prompt_seconds", "data.prompt_from", "data.batch_size", "data.pad_to_fixed_length",
        "data.augment_gain_db", "data.augment_noise_db", "data.augment_speed", "data.augment_frame_masks",
        "data.augment_band_masks",
        # Not rounding: half precision loses small updates altogether, and its loss scale skips steps.
        "data.mixed_precision",
        "training.stage", "training.init_from", "training.lora_rank", "training.lora_alpha", "training.lora_matrices",
        "training.learning_rate", "training.lr_schedule",
        "training.warmup_steps", "training.weight_decay", "training.clip_norm", "training.ema_decay", "training.loss_mean",
        "training.blank_prompt", "training.gradient_accumulation_steps", "training.seed",
        # To the codec itself it is a length.
        "training.codec_steps",
    ),
    Rule.ROUNDING: (
        "model.enable_gradient_checkpointing", "data.enable_xla", "training.deterministic",
    ),
    Rule.LENGTH: ("training.epochs", "training.max_steps", "training.early_stopping"),
    Rule.FREE: (
        # What they name is compared: the clips by the data's fingerprint, the codec number by number.
        "data.train_data", "data.val_data", "data.follow_symlinks", "training.codec",
        "data.strict", "data.num_workers", "data.prefetch_buffer_size", "data.pipeline_buffer_size", "data.model_start_delay",
        "data.use_tf_native_loading", "data.enable_parallel_batch", "data.enable_map_fusion", "data.prefetch_to_gpu",
        "data.cache", "data.data_gpu", "data.model_gpu", "data.enable_memory_isolation",
        "data.data_gpu_memory", "data.model_gpu_memory",
        "training.checkpoint_dir", "training.resume", "training.validation_interval", "training.checkpoint_interval",
        "training.keep_last", "training.keep_best", "training.best_metric", "training.log_interval", "training.watchdog_seconds",
        "training.tensorboard_log_dir", "training.on_oom", "training.speak", "training.mode", "training.rehearsal",
        # How many workers share a batch is a fact of the run's environment; which machines they are is nobody's matter.
        "training.cluster", "training.trainers", "training.preparers", "training.model_gpus",
        # A preset: what it fills in is compared setting by setting.
        "training.optimization_level",
    ),
}  # fmt: skip

RULES: Mapping[str, Rule] = {key: rule for rule, keys in _RULES.items() for key in keys}
"""Dotted key -> what changing it does."""

_BEFORE_THE_SETTING: Mapping[str, Any] = {"data.prompt_from": "clip"}
"""What runs did that were started before there was a setting for it, where that is not its default now."""

_CODEC_SHAPE = frozenset({"model.dvae_width", "model.audio_codes"})
"""Decides which codec it is that a GPT run trains first, even when it is trained."""
_CODEC_LENGTHS = frozenset({"training.codec_steps", "training.early_stopping"})
_NOT_OF_THE_CODEC = frozenset(
    {
        "model.size", "model.gpt_layers", "model.gpt_width", "model.gpt_heads", "model.decoder_width", "model.text_tokens",
        "model.max_text_tokens", "model.max_audio_tokens", "model.max_prompt_tokens", "model.dropout",
        "data.prompt_seconds", "data.prompt_from", "data.augment_frame_masks", "data.augment_band_masks", "training.blank_prompt",
        "training.codec",
        # A GPT run's codec is of the stage codec whatever the run's own stage is.
        "training.stage",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A setting, or a fact of the environment, that is not what it was."""

    key: str
    old: Any
    new: Any
    rule: Rule = Rule.ROUNDING

    def __str__(self) -> str:
        return f"{self.key} was {format_value(self.old)}, now {format_value(self.new)}"


def compare_configs(saved: Sections, now: Sections) -> list[Change]:
    """The settings whose values differ, with what that does.

    Both must be of the same kind: as given and filled in by presets, before anything is worked out from the data.
    A setting that one of them does not know, having been made by another version of MyXTTS, counts as what that version did.
    """
    changes = []
    is_codec = now["training"]["stage"] == "codec"
    for key in setting_keys():
        old, new = _read_value(saved, key, is_codec), _read_value(now, key, is_codec)
        if old != new:
            rule = Rule.LENGTH if is_codec and key in _CODEC_LENGTHS else RULES[key]
            changes.append(Change(key, old, new, rule))
    return changes


def restrict_to_codec(changes: Sequence[Change], *, is_trained: bool) -> list[Change]:
    """What changes that `compare_configs` found for the stage codec mean for the codec that a GPT run trains first.

    Once it is trained only what makes it another codec counts, as for one that is given by --codec.
    """

    def concerns(change: Change) -> bool:
        if change.rule is Rule.LENGTH:
            # The run's epochs do not concern its codec.
            return change.key in _CODEC_LENGTHS
        if change.rule is Rule.RESULT:
            return change.key in _CODEC_SHAPE if is_trained else change.key not in _NOT_OF_THE_CODEC
        return change.rule is Rule.ROUNDING

    return list(filter(concerns, changes))


def compare_environments(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The facts that bits depend on and that differ; a fact that only one side knows differs too."""
    keys = sorted(saved.keys() | now.keys())
    return [Change(key, saved.get(key), now.get(key)) for key in keys if saved.get(key) != now.get(key)]


def refuse_changes(changes: Sequence[Change], folder: Path, *, has_checkpoint: bool) -> None:
    """Raises `RunChangedError` where settings changed that decide the result, if any was saved."""
    refused = [change for change in changes if change.rule is Rule.RESULT]
    if not refused or not has_checkpoint:
        return
    text = (
        f"The run in {folder} cannot go on with these settings, because they would change its result:\n"
        + "\n".join(f"  - {change}" for change in refused)
        + f"\nGive the old values back ({_spell_flags(refused)}), or start anew with --reset-training, which keeps the old run "
        "aside, or begin another run with another --checkpoint-dir."
    )
    if any(change.key == "training.stage" and change.old == "codec" for change in refused):
        text += f" To train on the codec of this run: --codec {folder} with another --checkpoint-dir."
    raise RunChangedError(text, tuple(change.key for change in refused))


def report_moved_end(training: TrainingConfig, step: int, old_end: int, new_end: int) -> None:
    """Says in the log that a run which goes on has another length than before, and what that does to the learning rate."""
    _log.info("The run is %d updates long now; it was %d.", new_end, old_end)
    if training.lr_schedule == "cosine":
        _log.warning(
            "The learning rate falls along a cosine to the end of the run, so from step %d on it is another one, and the result is "
            "neither that of %d updates nor that of %d in one go. With --lr-schedule constant, given when a run is started, nothing "
            "depends on its length.", max(step, training.warmup_steps), old_end, new_end,
        )  # fmt: skip


def report_rounding(changes: Sequence[Change]) -> None:
    """Says in the log that a run which goes on is no longer bit for bit the unbroken one, where anything makes it so."""
    rounding = [str(change) for change in changes if change.rule is Rule.ROUNDING]
    if rounding:
        _log.warning(
            "The run goes on, but its losses are no longer bit for bit those of an unbroken run, only equal up to rounding: %s.",
            "; ".join(rounding),
        )


def _read_value(sections: Sections, key: str, is_codec: bool) -> Any:
    section, _, name = key.partition(".")
    unknown = SECTIONS[section].model_fields[name].default
    # A codec hears no prompts: whatever it was, it made no difference.
    if not is_codec or key not in _NOT_OF_THE_CODEC:
        unknown = _BEFORE_THE_SETTING.get(key, unknown)
    return sections.get(section, {}).get(name, unknown)


def _spell_flags(changes: Sequence[Change]) -> str:
    """The words on the command line that give these settings their old values."""
    given, left_out = [], []
    for change in changes:
        flags = [flag for key, flag, _ in iterate_flags() if key == change.key]
        name = next((flag.name for flag in flags if flag.value is GIVEN), f"--set {change.key}")
        if change.old is None:
            # It was no value: there are no words for it.
            left_out.append(name)
            continue
        text = shlex.quote(change.old if isinstance(change.old, str) else format_value(change.old))
        spelt = f"{name}={text}" if name.startswith("--set ") else f"{name} {text}"
        given.append(next((flag.name for flag in flags if flag.value is not GIVEN and flag.value == change.old), spelt))
    parts = [" ".join(given)] if given else []
    return "; ".join([*parts, f"leave out {', '.join(left_out)}"] if left_out else parts)


_OWN_PATHS = frozenset({"training.init_from", "data.vocabulary"})
"""May lie elsewhere on every machine: what is in them is compared, or handed out by the chief."""
_WAITING = (
    "training.validation_interval",
    "training.checkpoint_interval",
    "training.keep_best",
    "training.best_metric",
)
"""Decide at which steps workers wait for each other."""


def refuse_settings(config: XTTSConfig) -> None:
    """Raises `ClusterError` for settings that several workers cannot have."""
    training = config.training
    if training.mode == "auto":
        raise ClusterError(
            "--mode auto chooses for one machine that is asked as a whole. Give trainers --mode single or isolated, or --preparers."
        )
    if training.stage == "codec":
        raise ClusterError("--stage codec is trained by one process, as a codec is small. Leave out --trainers.")
    if training.codec is None and training.init_from is None and training.stage != "decoder":
        raise ClusterError(
            "--trainers needs a codec that is trained already, but none is given. Train one with one process, then give it to all, with "
            "your other flags:\n"
            "  myxtts train --stage codec --checkpoint-dir runs/codec\n"
            "  myxtts train --cluster local --trainers 2 --codec runs/codec"
        )
    if training.loss_mean != "tokens":
        raise ClusterError(
            f"training.loss_mean must be tokens in a cluster, but is {training.loss_mean}: workers hold rows of a batch, and only "
            "tokens count alike however a batch is shared. Leave it out."
        )


def refuse_plan(plan: DevicePlan) -> None:
    """Raises `ClusterError` for a device plan that no worker of a cluster can have."""
    if plan.mode not in (Mode.SINGLE, Mode.ISOLATED, Mode.REMOTE):
        raise ClusterError(
            f"A trainer of a cluster must see no GPU that it does not train on, but in the {plan.mode} mode it does. Leave out --data-gpu "
            "and --model-gpu, or add --enable-memory-isolation, which gives the preparing one a process of its own."
        )


def describe_idle_workers(config: XTTSConfig, workers: int) -> str | None:
    """What to say where there are more workers than rows to share; None where each has one."""
    rows = config.data.batch_size
    if workers <= rows:
        return None
    return (
        f"{workers} workers share batches of {rows} clips, so {workers - rows} of them have nothing to do. Give a larger --batch-size, or "
        "fewer workers."
    )


def list_shared_settings(config: XTTSConfig) -> dict[str, Any]:
    """The settings that all workers must have alike."""
    sections: Mapping[str, Mapping[str, Any]] = dump_sections(config)
    keys = [key for key, rule in RULES.items() if rule is not Rule.FREE and key not in _OWN_PATHS]
    return {key: sections[key.partition(".")[0]][key.partition(".")[2]] for key in (*keys, *_WAITING)}

"""What a run is asked to do: `XTTSConfig` and its three sections.

A setting is declared once, with its default, range, flags and help; the command line, YAML files, the printed
configuration and the reference pages are all derived from here. TensorFlow is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from myxtts.config import presets, rules
from myxtts.config.section import Section, nearest_name
from myxtts.config.setting import Auto, Flag, setting, switch
from myxtts.errors import ConfigError

ModelSize = Literal["tiny", "small", "base", "big"]
Precision = Literal["float32", "mixed_float16", "mixed_bfloat16"]
CachePolicy = Literal["off", "memory", "disk", "auto"]
RequestedMode = Literal["auto", "single", "dual", "isolated"]

LANGUAGES = (
    *("en", "es", "fr", "de", "it", "pt", "pl", "tr", "ru", "nl", "cs", "ar", "zh-cn", "hu", "ko", "ja", "hi"),
    "fa",
)
"""The languages of XTTS v2, and Persian."""


class ModelConfig(Section):
    """The network. Its numbers come from the size unless given one by one."""

    size: ModelSize = setting(
        "base",
        "size of the network: tiny, small, base (= normal) or big (= the published XTTS v2)",
        Flag("--model-size", metavar="SIZE"),
    )
    gpt_layers: int = setting(16, "GPT blocks", ge=1, le=256)
    gpt_width: int = setting(768, "channels of the GPT, the conditioning encoder and the latents", ge=8, le=16384)
    gpt_heads: int = setting(12, "attention heads of the GPT and the conditioning encoder", ge=1, le=256)
    dvae_width: int = setting(512, "hidden channels of the DVAE, and the size of one code's vector", ge=8, le=16384)
    decoder_width: int = setting(512, "channels at the input of the HiFi-GAN decoder", ge=16, le=16384)
    audio_codes: int = setting(1024, "number of different audio codes", ge=2, le=65536)
    text_tokens: int = setting(6681, "entries of the text vocabulary", ge=4, le=1_000_000)
    max_text_tokens: int = setting(402, "longest text, in tokens", ge=8, le=16384)
    max_audio_tokens: int = setting(605, "longest audio, in codes of 46 ms", ge=8, le=16384)
    max_prompt_tokens: int = setting(70, "longest conditioning prompt, in tokens", ge=1, le=16384)
    dropout: float = setting(0.1, "share of activations dropped in training", ge=0.0, lt=1.0)
    enable_gradient_checkpointing: bool = switch(
        False,
        "compute activations again in the backward pass: less memory, more time",
        "--gradient-checkpointing",
        "--no-gradient-checkpointing",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_size(cls, values: Any, handler: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("size", "base"), str):
            return handler(values)
        size = presets.normalise_size(values.get("size", "base").strip())
        filled = {name: value for name, value in presets.MODEL_SIZES.get(size, {}).items() if name not in values}
        config = handler({**filled, **values, **({"size": size} if "size" in values else {})})
        # Filled in is not given: another size may fill them anew.
        config.model_fields_set.difference_update(filled)
        return config

    @model_validator(mode="after")
    def _check_widths(self) -> ModelConfig:
        if self.gpt_width % self.gpt_heads:
            raise ConfigError(
                [
                    (
                        "gpt_heads",
                        f"must divide gpt_width ({self.gpt_width}), but is {self.gpt_heads}. "
                        "Heads of 64 channels are usual: give gpt_width / 64.",
                    )
                ]
            )
        if self.decoder_width % 16:
            raise ConfigError(
                [
                    (
                        "decoder_width",
                        f"must be a multiple of 16, since it is halved four times, but is {self.decoder_width}. "
                        f"Give {max(16, self.decoder_width // 16 * 16)}.",
                    )
                ]
            )
        return self


class DataConfig(Section):
    """The corpus, how it is read, and which device does which job."""

    train_data: str | None = setting(
        None,
        "root of an LJSpeech-style set, or its metadata file (default: the embedded demo corpus)",
        Flag("--train-data", metavar="PATH"),
        min_length=1,
    )
    val_data: str | None = setting(
        None,
        "a validation set (default: a fixed, seeded split of the training set)",
        Flag("--val-data", metavar="PATH"),
        min_length=1,
    )
    language: str = setting(
        "en", "language of clips whose metadata names none", Flag("--language", metavar="CODE"), min_length=1
    )
    strict: bool = switch(False, "a clip that has to be set aside is an error", "--strict", "--no-strict")
    batch_size: int = setting(
        8,
        "clips in a batch of usual length (default: by model size)",
        Flag("--batch-size", metavar="N"),
        ge=1,
        le=65536,
    )
    num_workers: int | Auto = setting(
        "auto", "reader processes", Flag("--num-workers", metavar="N"), union_mode="left_to_right"
    )
    prefetch_buffer_size: int | Auto = setting(
        "auto",
        "batches kept ready on the data device; auto = max(2, min(8, 64 // batch size))",
        Flag("--prefetch-buffer-size", metavar="N"),
        union_mode="left_to_right",
    )
    pipeline_buffer_size: int = setting(
        50, "batches that may be ready ahead on the host", Flag("--buffer-size", metavar="N"), ge=1, le=65536
    )
    model_start_delay: float = setting(
        2.0,
        "longest time in seconds the model waits for the buffer to fill",
        Flag("--model-start-delay", metavar="SECONDS"),
        ge=0.0,
        le=86400.0,
    )
    use_tf_native_loading: bool = setting(True, "read 16-bit PCM wav files inside TensorFlow's own input pipeline")
    enable_parallel_batch: bool = setting(True, "copy the clips of a batch in parallel")
    enable_map_fusion: bool = setting(True, "let tf.data fuse neighbouring map stages")
    prefetch_to_gpu: bool = setting(True, "keep prepared batches on the device instead of on the host")
    pad_to_fixed_length: bool = setting(
        True,
        "pad to a finite set of bucket shapes, each traced once",
        Flag("--enable-static-shapes", value=True),
        Flag("--disable-static-shapes", value=False, help="pad to the longest clip of each batch instead"),
    )
    cache: CachePolicy = setting(
        "auto",
        "where prepared codes are kept: off, memory, disk or auto",
        Flag("--cache", metavar="WHERE"),
    )
    data_service: str | None = setting(
        None,
        "host:port of a tf.data service that reads for this run",
        Flag("--data-service", metavar="HOST:PORT"),
        min_length=1,
    )
    enable_xla: bool = switch(False, "compile the training step with XLA", "--enable-xla", "--no-enable-xla")
    mixed_precision: Precision = setting(
        "float32",
        "float32, mixed_float16 or mixed_bfloat16; the bare flag means mixed_float16",
        Flag("--mixed-precision", bare="mixed_float16", metavar="PRECISION"),
    )
    data_gpu: int | None = setting(
        None,
        "physical id (as nvidia-smi shows it) of the GPU that prepares",
        Flag("--data-gpu", metavar="ID"),
        ge=0,
        le=1023,
    )
    model_gpu: int | None = setting(
        None,
        "physical id (as nvidia-smi shows it) of the GPU that trains",
        Flag("--model-gpu", metavar="ID"),
        ge=0,
        le=1023,
    )
    enable_memory_isolation: bool = switch(
        False,
        "prepare in a process of its own, with its own memory limit",
        "--enable-memory-isolation",
        "--no-enable-memory-isolation",
    )
    data_gpu_memory: int | Auto = setting(
        "auto",
        "memory limit in MB of the data GPU, with isolation or a split card (default: 8192, or what fits)",
        Flag("--data-gpu-memory", metavar="MB"),
        union_mode="left_to_right",
    )
    model_gpu_memory: int | Auto = setting(
        "auto",
        "memory limit in MB of the model GPU, with isolation or a split card (default: 16384, or what fits)",
        Flag("--model-gpu-memory", metavar="MB"),
        union_mode="left_to_right",
    )

    aliases: ClassVar[Mapping[str, str]] = {"enable_caching": "cache"}

    @model_validator(mode="before")
    @classmethod
    def _read_enable_caching(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "enable_caching" not in values:
            return values
        values = dict(values)
        answer = _read_switch("enable_caching", values.pop("enable_caching"))
        if "cache" in values and (values["cache"] != "off") != answer:
            raise ConfigError(
                [
                    (
                        "enable_caching",
                        f"is {str(answer).lower()} (the same as cache: {'auto' if answer else 'off'}), but cache is "
                        f"{values['cache']!r}. Keep one of the two.",
                    )
                ]
            )
        values.setdefault("cache", "auto" if answer else "off")
        return values

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _read_precision(cls, value: Any) -> Any:
        named = {True: "mixed_float16", False: "float32", "true": "mixed_float16", "false": "float32"}
        return named.get(value, value) if isinstance(value, bool | str) else value

    @field_validator("language")
    @classmethod
    def _check_language(cls, value: str) -> str:
        code = value.lower().replace("_", "-")
        if code in LANGUAGES:
            return code
        near = nearest_name(code, LANGUAGES)
        hint = f' Did you mean "{near}"?' if near else ""
        raise ValueError(f"must be one of {', '.join(LANGUAGES)}, but is {value!r}.{hint}")

    @field_validator("num_workers", "prefetch_buffer_size", "data_gpu_memory", "model_gpu_memory")
    @classmethod
    def _check_range_or_auto(cls, value: int | Auto, info: Any) -> int | Auto:
        low, high = AUTO_RANGES[info.field_name]
        if value == "auto" or low <= value <= high:
            return value
        raise ValueError(f'must be "auto" or a whole number from {low} to {high}, but is {value}.')

    @field_validator("data_service")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host, _, port = value.rpartition(":")
        if host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535:
            return value
        raise ValueError(f"must be an address like 10.0.0.5:5050, but is {value!r}.")

    @property
    def enable_caching(self) -> bool:
        """Whether prepared codes are kept anywhere."""
        return self.cache != "off"

    @property
    def prefetch_depth(self) -> int:
        """Batches kept ready on the data device, with `auto` worked out."""
        if self.prefetch_buffer_size == "auto":
            return max(2, min(8, 64 // self.batch_size))
        return self.prefetch_buffer_size


AUTO_RANGES: Mapping[str, tuple[int, int]] = {
    "num_workers": (0, 1024),
    "prefetch_buffer_size": (1, 4096),
    "data_gpu_memory": (128, 1 << 20),
    "model_gpu_memory": (128, 1 << 20),
}


class TrainingConfig(Section):
    """The run: what is trained, for how long, in which mode, and what is kept."""

    stage: Literal["codec", "gpt", "decoder"] = setting(
        "gpt", "what to train: codec (DVAE), gpt or decoder (HiFi-GAN)", Flag("--stage", metavar="STAGE")
    )
    init_from: str | None = setting(
        None,
        "start from this imported checkpoint folder or model.pth (fine-tuning)",
        Flag("--init-from", metavar="PATH"),
        min_length=1,
    )
    epochs: int = setting(100, "passes over the corpus", Flag("--epochs", metavar="N"), ge=1, le=1_000_000)
    max_steps: int | None = setting(
        None, "stop after this many updates", Flag("--max-steps", metavar="N"), ge=1, le=1_000_000_000
    )
    learning_rate: float = setting(
        2e-4,
        "learning rate (default: by model size; fine-tuning 5e-6)",
        Flag("--lr", metavar="RATE"),
        gt=0.0,
        le=10.0,
    )
    gradient_accumulation_steps: int = setting(
        1, "batches whose gradients make one update", Flag("--grad-accum", metavar="N"), ge=1, le=65536
    )
    checkpoint_dir: str = setting(
        "checkpoints", "where checkpoints and logs of the run go", Flag("--checkpoint-dir", metavar="DIR"), min_length=1
    )
    resume: Literal["auto", "require", "reset"] = setting(
        "auto",
        "auto: continue an unfinished run if there is one",
        Flag("--resume", value="require", help="continue the run in --checkpoint-dir; an error if there is none"),
        Flag("--reset-training", value="reset", help="start anew and keep the old run aside"),
    )
    tensorboard_log_dir: str | None = setting(
        None,
        "TensorBoard folder (default: inside --checkpoint-dir)",
        Flag("--tensorboard-log-dir", metavar="DIR"),
        min_length=1,
    )
    seed: int = setting(0, "seed of every random choice", Flag("--seed", metavar="N"), ge=0, le=2**63 - 1)
    deterministic: bool = switch(
        False, "bit-identical runs on the same machine, somewhat slower", "--deterministic", "--no-deterministic"
    )
    on_oom: Literal["retry", "stop"] = setting(
        "retry",
        "out of memory: retry (half the micro-batch, twice the accumulation) or stop",
        Flag("--on-oom", metavar="WHAT"),
    )
    mode: RequestedMode | None = setting(
        None,
        "auto (measured), single, dual or isolated (default: follows from the GPU flags)",
        Flag("--mode", metavar="MODE"),
    )
    rehearsal: bool = switch(
        False, "the same roles on logical CPU devices, no GPU needed", "--rehearsal", "--no-rehearsal"
    )
    optimization_level: Literal["basic", "enhanced", "experimental"] = setting(
        "enhanced",
        "preset: basic, enhanced or experimental (see --print-config)",
        Flag("--optimization-level", metavar="LEVEL"),
    )
    cluster: str | None = setting(
        None, "file that names the machines of a distributed run", Flag("--cluster", metavar="FILE"), min_length=1
    )


class XTTSConfig(Section):
    """A whole, valid configuration.

    Example:
        config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 4})
        config.training.learning_rate        # 1e-3, from the preset of the size
        config.origins["data.batch_size"]    # "given"
    """

    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _fill_presets(cls, values: Any, handler: Any) -> Any:
        if isinstance(values, cls):
            return values
        sections, given = _flatten_sections(values)
        filled = presets.preset_values(given)
        for key, (value, _) in filled.items():
            section, _, name = key.partition(".")
            if isinstance(sections.get(section, {}), dict):
                sections[section] = {**sections.get(section, {}), name: value}
        config = handler(sections)
        config._origins = dict.fromkeys(setting_keys(), "default")
        config._origins |= {key: preset for key, (_, preset) in filled.items()}
        config._origins |= dict.fromkeys(given, "given")
        return config

    @model_validator(mode="after")
    def _check_rules(self) -> XTTSConfig:
        problems = rules.find_problems(self)
        if problems:
            raise ConfigError(problems)
        return self

    def __eq__(self, other: object) -> bool:
        # Same values are the same configuration, wherever they come from.
        return isinstance(other, XTTSConfig) and all(
            getattr(self, section) == getattr(other, section) for section in SECTIONS
        )

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, section) for section in SECTIONS))

    @property
    def origins(self) -> dict[str, str]:
        """Where each value comes from, by dotted key."""
        return dict(self._origins)

    def given_values(self) -> dict[str, dict[str, Any]]:
        """Only what was given explicitly, by section: what a preset filled in stays open to another preset."""
        given: dict[str, dict[str, Any]] = {}
        for key, origin in self._origins.items():
            if origin != "default" and not origin.startswith("preset "):
                section, _, name = key.partition(".")
                given.setdefault(section, {})[name] = getattr(getattr(self, section), name)
        return given

    def replace(self, **sections: Mapping[str, Any]) -> XTTSConfig:
        """A new configuration with these values given on top: `config.replace(data={"batch_size": 4})`."""
        merged = self.given_values()
        for section, values in sections.items():
            merged[section] = {**merged.get(section, {}), **values}
        return XTTSConfig(**merged)


SECTIONS: Mapping[str, type[Section]] = {"model": ModelConfig, "data": DataConfig, "training": TrainingConfig}


def setting_keys() -> list[str]:
    """Every dotted key, in the order of declaration."""
    return [f"{section}.{name}" for section, cls in SECTIONS.items() for name in cls.model_fields]


def _flatten_sections(values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Section dictionaries (made from section objects too), and their explicit values by dotted key."""
    sections: dict[str, Any] = dict(values) if isinstance(values, Mapping) else {"": values}
    given: dict[str, Any] = {}
    for name, section in sections.items():
        if isinstance(section, Section):
            sections[name] = section = section.model_dump(exclude_unset=True)
        elif section is None and name in SECTIONS:
            # An empty `data:` heading in a YAML file.
            sections[name] = section = {}
        if isinstance(section, Mapping) and name in SECTIONS:
            sections[name] = dict(section)
            aliases = SECTIONS[name].aliases
            given |= {f"{name}.{aliases.get(key, key)}": value for key, value in section.items()}
    return sections, given


def _read_switch(key: str, value: Any) -> bool:
    answers = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    answer = answers.get(str(value).strip().lower())
    if answer is None:
        raise ConfigError([(key, f"must be true or false, but is {value!r}.")])
    return answer

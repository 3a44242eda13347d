"""Settings of the corpus, of how it is read, and of which device does which job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from myxtts.config.settings import Auto, Flag, Section, WholeOrAuto, nearest_name, setting, switch
from myxtts.errors import ConfigError

Precision = Literal["float32", "mixed_float16", "mixed_bfloat16"]
PromptSource = Literal["shared", "speaker", "clip"]
CachePolicy = Literal["off", "memory", "disk", "auto"]

LANGUAGES = (
    *("en", "es", "fr", "de", "it", "pt", "pl", "tr", "ru", "nl", "cs", "ar", "zh-cn", "hu", "ko", "ja", "hi"),
    "fa",
)
"""The languages of XTTS v2, and Persian."""


class DataConfig(Section):
    """The corpus, how it is read, and which device does which job."""

    train_data: str | None = setting(
        None,
        "root of an LJSpeech-style set, or its metadata file (default: the embedded demo corpus)",
        "--train-data PATH",
    )
    val_data: str | None = setting(
        None, "a validation set (default: a fixed, seeded split of the training set)", "--val-data PATH"
    )
    language: str = setting(
        "en", f"language of clips whose metadata names none: {', '.join(LANGUAGES)}", "--language CODE"
    )
    vocabulary: str | None = setting(
        None,
        "text vocabulary, a vocab.json (default: that of the checkpoint, or one made from the corpus)",
        "--vocabulary FILE",
    )
    min_clip_seconds: float = setting(
        0.5, "shorter clips are set aside", "--min-clip-seconds SECONDS", within=(0.0, 60.0)
    )
    max_clip_seconds: float = setting(
        11.6, "longer clips are set aside", "--max-clip-seconds SECONDS", gt=0.0, le=120.0
    )
    max_text_length: int = setting(200, "texts of more tokens are set aside", "--max-text-length", within=(1, 16384))
    prompt_seconds: float = setting(
        6.0,
        "longest voice prompt in training; shorter ones are followed by silence up to it (default: 6; tiny 2)",
        "--prompt-seconds SECONDS",
        within=(0.5, 6.0),
    )
    prompt_from: PromptSource = setting(
        "shared",
        "what a voice prompt in training is cut from: one of the speaker's longest clips for all clips of the speaker in a batch, "
        "another clip of the speaker for each, or the clip itself (default: shared; with augmentation or for a decoder speaker; "
        "fine-tuning clip)",
        "--prompt-from",
    )
    strict: bool = switch(False, "a clip that has to be set aside is an error", "--strict", "--no-strict")
    follow_symlinks: bool = switch(True, "use clips behind symbolic links", "--follow-symlinks", "--no-follow-symlinks")
    batch_size: int = setting(
        8, "clips in a batch of usual length (default: by model size; fine-tuning 3)", "--batch-size", within=(1, 65536)
    )
    num_workers: WholeOrAuto = setting("auto", "reader processes", "--num-workers", within=(0, 1024))
    prefetch_buffer_size: WholeOrAuto = setting(
        "auto",
        "batches kept ready on the data device; auto = max(2, min(8, 64 // batch size))",
        "--prefetch-buffer-size",
        within=(1, 4096),
    )
    pipeline_buffer_size: int = setting(
        50, "batches that may be ready ahead on the host", "--buffer-size", within=(1, 65536)
    )
    model_start_delay: float = setting(
        2.0,
        "longest time in seconds the model waits, once the first batch is ready, for the other slots to fill",
        "--model-start-delay SECONDS",
        within=(0.0, 86400.0),
    )
    use_tf_native_loading: bool | Auto = setting(
        "auto",
        "read 16-bit PCM wav files inside TensorFlow's own input pipeline; auto = only where no reader processes are used",
        union_mode="left_to_right",
    )
    enable_parallel_batch: bool = setting(True, "copy the clips of a batch in parallel")
    enable_map_fusion: bool = setting(True, "let tf.data fuse neighbouring map stages")
    prefetch_to_gpu: bool = setting(True, "keep prepared batches on the device instead of on the host")
    pad_to_fixed_length: bool = switch(
        True,
        "pad to a finite set of bucket shapes, each traced once, instead of to the longest clip of each batch",
        "--enable-static-shapes",
        "--disable-static-shapes",
    )
    cache: CachePolicy = setting(
        "auto", "where prepared codes are kept; auto measures (default: auto; optimization level basic off)", "--cache"
    )
    augment_gain_db: float = setting(
        0.0, "augmentation: louder or softer by up to so many dB; 0 is off", within=(0.0, 40.0)
    )
    augment_noise_db: float | None = setting(
        None,
        "augmentation: white noise of up to this level relative to full scale (-60 is little)",
        within=(-120.0, 0.0),
    )
    augment_speed: float = setting(
        0.0, "augmentation: faster or slower by up to this share; changes the pitch too", within=(0.0, 0.5)
    )
    augment_frame_masks: int = setting(0, "augmentation: stretches of the prompt's mel made silent", within=(0, 16))
    augment_band_masks: int = setting(0, "augmentation: groups of the prompt's mel bands made silent", within=(0, 16))
    enable_xla: bool | Auto = switch(
        "auto",
        "compile the training step with XLA; auto: on GPUs that this TensorFlow can compile for (default: auto; optimization level "
        "basic off, experimental on)",
        "--enable-xla",
        "--no-enable-xla",
    )
    mixed_precision: Precision = setting(
        "float32",
        "what the network computes in; the bare flag means mixed_float16 (default: float32; optimization level experimental "
        "mixed_float16)",
        Flag("--mixed-precision", bare="mixed_float16"),
    )
    data_gpu: int | None = setting(
        None,
        "physical id (as nvidia-smi shows it) of the GPU that prepares (default: one device does both)",
        "--data-gpu ID",
        within=(0, 1023),
    )
    model_gpu: int | None = setting(
        None,
        "physical id (as nvidia-smi shows it) of the GPU that trains (default: one device does both)",
        "--model-gpu ID",
        within=(0, 1023),
    )
    enable_memory_isolation: bool = switch(
        False,
        "prepare in a process of its own, with its own memory limit",
        "--enable-memory-isolation",
        "--no-enable-memory-isolation",
    )
    data_gpu_memory: WholeOrAuto = setting(
        "auto",
        "memory limit in MB of the data GPU, with isolation or a split card (default: 8192, or what fits)",
        "--data-gpu-memory MB",
        within=(128, 1 << 20),
    )
    model_gpu_memory: WholeOrAuto = setting(
        "auto",
        "memory limit in MB of the model GPU, with isolation or a split card (default: 16384, or what fits)",
        "--model-gpu-memory MB",
        within=(128, 1 << 20),
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
            same, cache = "auto" if answer else "off", values["cache"]
            text = f"is {str(answer).lower()} (the same as cache: {same}), but cache is {cache!r}. Keep one of the two."
            raise ConfigError(("enable_caching", text))
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


def _read_switch(key: str, value: Any) -> bool:
    answers = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    answer = answers.get(str(value).strip().lower())
    if answer is None:
        raise ConfigError((key, f"must be true or false, but is {value!r}."))
    return answer

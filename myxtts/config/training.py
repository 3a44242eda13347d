"""Settings of the run."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from myxtts.config.settings import Flag, Section, WholeOrAuto, parse_gpu_ids, setting, switch

RequestedMode = Literal["auto", "single", "dual", "isolated"]

LORA_PRODUCTS = ("qkv", "project", "expand", "contract")
"""Of a GPT block, by their names in it."""


class TrainingConfig(Section):
    """The run: what is trained, for how long, in which mode, and what is kept."""

    stage: Literal["codec", "gpt", "decoder"] = setting(
        "gpt", "what to train: the codec (DVAE), the GPT or the decoder (HiFi-GAN)", "--stage"
    )
    init_from: str | None = setting(
        None,
        "start from this model: base (the voice that comes with MyXTTS), a model folder, or Coqui's model.pth (fine-tuning; for a "
        "decoder, the model it is trained for) (default: start from nothing)",
        "--init-from PATH",
    )
    lora_rank: int = setting(
        0,
        "fine-tune by adapters of this rank beside products of the GPT, which itself stays as it is (LoRA): less memory, small "
        "checkpoints; 0 trains all of it",
        "--lora-rank",
        within=(0, 1024),
    )
    lora_alpha: float = setting(
        32.0, "what adapters add is multiplied by this and divided by their rank", "--lora-alpha", gt=0.0, le=1e6
    )
    lora_matrices: str = setting(
        ",".join(LORA_PRODUCTS),
        "products of each GPT block that get an adapter: of the attention qkv and project, of the feed-forward half expand and contract",
        "--lora-matrices NAMES",
    )
    epochs: int = setting(100, "passes over the corpus", "--epochs", within=(1, 1_000_000))
    max_steps: int | None = setting(
        None, "stop after this many updates (default: after the last epoch)", "--max-steps", within=(1, 1_000_000_000)
    )
    learning_rate: float = setting(
        2e-4,
        "learning rate (default: by model size; fine-tuning 5e-6, with LoRA 3e-4, for a small model more; decoder 2e-4)",
        "--lr RATE",
        gt=0.0,
        le=10.0,
    )
    lr_schedule: Literal["cosine", "constant"] = setting(
        "cosine", "cosine falls to a tenth over the run (default: cosine; fine-tuning constant)", "--lr-schedule"
    )
    warmup_steps: int = setting(
        100,
        "updates over which the learning rate rises from zero (default: 100; fine-tuning 0)",
        "--warmup-steps",
        within=(0, 1_000_000),
    )
    weight_decay: float = setting(
        0.01, "share of the learning rate by which matrices shrink in each update", within=(0.0, 1.0)
    )
    clip_norm: float = setting(
        1.0,
        "longest gradient; longer ones are scaled down; 0 is no limit (default: 1; fine-tuning 0; decoder 1000)",
        "--clip-norm LENGTH",
        within=(0.0, 1e6),
    )
    ema_decay: float = setting(
        0.0,
        "keep a moving average of the weights with this decay, validated and saved beside them; 0 is none",
        "--ema-decay DECAY",
        ge=0.0,
        lt=1.0,
    )
    loss_mean: Literal["tokens", "batches"] = setting(
        "tokens",
        "what counts alike in an update: every token, or every batch whatever its length (as the reference has it)",
    )
    blank_prompt: bool = setting(False, "leave out of the loss what the voice prompt was cut from")
    gradient_accumulation_steps: int = setting(
        1,
        "batches whose gradients make one update (default: 1; fine-tuning as many as make 252 clips)",
        "--grad-accum",
        within=(1, 65536),
    )
    checkpoint_dir: str = setting("checkpoints", "where checkpoints and logs of the run go", "--checkpoint-dir DIR")
    resume: Literal["auto", "require", "reset"] = setting(
        "auto",
        "auto: continue an unfinished run if there is one",
        Flag(
            "--resume",
            value="require",
            help="continue the run in --checkpoint-dir, or fail (default: continue, or start one)",
        ),
        Flag("--reset-training", value="reset", help="start anew and keep the old run aside"),
    )
    validation_interval: WholeOrAuto = setting(
        "auto",
        "updates between two validations; auto = whole epochs, at least 100 updates",
        "--validation-interval",
        within=(1, 1_000_000_000),
    )
    checkpoint_interval: WholeOrAuto = setting(
        "auto",
        "updates between two checkpoints; auto = at every validation",
        "--checkpoint-interval",
        within=(1, 1_000_000_000),
    )
    keep_last: int = setting(2, "newest checkpoints that are kept", "--keep-last", within=(1, 10_000))
    keep_best: int = setting(1, "best checkpoints that are kept beside them", "--keep-best", within=(0, 10_000))
    best_metric: Literal["val_loss", "train_loss"] = setting(
        "val_loss", "what makes a checkpoint the best", "--best-metric"
    )
    early_stopping: int = setting(
        0, "stop after so many validations without a better loss; 0 is never", "--early-stopping", within=(0, 1_000_000)
    )
    log_interval: int = setting(10, "updates between two readings of the losses", "--log-interval", within=(1, 100_000))
    watchdog_seconds: float = setting(
        300.0,
        "name a stage that makes no progress for so long, and end the run after twice that; the first call, tracing and saving get "
        "three times as long; 0 is never",
        "--watchdog-seconds SECONDS",
        within=(0.0, 1e6),
    )
    speak: bool = switch(True, "say a sentence at every validation and at the end of a run", "--speak", "--no-speak")
    codec: str | None = setting(
        None, "folder of a trained codec (default: that of --init-from, or one trained first)", "--codec DIR"
    )
    codec_steps: int = setting(
        1000, "updates of the codec where it is trained first", "--codec-steps", within=(1, 1_000_000_000)
    )
    tensorboard_log_dir: str | None = setting(
        None, "TensorBoard folder (default: inside --checkpoint-dir)", "--tensorboard-log-dir DIR"
    )
    seed: int = setting(0, "seed of every random choice", "--seed", within=(0, 2**63 - 1))
    deterministic: bool = switch(
        False, "bit-identical runs on the same machine, somewhat slower", "--deterministic", "--no-deterministic"
    )
    on_oom: Literal["retry", "stop"] = setting(
        "retry", "out of memory: retry with half the micro-batch and twice the accumulation, or stop", "--on-oom"
    )
    mode: RequestedMode | None = setting(
        None, "how devices share the work; auto measures (default: follows from the GPU flags)", "--mode"
    )
    model_gpus: str | None = setting(
        None,
        "physical ids of several GPUs that all train, as in 0,1, and share every batch (default: one trains)",
        "--model-gpus IDS",
    )
    rehearsal: bool = switch(
        False, "the same roles on logical CPU devices, no GPU needed", "--rehearsal", "--no-rehearsal"
    )
    optimization_level: Literal["basic", "enhanced", "experimental"] = setting(
        "enhanced", "preset of precision, XLA, caching and reading (--print-config shows it)", "--optimization-level"
    )
    cluster: str | None = setting(
        None,
        "address of a Ray cluster for --trainers and --preparers, or local for this machine alone (default: none)",
        "--cluster ADDRESS",
    )
    trainers: int = setting(
        1,
        "processes that train and share every batch, on the machines of the cluster",
        "--trainers N",
        within=(1, 1000),
    )
    preparers: int = setting(
        0,
        "actors that prepare batches, on the machines of the cluster (default: none)",
        "--preparers N",
        within=(0, 1000),
    )

    @property
    def keeps_start(self) -> bool:
        """Whether a copy of the model that the run starts from is part of it: what that came from may be trained on, or go away."""
        return self.stage == "decoder" or self.lora_rank > 0

    @field_validator("lora_matrices")
    @classmethod
    def _check_products(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if len(set(names)) < len(names) or not set(names) <= set(LORA_PRODUCTS):
            raise ValueError(f"must be some of {','.join(LORA_PRODUCTS)}, each once, but is {value!r}.")
        return ",".join(names)

    @field_validator("model_gpus")
    @classmethod
    def _check_ids(cls, value: str | None) -> str | None:
        if value is not None and len(parse_gpu_ids(value)) < 2:
            raise ValueError(f"must be two or more different ids, as in 0,1, but is {value!r}.")
        return value

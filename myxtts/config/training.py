"""Settings of the run."""

from __future__ import annotations

from typing import Literal

from myxtts.config.section import Section
from myxtts.config.setting import Flag, setting, switch

RequestedMode = Literal["auto", "single", "dual", "isolated"]


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

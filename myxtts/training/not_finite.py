"""What is kept and said of an update whose loss or gradient is not finite."""

from __future__ import annotations

import json
from pathlib import Path

from myxtts.data.positions import count_micro_batches
from myxtts.data.run_data import RunData
from myxtts.data.sampler import GlobalBatch
from myxtts.training.errors import NotFiniteError


def explain_not_finite(
    batch: GlobalBatch, loss: float, data: RunData, folder: Path, *, has_start: bool
) -> NotFiniteError:
    """Writes down what the update was made of, and gives the error that says so.

    Args:
        batch: of the update, rebuilt from its place alone.
        loss: as far as it is known.
        data: what the run trains on.
        folder: of the run.
        has_start: whether another run could start from what this one has saved.
    """
    audio, step = data.train.audio, batch.step
    clips = [audio[int(clip)] for clip in batch.clips]
    prompts = None if batch.prompts is None else [audio[int(clip)] for clip in batch.prompts]
    path = folder / f"not-finite-step-{step:08d}.json"
    write_replay(path, step=step, epoch=batch.epoch, seed=data.sampler.seed, clips=clips, prompts=prompts)
    count = count_micro_batches(data.sampler, step)
    other = f", or from here with --init-from {folder} and another --checkpoint-dir" if has_start else ""
    return NotFiniteError(
        f"The loss ({loss}) or a gradient of step {step} is not finite; that update was not made, and nothing was saved since. "
        f"Its {len(clips)} clips, in {count} batches, and their voice prompts are listed in {path}: look at them. The run would "
        "come to the same step again. Start another one with a lower --lr, --clip-norm 1, or float32 instead of "
        f"--mixed-precision: anew with --reset-training{other}."
    )


def write_replay(path: Path, *, step: int, epoch: int, seed: int, clips: list[str], prompts: list[str] | None) -> None:
    """Names the clips of a step, for looking at them and for doing the step again.

    Args:
        path: the file to write.
        step: its number.
        epoch: it is part of.
        seed: of the run's order.
        clips: the audio files, in the order of their rows.
        prompts: the clip that each one's voice prompt is cut from; None where no other clip is heard.
    """
    content = {"step": step, "epoch": epoch, "seed": seed, "clips": clips, "prompts": prompts}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

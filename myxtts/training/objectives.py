"""What is trained, and what makes it better: the part of a step that knows a model.

Shape suffixes: B rows, L positions, M codes, F mel frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from myxtts.models.gpt import GPT, GPTBatch, measure_losses
from myxtts.models.losses import AUDIO_WEIGHT, TEXT_WEIGHT
from myxtts.models.sequences import Framed

Tensors = Mapping[str, tf.Tensor]
"""A prepared batch by name, see `myxtts.pipeline.prepare`."""


class Outcome(NamedTuple):
    """What one forward pass gives. Outcomes of a step's micro-batches add up to the step's."""

    loss: tf.Tensor
    """This batch's part of the global batch's loss."""
    sums: tf.Tensor
    """One number for each of the objective's `sum_names`."""
    extras: tuple[tf.Tensor, ...] = ()
    """What `finish_update` needs."""
    pursued: tuple[tf.Tensor, ...] = ()
    """What the model makes small and what its rival does, where there is a rival. Without one it is the loss itself."""

    @property
    def aims(self) -> tuple[tf.Tensor, ...]:
        """What the model, and its rival if it has one, are moved to make small."""
        return self.pursued or (self.loss,)


class Objective(Protocol):
    """A model and its loss."""

    @property
    def model(self) -> Any:
        """The Keras layer that is trained, which knows the names of its weights (`Named`)."""

    @property
    def rival(self) -> Any | None:
        """Another such layer, which learns against the model with gradients and an optimizer of its own; None for none."""

    @property
    def sum_names(self) -> tuple[str, ...]:
        """What an outcome's sums are of."""

    def choose_phase(self, step: int) -> str:
        """What kind of step this is. Each kind is traced on its own."""

    def is_ranked(self, phase: str) -> bool:
        """Whether losses of this phase tell which checkpoint is the better one: all phases that do have the same loss."""

    def begin_step(self, step: int, batch: Tensors) -> None:
        """Whatever happens to the model before an update, besides the update; a pure function of its arguments and the model."""

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> Outcome:
        """Loss of a batch; nothing is changed.

        Args:
            share: the batch's weight where every batch of an update counts alike.
            key: of its dropout masks; None switches dropout off.
        """

    def list_extra_shapes(self, phase: str) -> tuple[tuple[int, ...], ...]:
        """Shapes of an outcome's extras."""

    def finish_update(self, extras: tuple[tf.Tensor, ...]) -> None:
        """What else an update changes, from the sums of extras."""

    def name_results(self, sums: Mapping[str, float], phase: str) -> dict[str, float]:
        """The figures a person reads, `loss` among them, from sums over any number of batches of one phase."""


class OnePhase:
    """What an objective without phases, and without anything to change besides the update, has to say about them."""

    def choose_phase(self, step: int) -> str:
        return "all"

    def is_ranked(self, phase: str) -> bool:
        return True

    def begin_step(self, step: int, batch: Tensors) -> None:
        pass

    def list_extra_shapes(self, phase: str) -> tuple[tuple[int, ...], ...]:
        return ()

    def finish_update(self, extras: tuple[tf.Tensor, ...]) -> None:
        pass


class GPTObjective(OnePhase):
    """Text and prompt predict the codes, and the text itself a little.

    Args:
        gpt: what is trained.
        loss_mean: whether every token counts alike or every batch.
        blank_prompt: leave out what the prompt was cut from.
    """

    rival = None
    sum_names = ("text_total", "text_count", "audio_total", "audio_count", "correct")

    def __init__(self, gpt: GPT, *, loss_mean: str = "tokens", blank_prompt: bool = False):
        self.model = gpt
        self._loss_mean = loss_mean
        self._blank_prompt = blank_prompt

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> Outcome:
        text, audio, logits = self._run(batch, key)
        losses = measure_losses(logits, text, audio)
        hits_BL = (tf.argmax(logits[1], -1) == audio.targets_BL) & audio.counted_BL
        if self._loss_mean == "tokens":
            loss = losses.weigh(batch["totals_2"][0], batch["totals_2"][1])
        else:
            loss = losses.weigh() * share
        return Outcome(loss, tf.stack([*losses.text, *losses.audio, tf.reduce_sum(tf.cast(hits_BL, tf.float32))]))

    def predict(self, batch: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits of the codes of a batch, and how many of the first row's are codes."""
        return self._run(batch, None)[2][1], batch["code_lengths_B"][0]

    def _run(self, batch: Tensors, key: tf.Tensor | None) -> tuple[Framed, Framed, tuple[tf.Tensor, tf.Tensor]]:
        gpt = self.model
        # int64 on the device: int32 tensors live in host memory even when a GPU computes.
        wide = {name: tf.cast(batch[name], tf.int64) for name in ("text_BT", "codes_BM")}
        text, audio = gpt.frame(
            GPTBatch(
                mel_BFM=batch["mel_BFM"],
                text_BT=wide["text_BT"],
                text_lengths_B=batch["text_lengths_B"],
                codes_BM=wide["codes_BM"],
                code_lengths_B=batch["code_lengths_B"],
                spans_B2=batch["spans_B2"] if self._blank_prompt else None,
                weights_B=batch["weights_B"],
            )
        )
        return text, audio, gpt.compute_logits(gpt.make_prompt(batch["mel_BFM"]), text, audio, key)

    def name_results(self, sums: Mapping[str, float], phase: str) -> dict[str, float]:
        text = _divide(sums["text_total"], sums["text_count"])
        audio = _divide(sums["audio_total"], sums["audio_count"])
        return {
            "loss": weigh_means(text, audio),
            "text_loss": text,
            "audio_loss": audio,
            "code_accuracy": _divide(sums["correct"], sums["audio_count"]),
        }


def weigh_means(text: float, audio: float) -> float:
    """The loss of a GPT from its two means."""
    return TEXT_WEIGHT * text + AUDIO_WEIGHT * audio


def _divide(total: float, count: float) -> float:
    return total / count if count else 0.0

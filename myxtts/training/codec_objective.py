"""Training the DVAE: mel in, the same mel out, through few codes.

A codebook that starts at random collapses: most codes are never the nearest one. So the encoder first learns without
codes, the codebook is then drawn from what it says, and codes that fall out of use are drawn anew. (Started at random, 75
of 512 codes were in use after five minutes; so, 900 of 1,024.)

Shape suffixes: B rows, F mel frames, M mel channels, T codes, D length of a code's vector.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from myxtts.audio.units import FRAMES_PER_CODE
from myxtts.models.codebook import CodeUsage
from myxtts.models.dvae import DVAE
from myxtts.pipeline.codes import ShapedFunction
from myxtts.training.objectives import Outcome, Tensors

COMMITMENT_WEIGHT = 0.25
REVIVAL_INTERVAL = 20
LAST_REVIVAL_SHARE = 0.8
"""Of the run: codes drawn anew later would have no time to find their place."""

UNQUANTISED, QUANTISED = "unquantised", "quantised"


class CodecObjective:
    """A mel rebuilt from its codes.

    Args:
        dvae: what is trained.
        seed: of the draws for the codebook.
        free_steps: updates without codes at the beginning.
        total_steps: of the whole run.
    """

    rival = None
    sum_names = ("squares", "values", "commitment_squares", "commitment_values")

    def __init__(self, dvae: DVAE, *, seed: int, free_steps: int, total_steps: int):
        self.model = dvae
        self._seed = seed
        self._free_steps = free_steps
        self._last_revival = int(total_steps * LAST_REVIVAL_SHARE)
        self._draw = ShapedFunction(self._draw_codebook)
        self._revive = ShapedFunction(self._revive_codes)

    def choose_phase(self, step: int) -> str:
        return UNQUANTISED if step < self._free_steps else QUANTISED

    def is_ranked(self, phase: str) -> bool:
        # Without codes a mel is rebuilt better than with them, by a model that has no codebook yet.
        return phase == QUANTISED

    def begin_step(self, step: int, batch: Tensors) -> None:
        if step == self._free_steps:
            self._draw(batch["mel_BFM"], batch["frame_lengths_B"], self._make_key(step))
        elif self._free_steps < step <= self._last_revival and (step - self._free_steps) % REVIVAL_INTERVAL == 0:
            self._revive(batch["mel_BFM"], batch["frame_lengths_B"], self._make_key(step))

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> Outcome:
        losses = self.model.compute_losses(batch["mel_BFM"], batch["frame_lengths_B"], quantise=phase == QUANTISED)
        frames = batch["totals_2"][0]
        rebuilt = losses.reconstruction.total / (frames * batch["mel_BFM"].shape[-1])
        committed = losses.commitment.total / (frames / FRAMES_PER_CODE * self.model.size.width)
        loss = rebuilt + (COMMITMENT_WEIGHT * committed if phase == QUANTISED else 0.0)
        sums = tf.stack([*losses.reconstruction, *losses.commitment])
        return Outcome(loss, sums, tuple(losses.usage) if phase == QUANTISED else ())

    def list_extra_shapes(self, phase: str) -> tuple[tuple[int, ...], ...]:
        size = self.model.size
        return ((size.codes,), (size.codes, size.width)) if phase == QUANTISED else ()

    def finish_update(self, extras: tuple[tf.Tensor, ...]) -> None:
        if extras:
            self.model.codebook.update(CodeUsage(*extras))

    def name_results(self, sums: Mapping[str, float], phase: str) -> dict[str, float]:
        rebuilt = sums["squares"] / sums["values"]
        if phase == UNQUANTISED:
            return {"loss": rebuilt, "mel_error": rebuilt}
        committed = sums["commitment_squares"] / sums["commitment_values"]
        return {"loss": rebuilt + COMMITMENT_WEIGHT * committed, "mel_error": rebuilt, "commitment": committed}

    def _make_key(self, step: int) -> tf.Tensor:
        return tf.constant([self._seed % 2**31, step], tf.int32)

    def _draw_codebook(self, mel_BFM: tf.Tensor, lengths_B: tf.Tensor, key_2: tf.Tensor) -> None:
        self.model.codebook.draw_from(self._encode(mel_BFM, lengths_B), key_2)

    def _revive_codes(self, mel_BFM: tf.Tensor, lengths_B: tf.Tensor, key_2: tf.Tensor) -> None:
        self.model.codebook.revive(self._encode(mel_BFM, lengths_B), key_2)

    def _encode(self, mel_BFM: tf.Tensor, lengths_B: tf.Tensor) -> tf.Tensor:
        """The encoder's vectors (N, D) that are not padding."""
        # Row by row: a whole batch at once may need more than training does where that is done in parts.
        z_BTD = tf.map_fn(
            lambda mel_FM: tf.cast(self.model.encoder(mel_FM[tf.newaxis])[0], tf.float32),
            mel_BFM,
            parallel_iterations=1,
            fn_output_signature=tf.float32,
        )
        counted_BT = tf.sequence_mask(lengths_B, mel_BFM.shape[1])[:, ::FRAMES_PER_CODE]
        return tf.boolean_mask(z_BTD, counted_BT)

"""What is trained, and what makes it better: the part of a step that knows a model.

Shape suffixes: B rows, L positions, M codes, F mel frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from myxtts.models.discriminators import (
    FEATURE_WEIGHT,
    MEL_WEIGHT,
    Rivals,
    measure_deception,
    measure_discernment,
    measure_feature_distance,
    measure_mel_distance,
)
from myxtts.models.dvae import DVAE, CodeUsage
from myxtts.models.gpt import GPT, Adapters, Framed, GPTBatch, measure_losses
from myxtts.models.layers import look_up, mask_lengths, measure
from myxtts.models.losses import AUDIO_WEIGHT, TEXT_WEIGHT
from myxtts.models.sizes import SAMPLES_PER_FRAME, SEGMENT_FRAMES, SEGMENT_SAMPLES
from myxtts.models.waveform import WaveformDecoder, stretch_latents
from myxtts.pipeline.codes import ShapedFunction
from myxtts.units import FRAMES_PER_CODE

Tensors = Mapping[str, tf.Tensor]
"""A prepared batch by name, see `myxtts.pipeline.prepare`."""


def _widen(batch: Tensors) -> Tensors:
    """A batch whose ids and lengths are int64 on the device: int32 tensors live in host memory even when a GPU computes."""
    return {name: tf.cast(value, tf.int64) if value.dtype == tf.int32 else value for name, value in batch.items()}


class LossParts(NamedTuple):
    """What one forward pass gives. Those of a step's micro-batches add up to the step's."""

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


class Objective:
    """A model and its loss; here without phases, rival, or anything to change besides the update."""

    model: Any
    """The Keras layer that is trained, which knows the names of its weights (`Named`)."""
    adapters: Adapters | None = None
    """What is trained of the model, where that is not all of it."""
    rival: Any | None = None
    """Another such layer, which learns against the model with gradients and an optimizer of its own."""
    sum_names: tuple[str, ...]
    """What the sums of `compute` are of."""

    @property
    def trained(self) -> Any:
        """Whatever learns, and is saved, by its names (`Named`)."""
        return self.adapters or self.model

    def choose_phase(self, step: int) -> str:
        """What kind of step this is. Each kind is traced on its own."""
        return "all"

    def list_phases(self, step: int) -> list[int]:
        """A step of each kind that there is from this one on."""
        return [step]

    def is_ranked(self, phase: str) -> bool:
        """Whether losses of this phase tell which checkpoint is the better one: all phases that do have the same loss."""
        return True

    def begin_step(self, step: int, batch: Tensors) -> None:
        """Whatever happens to the model before an update, besides the update; a pure function of its arguments and the model."""

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> LossParts:
        """Loss of a batch; nothing is changed.

        Args:
            share: the batch's weight where every batch of an update counts alike.
            key: of its dropout masks; None switches dropout off.
        """
        raise NotImplementedError

    def list_extra_shapes(self, phase: str) -> tuple[tuple[int, ...], ...]:
        """Shapes of the extras of `compute`."""
        return ()

    def finish_update(self, extras: tuple[tf.Tensor, ...]) -> None:
        """What else an update changes, from the sums of extras."""

    def name_results(self, sums: Mapping[str, float], phase: str) -> dict[str, float]:
        """The figures a person reads, `loss` among them, from sums over any number of batches of one phase."""
        raise NotImplementedError


def make_prompts(gpt: GPT, batch: Tensors) -> tf.Tensor:
    """The prompt of each row (B, P, C): its own, or the one that its voice shares."""
    prompt_VPC = gpt.make_prompt(batch["mel_BFM"])
    if "voices_B" not in batch:
        return prompt_VPC
    voices, *shape = prompt_VPC.shape
    prompt_BP = look_up(tf.reshape(prompt_VPC, [voices, -1]), batch["voices_B"])
    return tf.reshape(prompt_BP, [-1, *shape])


class GPTObjective(Objective):
    """Text and prompt predict the codes, and the text itself a little."""

    sum_names = ("text_total", "text_count", "audio_total", "audio_count", "correct")

    def __init__(
        self, gpt: GPT, *, loss_mean: str = "tokens", blank_prompt: bool = False, adapters: Adapters | None = None
    ):
        self.model, self.adapters = gpt, adapters
        self._loss_mean = loss_mean
        self._blank_prompt = blank_prompt

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> LossParts:
        text, audio, logits = self._run(batch, key)
        losses = measure_losses(logits, text, audio)
        hits_BL = (tf.argmax(logits[1], -1) == audio.targets_BL) & audio.counted_BL
        if self._loss_mean == "tokens":
            loss = losses.weigh(batch["totals_2"][0], batch["totals_2"][1])
        else:
            loss = losses.weigh() * share
        return LossParts(loss, tf.stack([*losses.text, *losses.audio, tf.reduce_sum(tf.cast(hits_BL, tf.float32))]))

    def predict(self, batch: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits of the codes of a batch, and how many of the first row's are codes."""
        return self._run(batch, None)[2][1], batch["code_lengths_B"][0]

    def _run(self, batch: Tensors, key: tf.Tensor | None) -> tuple[Framed, Framed, tuple[tf.Tensor, tf.Tensor]]:
        gpt, batch = self.model, _widen(batch)
        text, audio = gpt.frame(
            GPTBatch(
                mel_BFM=batch["mel_BFM"],
                text_BT=batch["text_BT"],
                text_lengths_B=batch["text_lengths_B"],
                codes_BM=batch["codes_BM"],
                code_lengths_B=batch["code_lengths_B"],
                spans_B2=batch["spans_B2"] if self._blank_prompt else None,
                weights_B=batch["weights_B"],
            )
        )
        if gpt.shares_prompts:
            prompts, voices_B = gpt.make_prompt(batch["mel_BFM"]), batch.get("voices_B")
        else:
            prompts, voices_B = make_prompts(gpt, batch), None
        return text, audio, gpt.compute_logits(prompts, text, audio, key, voices_B)

    def name_results(self, sums: Mapping[str, float], phase: str) -> dict[str, float]:
        text = _divide(sums["text_total"], sums["text_count"])
        audio = _divide(sums["audio_total"], sums["audio_count"])
        return {
            "loss": TEXT_WEIGHT * text + AUDIO_WEIGHT * audio,
            "text_loss": text,
            "audio_loss": audio,
            "code_accuracy": _divide(sums["correct"], sums["audio_count"]),
        }


def _divide(total: float, count: float) -> float:
    return total / count if count else 0.0


COMMITMENT_WEIGHT = 0.25
REVIVAL_INTERVAL = 20
LAST_REVIVAL_SHARE = 0.8
"""Of the run: codes drawn anew later would have no time to find their place."""

UNQUANTISED, QUANTISED = "unquantised", "quantised"


class CodecObjective(Objective):
    """A mel rebuilt from its codes."""

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

    def list_phases(self, step: int) -> list[int]:
        return [step, self._free_steps] if step < self._free_steps else [step]

    def is_ranked(self, phase: str) -> bool:
        # Without codes a mel is rebuilt better than with them, by a model that has no codebook yet.
        return phase == QUANTISED

    def begin_step(self, step: int, batch: Tensors) -> None:
        if step == self._free_steps:
            self._draw(batch["mel_BFM"], batch["frame_lengths_B"], self._make_key(step))
        elif self._free_steps < step <= self._last_revival and (step - self._free_steps) % REVIVAL_INTERVAL == 0:
            self._revive(batch["mel_BFM"], batch["frame_lengths_B"], self._make_key(step))

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> LossParts:
        batch = _widen(batch)
        losses = self.model.compute_losses(batch["mel_BFM"], batch["frame_lengths_B"], quantise=phase == QUANTISED)
        frames = batch["totals_2"][0]
        rebuilt = losses.reconstruction.total / (frames * batch["mel_BFM"].shape[-1])
        committed = losses.commitment.total / (frames / FRAMES_PER_CODE * self.model.size.width)
        loss = rebuilt + (COMMITMENT_WEIGHT * committed if phase == QUANTISED else 0.0)
        sums = tf.stack([*losses.reconstruction, *losses.commitment])
        return LossParts(loss, sums, tuple(losses.usage) if phase == QUANTISED else ())

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
        counted_BT = mask_lengths(lengths_B, mel_BFM.shape[1])[:, ::FRAMES_PER_CODE]
        return tf.boolean_mask(z_BTD, counted_BT)


DECODER_BETAS = 0.8, 0.99
"""Of both optimizers, as HiFi-GAN's authors have them: a rival changes too fast to be remembered for long."""


class SpeechLosses(NamedTuple):
    """One number per row each."""

    mel: tf.Tensor
    adversarial: tf.Tensor
    feature: tf.Tensor
    rival: tf.Tensor


class DecoderObjective(Objective):
    """Latents become speech."""

    sum_names = ("mel", "adversarial", "feature", "rival", "clips")

    def __init__(self, decoder: WaveformDecoder, rivals: Rivals, gpt: GPT):
        assert not decoder.hears_speakers, "there is no speaker encoder to tell them apart"
        self.model = decoder
        self.rival = rivals
        self._gpt = gpt

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> LossParts:
        batch = _widen(batch)
        own_BS = tf.cast(mask_lengths(batch["segment_frames_B"] * SAMPLES_PER_FRAME, SEGMENT_SAMPLES), tf.float32)
        real_BS = batch["speech_BS"]
        speech_BS = self._say_segments(batch) * own_BS
        losses = self._compare(real_BS, speech_BS)
        clips = batch["totals_2"][0]
        weighed = SpeechLosses(*(tf.reduce_sum(each * batch["weights_B"]) for each in losses))
        deceiving = MEL_WEIGHT * weighed.mel + FEATURE_WEIGHT * weighed.feature + weighed.adversarial
        return LossParts(
            loss=weighed.mel / clips,
            sums=tf.stack([*weighed, tf.reduce_sum(batch["weights_B"])]),
            pursued=(deceiving / clips, weighed.rival / clips),
        )

    def say(self, batch: Tensors) -> tf.Tensor:
        """Speech (B, samples) of whole clips; what follows a clip's own codes is filling."""
        frames_BTC = self._find_frames(batch)
        return self.model.decode_frames(frames_BTC, self._make_no_speaker(frames_BTC))

    def name_results(self, sums: Mapping[str, float], phase: str) -> dict[str, float]:
        means = {name: sums[name] / sums["clips"] for name in SpeechLosses._fields}
        # What the two sides make of each other rises and falls; the mel tells which decoder is the better one.
        return {
            "loss": means["mel"],
            "mel_loss": means["mel"],
            "adversarial_loss": means["adversarial"],
            "feature_loss": means["feature"],
            "discriminator_loss": means["rival"],
        }

    def _compare(self, real_BS: tf.Tensor, speech_BS: tf.Tensor) -> SpeechLosses:
        assert self.rival is not None
        said = self.rival(tf.concat([real_BS, speech_BS], 0))
        halves = [[tf.split(layer, 2) for layer in each] for each in said]
        of_real, of_speech = ([[half[side] for half in each] for each in halves] for side in (0, 1))
        return SpeechLosses(
            mel=measure_mel_distance(real_BS, speech_BS),
            adversarial=measure_deception(of_speech),
            feature=measure_feature_distance(of_real, of_speech),
            rival=measure_discernment(of_real, of_speech),
        )

    def _say_segments(self, batch: Tensors) -> tf.Tensor:
        frames_BTC = self._find_frames(batch)
        starts_B = batch["segment_starts_B"]
        places_BT = starts_B[:, None] + tf.range(SEGMENT_FRAMES, dtype=starts_B.dtype)
        # A bucket of clips shorter than a segment has no frames for all of it.
        inside_BT = tf.minimum(places_BT, measure(frames_BTC)[1] - 1)
        segment_BTC = tf.gather(frames_BTC, inside_BT, batch_dims=1)
        return self.model.decode_frames(segment_BTC, self._make_no_speaker(segment_BTC))

    def _find_frames(self, batch: Tensors) -> tf.Tensor:
        """The decoder's frames of whole clips, from what the GPT says when it is led by them."""
        batch = _widen(batch)
        prompt_BPC = make_prompts(self._gpt, batch)
        latents_BLC = self._gpt.compute_latents(
            prompt_BPC, batch["text_BT"], batch["codes_BM"], batch["text_lengths_B"]
        )
        return stretch_latents(tf.cast(latents_BLC, tf.float32))

    def _make_no_speaker(self, frames_BTC: tf.Tensor) -> tf.Tensor:
        return tf.zeros([measure(frames_BTC)[0], self.model.size.speaker_width])

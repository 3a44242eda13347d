"""Training the waveform decoder: what a frozen GPT says of a clip in, the sound of the clip out.

The GPT is led by the clip's own prompt, text and codes, and has no gradient. Of what it says a segment is decoded, and
compared with the recording: by mel, by rivals that learn at the same time to tell the two apart, and by what the rivals' inner
layers make of them. Both sides are moved from where they stand at the beginning of a step, so one pass serves both.

There is no speaker encoder to train with: the decoder learns without one, and the voice is what the codes carry of it.

Shape suffixes: B rows, L latents, T frames, C width, G speaker channels, S samples, M codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from myxtts.models.discriminators import Rivals
from myxtts.models.gpt import GPT
from myxtts.models.layers import measure
from myxtts.models.speech_losses import (
    FEATURE_WEIGHT,
    MEL_WEIGHT,
    measure_deception,
    measure_discernment,
    measure_feature_distance,
    measure_mel_distance,
)
from myxtts.models.speech_units import SAMPLES_PER_FRAME, SEGMENT_FRAMES, SEGMENT_SAMPLES
from myxtts.models.waveform import WaveformDecoder, stretch_latents
from myxtts.training.objectives import OnePhase, Outcome, Tensors

BETAS = 0.8, 0.99
"""Of both optimizers, as HiFi-GAN's authors have them: a rival changes too fast to be remembered for long."""


class SpeechLosses(NamedTuple):
    """One number per row each."""

    mel: tf.Tensor
    adversarial: tf.Tensor
    feature: tf.Tensor
    rival: tf.Tensor


class DecoderObjective(OnePhase):
    """Latents become speech.

    Args:
        decoder: what is trained. It must hear no speakers.
        rivals: what it is trained against.
        gpt: says the latents; it stays as it is.
    """

    sum_names = ("mel", "adversarial", "feature", "rival", "clips")

    def __init__(self, decoder: WaveformDecoder, rivals: Rivals, gpt: GPT):
        assert not decoder.hears_speakers, "there is no speaker encoder to tell them apart"
        self.model = decoder
        self.rival = rivals
        self._gpt = gpt

    def compute(self, batch: Tensors, *, phase: str, share: tf.Tensor, key: tf.Tensor | None) -> Outcome:
        own_BS = tf.sequence_mask(batch["segment_frames_B"] * SAMPLES_PER_FRAME, SEGMENT_SAMPLES, tf.float32)
        real_BS = batch["speech_BS"]
        speech_BS = self._say_segments(batch) * own_BS
        losses = self._compare(real_BS, speech_BS)
        clips = batch["totals_2"][0]
        weighed = SpeechLosses(*(tf.reduce_sum(each * batch["weights_B"]) for each in losses))
        deceiving = MEL_WEIGHT * weighed.mel + FEATURE_WEIGHT * weighed.feature + weighed.adversarial
        return Outcome(
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
        places_BT = batch["segment_starts_B"][:, None] + tf.range(SEGMENT_FRAMES)
        # A bucket of clips shorter than a segment has no frames for all of it.
        inside_BT = tf.minimum(places_BT, measure(frames_BTC)[1] - 1)
        segment_BTC = tf.gather(frames_BTC, inside_BT, batch_dims=1)
        return self.model.decode_frames(segment_BTC, self._make_no_speaker(segment_BTC))

    def _find_frames(self, batch: Tensors) -> tf.Tensor:
        """The decoder's frames of whole clips, from what the GPT says when it is led by them."""
        # int64 on the device: int32 tensors live in host memory even when a GPU computes.
        text_BT, codes_BM = (tf.cast(batch[name], tf.int64) for name in ("text_BT", "codes_BM"))
        prompt_BPC = self._gpt.make_prompt(batch["mel_BFM"])
        latents_BLC = self._gpt.compute_latents(prompt_BPC, text_BT, codes_BM, batch["text_lengths_B"])
        return stretch_latents(tf.cast(latents_BLC, tf.float32))

    def _make_no_speaker(self, frames_BTC: tf.Tensor) -> tf.Tensor:
        return tf.zeros([measure(frames_BTC)[0], self.model.size.speaker_width])

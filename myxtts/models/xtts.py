"""XTTS: the parts of one voice, joined.

Shape suffixes: B batch, F mel frames, M mel channels (for codes: codes), T time, L latents, C width, P prompt
vectors, G speaker channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from myxtts.errors import UserError
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.layers import Part
from myxtts.models.sizes import MEL_CHANNELS
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import Weight, list_xtts_weights


class PartMissingError(UserError):
    """Something was asked of a model that was built without the part it takes."""


class XTTS(Part):
    """A GPT with what surrounds it. Which parts there are depends on the job: training needs the GPT, an imported
    voice adds decoder and speaker encoder, a voice trained from scratch speaks through its DVAE.

    Args:
        gpt: text and prompt -> codes and latents.
        decoder: latents -> speech.
        speaker_encoder: who speaks, for the decoder.
        dvae: mel <-> codes. Its weights are not part of `model.pth`: load and export `xtts.dvae` itself.

    Example:
        >>> xtts = build_xtts(config, seed=1)
        >>> load_checkpoint_arrays(xtts, arrays).require_complete()
        >>> prompt, speaker = xtts.make_reference_prompt([mel_1FM]), xtts.embed_speaker(speaker_mel)
        >>> said = generate(xtts.gpt, prompt, text_BT, rule=Sampling(), max_codes=400, seeds_B2=seeds)
        >>> wav = xtts.decoder(said.latents_BMC[:, : said.count], speaker)
    """

    def __init__(
        self,
        gpt: GPT,
        *,
        decoder: WaveformDecoder | None = None,
        speaker_encoder: SpeakerEncoder | None = None,
        dvae: DVAE | None = None,
    ):
        super().__init__(dtype=gpt.dtype_policy)
        self.gpt, self.decoder, self.speaker_encoder, self.dvae = gpt, decoder, speaker_encoder, dvae
        self.mel_norms = self.add_variable("mel_norms", (MEL_CHANNELS,), "ones", trainable=False)

    def list_weights(self) -> list[Weight]:
        """The weights of the parts that are there under their names in `model.pth`; the DVAE has its own file."""
        return list_xtts_weights(
            self.gpt.size,
            self.decoder.size if self.decoder else None,
            self.speaker_encoder.size if self.speaker_encoder else None,
        )

    def make_reference_prompt(self, mels_1FM: Sequence[tf.Tensor]) -> tf.Tensor:
        """The prompt (1, P, C) of a reference cut into chunks: the mean of theirs."""
        return tf.reduce_mean(tf.stack([self.gpt.make_prompt(mel_1FM) for mel_1FM in mels_1FM]), 0)

    def embed_speaker(self, mel_BTF: tf.Tensor) -> tf.Tensor:
        """The speaker (B, G) of speaker mels."""
        return self._need("speaker_encoder")(mel_BTF)

    def encode_audio(self, mel_BFM: tf.Tensor) -> tf.Tensor:
        """Codes of DVAE mels, one per four frames, int64."""
        return self._need("dvae").encode(mel_BFM)

    def _need(self, name: str) -> Any:
        part = getattr(self, name)
        if part is None:
            raise PartMissingError(
                f"This takes the model's {name}, but it was built without. Build it with {name}, or import a "
                "checkpoint that has one."
            )
        return part

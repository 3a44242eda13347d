"""XTTS: the parts of one voice, joined."""

from __future__ import annotations

from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.layers import Part
from myxtts.models.sizes import MEL_CHANNELS
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import Weight, list_xtts_weights


class XTTS(Part):
    """A GPT with what surrounds it. Which parts there are depends on the job: training needs the GPT, an imported
    voice adds decoder and speaker encoder, a voice trained from scratch speaks through its DVAE.

    Args:
        gpt: text and prompt -> codes and latents.
        decoder: latents -> speech.
        speaker_encoder: who speaks, for the decoder.
        dvae: mel <-> codes. Its weights are not part of `model.pth`: load and export `xtts.dvae` itself.

    Example:
        >>> xtts = XTTS(GPT(sizes.gpt), decoder=WaveformDecoder(sizes.decoder), speaker_encoder=SpeakerEncoder(sizes.speaker))
        >>> load_checkpoint_arrays(xtts, arrays).require_complete()
        >>> prompt, speaker = xtts.gpt.make_prompt(mel_1FM), xtts.speaker_encoder(speaker_mel)
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

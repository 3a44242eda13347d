"""Which of a model's ways to make sound is used: codes and latents -> sound, in steps.

A vocoder is asked for the sound of a piece as often as there is more of it. What it gives does not depend on how often:
streamed sound is the same, sample by sample, as sound made in one step.
"""

from __future__ import annotations

from typing import Literal

from myxtts.inference.decoder_vocoder import DecoderVocoder
from myxtts.inference.errors import UnableToSpeakError
from myxtts.inference.mel_vocoder import MelVocoder
from myxtts.models.waveform import WaveformDecoder

VocoderChoice = Literal["auto", "griffin-lim", "decoder"]
"""`auto` is the waveform decoder where there is one."""


def choose_vocoder(
    choice: VocoderChoice, decoder: WaveformDecoder | None, rough: MelVocoder | None, decoder_updates: int | None
) -> DecoderVocoder | MelVocoder:
    """What makes the sound. Raises `UnableToSpeakError` where the model lacks what was asked for."""
    if choice != "griffin-lim" and decoder is not None:
        return DecoderVocoder(decoder, updates=decoder_updates)
    if choice == "decoder":
        raise UnableToSpeakError(
            "To speak by a waveform decoder, a model must have one, but this one has none. Train one (--stage decoder), or "
            "give --vocoder griffin-lim."
        )
    if rough is not None:
        return rough
    if decoder is not None:
        raise UnableToSpeakError(
            "To speak by Griffin-Lim, a model must have a DVAE, but this one has none. Import it again with --dvae dvae.pth, "
            "or give --vocoder decoder."
        )
    raise UnableToSpeakError(
        "To speak, a model must have a waveform decoder or a DVAE, but this one has neither. "
        "Import it again with --dvae dvae.pth, or train a codec."
    )

"""Models that speak, small enough for tests: the reference's tiny one, and directories with fewer parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.config import XTTSConfig
from myxtts.inference.synthesizer import Synthesizer
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import DECODER_PREFIX, DVAE_PREFIX, GPT_PREFIX, load_checkpoint_arrays, to_checkpoint
from myxtts.models.xtts import XTTS, build_decoder, build_dvae, build_gpt
from myxtts.text.tokenizer import Tokenizer
from tests.models.reference import ASSETS, DVAE_SIZE, SPEAKER_SIZE, WHOLE_DECODER_SIZE, WHOLE_GPT_SIZE, load_state

VOCABULARY = ASSETS / "tiny_vocab.json"

CONFIG = XTTSConfig(
    model={
        "size": "tiny", "gpt_layers": 2, "gpt_width": 32, "gpt_heads": 2, "dvae_width": 16, "decoder_width": 32,
        "audio_codes": 30, "text_tokens": 188, "max_text_tokens": 80, "max_audio_tokens": 50,
    },
    data={"max_text_length": 80, "max_clip_seconds": 2},
)  # fmt: skip


def build_reference_xtts(*, decoder: bool = True, dvae: bool = True) -> XTTS:
    """The reference's tiny model with its weights, whole or without a part."""
    xtts = XTTS(
        GPT(WHOLE_GPT_SIZE),
        decoder=WaveformDecoder(WHOLE_DECODER_SIZE) if decoder else None,
        speaker_encoder=SpeakerEncoder(SPEAKER_SIZE) if decoder else None,
        dvae=DVAE(DVAE_SIZE) if dvae else None,
    )
    # Keys of parts that were left out are not missed.
    report = load_checkpoint_arrays(xtts, load_state("l_end_to_end"))
    assert not report.missing
    if xtts.dvae is not None:
        load_checkpoint_arrays(xtts.dvae, load_state("m_train_batch"), prefix=DVAE_PREFIX).require_complete()
    return xtts


def build_synthesizer(*, decoder: bool = True, dvae: bool = True, **more: Any) -> Synthesizer:
    return Synthesizer(build_reference_xtts(decoder=decoder, dvae=dvae), Tokenizer(VOCABULARY), **more)


def write_small_model(
    folder: Path,
    *,
    decoder: bool = False,
    dvae: bool = True,
    vocabulary: bool = True,
    training: Any = None,
    **more: Any,
) -> Path:
    """A model directory as a run from scratch leaves it: untrained, without a speaker encoder."""
    size = CONFIG.model
    model = {
        **to_checkpoint(build_gpt(size, seed=1), prefix=GPT_PREFIX),
        "mel_stats": np.ones(80, np.float32),
        **(to_checkpoint(build_decoder(size, seed=2), prefix=DECODER_PREFIX) if decoder else {}),
    }
    write_model_directory(
        folder,
        config=CONFIG.replace(training=training or {}),
        model=model,
        dvae=to_checkpoint(build_dvae(size, seed=3)) if dvae else None,
        vocabulary=VOCABULARY.read_text(encoding="utf-8") if vocabulary else None,
        **more,
    )
    return folder

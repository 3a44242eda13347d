"""Writes a model directory of random weights that Coqui's tools could load once exported:
`python benchmarks/write_random_model.py VOCAB DIR [SIZE]`.

The GPT and DVAE are small (`tiny`) unless told otherwise; the decoder and the speaker encoder have the published widths, which
Coqui's code fixes.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402  the project need not be installed, so its folder comes first

from myxtts.checkpoints import write_model_directory  # noqa: E402
from myxtts.config import ModelConfig, XTTSConfig  # noqa: E402
from myxtts.models.sizes import SpeakerSize  # noqa: E402
from myxtts.models.speaker import SpeakerEncoder  # noqa: E402
from myxtts.models.weights import to_checkpoint  # noqa: E402
from myxtts.models.xtts import (  # noqa: E402
    XTTS,
    build_decoder,
    build_dvae,
    build_gpt,
    initialise_weights,
)
from myxtts.text.tokenizer import Tokenizer  # noqa: E402

VOICE = "Somebody"


def main() -> int:
    vocabulary, target = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = Tokenizer(vocabulary)
    size = sys.argv[3] if len(sys.argv) > 3 else "tiny"
    config = ModelConfig(size=size, decoder_width=512, text_tokens=tokenizer.text_tokens)
    speaker_encoder = SpeakerEncoder(SpeakerSize())
    initialise_weights(speaker_encoder, 1)
    xtts = XTTS(
        build_gpt(config, seed=1, start_text_token=tokenizer.start_id, stop_text_token=tokenizer.stop_id),
        decoder=build_decoder(config, seed=1),
        speaker_encoder=speaker_encoder,
        dvae=build_dvae(config, seed=1),
    )
    draw = np.random.default_rng(1)
    voice = {
        "gpt_cond_latent": draw.standard_normal((1, 32, config.gpt_width)).astype(np.float32),
        "speaker_embedding": draw.standard_normal((1, 512, 1)).astype(np.float32),
    }
    write_model_directory(
        target,
        config=XTTSConfig(model=config),
        model=to_checkpoint(xtts),
        dvae=to_checkpoint(xtts.dvae),
        vocabulary=vocabulary.read_text(encoding="utf-8"),
        speakers={VOICE: voice},
    )
    print(f"Written {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the model of a run as the package brings it: `python -m tools.base_voice.export RUN OUT --voice slt=CLIP.wav`.

Weights of 16 bits, the vocabulary, the codec, and voices by name, each made of one recording or several.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

# First: it imports TensorFlow without its remarks.
import myxtts.devices.runtime  # noqa: F401

# isort: split
from myxtts.checkpoints.model_directory import VOCABULARY_NAME, read_model_directory, write_model_directory
from myxtts.checkpoints.store import find_model_directory
from myxtts.checkpoints.tensors import read_array
from myxtts.inference.synthesizer import load_synthesizer

SPEAKER_WIDTH = 512
KEPT_WHOLE = "mel_stats"
"""What codes mean depends on its last bits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of the GPT's run, or a model directory")
    parser.add_argument("out", type=Path)
    parser.add_argument("--voice", action="append", default=[], metavar="NAME=CLIP[,CLIP]", help="may be given again")
    parser.add_argument("--notice", help="whose speech and texts taught it, and under which licences")
    chosen = parser.parse_args()
    folder = find_model_directory(chosen.run)
    model = read_model_directory(folder)
    synthesizer = load_synthesizer(folder)
    voices = {}
    for name, clips in (each.split("=", 1) for each in chosen.voice):
        voice = synthesizer.clone_voice([Path(clip) for clip in clips.split(",")])
        none = np.zeros((1, SPEAKER_WIDTH, 1), np.float32)
        voices[name] = {"gpt_cond_latent": voice.prompt_PC[None].astype(np.float32), "speaker_embedding": none}
    write_model_directory(
        chosen.out,
        config=model.config,
        model=narrow(model.model),
        dvae=narrow(model.dvae or {}),
        vocabulary=(folder / VOCABULARY_NAME).read_text(encoding="utf-8"),
        speakers=voices,
        notice=chosen.notice,
    )
    size = sum(path.stat().st_size for path in chosen.out.iterdir())
    print(f"Written {chosen.out}: {size / 1e6:.1f} MB, voices {', '.join(voices) or 'none'}")


def narrow(tensors: Any) -> dict[str, Any]:
    """Numbers of 32 bits with 16."""
    arrays = {name: read_array(tensor) for name, tensor in tensors.items()}
    return {
        name: array.astype(np.float16) if array.dtype == np.float32 and name != KEPT_WHOLE else array
        for name, array in arrays.items()
    }


if __name__ == "__main__":
    main()

"""Let other programs listen to a corpus in LJSpeech form: `python tools/score_demo_corpus.py [--corpus DIR] [--json FILE]`.

Prints the word error rate of every English voice, the clips that were misheard, and how alike clips sound within and
between voices. Needs an environment of its own, because none of this belongs to the product:

    pip install torch==2.13.0
    pip install 'setuptools<81' numpy scipy soundfile jiwer resemblyzer moonshine-voice==0.1.0

Moonshine's English recogniser (its weights are inside the wheel) writes down what it hears; Resemblyzer gives each clip a
voice vector. Neither understands Persian: those clips get a voice vector only.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jiwer
import numpy as np
import soundfile
from moonshine_voice import ModelArch, get_model_path
from moonshine_voice.transcriber import Transcriber
from numpy.typing import NDArray
from resemblyzer import VoiceEncoder, preprocess_wav
from scipy.signal import resample_poly

DEMO_FOLDER = Path(__file__).resolve().parents[1] / "myxtts" / "data" / "demo"

HEARING_RATE_HZ = 16000
RECOGNISED_LANGUAGE = "en"
RIGHT_VOICE = 0.80
"""Cosine to the centroid of a speaker's other clips: different people stay below 0.7."""

# The recogniser writes American English; that is not a mistake of the clip.
_AMERICAN = {"neighbours": "neighbors", "harbour": "harbor", "grey": "gray", "mister": "mr"}


@dataclass(frozen=True)
class Line:
    """A line of the metadata."""

    id: str
    texts: tuple[str, ...]
    """Ways to write what is said, with figures or with words."""
    speaker: str
    language: str


@dataclass(frozen=True)
class Heard:
    """What the recogniser wrote down for a clip."""

    id: str
    speaker: str
    text: str
    heard: str
    errors: int
    words: int


def read_lines(corpus: Path) -> list[Line]:
    """The lines of a corpus whose metadata has a header."""
    with (corpus / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    return [
        Line(row["id"], (row["normalised"], row["text"]), row["speaker_name"], row["language"].lower()) for row in rows
    ]


def read_audio(corpus: Path, line: Line) -> NDArray[np.float32]:
    """A clip at the rate both judges want."""
    (path,) = (corpus / "wavs").glob(f"{line.id}.*")
    audio, rate_hz = soundfile.read(path, dtype="float32")
    return resample_poly(audio, HEARING_RATE_HZ, rate_hz).astype(np.float32)


def simplify_text(text: str) -> str:
    """Lower-case words without punctuation, in American spelling."""
    words = re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()
    return " ".join(_AMERICAN.get(word, word) for word in words)


def open_recogniser() -> Callable[[NDArray[np.float32]], str]:
    """A function from samples to the words in them."""
    transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)

    def recognise(audio: NDArray[np.float32]) -> str:
        lines = transcriber.transcribe_without_streaming(audio.tolist(), HEARING_RATE_HZ).lines
        return " ".join(line.text for line in lines)

    return recognise


def score_clip(line: Line, heard: str) -> Heard:
    """Count the words that were misheard, against the way of writing that fits best."""
    scored = []
    for text in line.texts:
        outcome = jiwer.process_words(simplify_text(text), simplify_text(heard))
        errors = outcome.substitutions + outcome.deletions + outcome.insertions
        scored.append(Heard(line.id, line.speaker, text, heard, errors, len(simplify_text(text).split())))
    return min(scored, key=lambda clip: clip.errors / clip.words)


def compute_error_rate(clips: list[Heard]) -> float:
    """Errors over words, of all clips together."""
    return sum(clip.errors for clip in clips) / sum(clip.words for clip in clips)


def compare_with_wrong_texts(clips: list[Heard]) -> float:
    """The error rate against the next clip's text: near 1, or the measurement means nothing."""
    texts = [simplify_text(clip.text) for clip in clips]
    return float(jiwer.wer(texts[1:] + texts[:1], [simplify_text(clip.heard) for clip in clips]))


def compare_voices(voices: dict[str, NDArray[np.float32]]) -> dict[str, dict[str, float]]:
    """Cosines of each clip to the centroid of a voice: of its own other clips, and of every other voice.

    Args:
        voices: unit vectors (clips, 256) by voice.
    """
    result: dict[str, dict[str, float]] = {}
    for name, vectors in voices.items():
        others = [np.delete(vectors, n, axis=0).mean(axis=0) for n in range(len(vectors))]
        own = [_cosine(vector, other) for vector, other in zip(vectors, others, strict=True)]
        result[f"{name} to itself"] = _summarise(own)
    for first, second in itertools.permutations(voices, 2):
        centroid = voices[second].mean(axis=0)
        result[f"{first} to {second}"] = _summarise([_cosine(vector, centroid) for vector in voices[first]])
    return result


def _cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def _summarise(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main() -> int:
    """Score a corpus. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=DEMO_FOLDER, help="folder with metadata.csv and wavs/")
    parser.add_argument("--json", type=Path, help="also write all figures")
    arguments = parser.parse_args()
    lines = read_lines(arguments.corpus)
    recognise, encoder = open_recogniser(), VoiceEncoder("cpu", verbose=False)
    clips: list[Heard] = []
    vectors: dict[str, list[NDArray[np.float32]]] = defaultdict(list)
    for line in lines:
        audio = read_audio(arguments.corpus, line)
        vectors[line.speaker].append(encoder.embed_utterance(preprocess_wav(audio, HEARING_RATE_HZ)))
        if line.language == RECOGNISED_LANGUAGE:
            clips.append(score_clip(line, recognise(audio)))
    voices = {name: np.stack(rows) for name, rows in vectors.items()}
    rates = {
        name: compute_error_rate([clip for clip in clips if clip.speaker == name])
        for name in voices
        if any(clip.speaker == name for clip in clips)
    }
    wrong, similarity = compare_with_wrong_texts(clips), compare_voices(voices)
    for name, rate in rates.items():
        print(f"word error rate of {name}: {rate:.3f} over {sum(clip.speaker == name for clip in clips)} clips")
    print(f"word error rate of all: {compute_error_rate(clips):.3f}; against the next clip's text: {wrong:.3f}")
    print(
        f"not recognised, for want of the language: {sum(line.language != RECOGNISED_LANGUAGE for line in lines)} clips"
    )
    for clip in sorted(clips, key=lambda clip: -clip.errors / clip.words):
        if clip.errors:
            print(f"  {clip.id}  {clip.errors} of {clip.words}  {clip.text}  ->  {clip.heard}")
    for pair, values in similarity.items():
        print(f"cosine of {pair}: median {values['median']:.3f} ({values['lowest']:.3f} to {values['highest']:.3f})")
    if arguments.json:
        figures = {"clips": [asdict(clip) for clip in clips], "rates": rates, "wrong": wrong, "similarity": similarity}
        arguments.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Speak texts into a corpus: `python -m tools.base_voice.make_corpus TEXTS --voice slt --count 15000 --out DIR`.

TEXTS has a sentence a line, or `id|sentence`. Its last lines are never used: they are there to judge by. What a folder holds
already stays, so that it can be filled in several calls, with several voices, and after an interruption.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import soundfile

from myxtts.files import open_file_atomically
from tools.make_demo_corpus import RATE_HZ, VOICES, finish_audio, speak_text

KEPT_OUT = 200
"""Lines at the end of a file of texts."""
MOST_CHARACTERS = 75
LONGEST_PHRASE = 5
"""Words."""
HEADER = "id|text|normalised|speaker_name|language"
AT_A_TIME = 250
FESTIVAL = "cmu_us_slt_arctic_hts"

Texts = Sequence[tuple[str, str]]
"""Ids and what is said."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--voice", choices=VOICES, default="slt")
    parser.add_argument("--language", default="en")
    parser.add_argument("--count", type=int, required=True, help="sentences that are drawn from the texts")
    parser.add_argument("--phrases", type=int, default=0, help="phrases of a few words that are cut from them besides")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    wavs = chosen.out / "wavs"
    wavs.mkdir(parents=True, exist_ok=True)
    texts = choose_texts(read_sentences(chosen.texts), chosen.voice, chosen.count, chosen.phrases)
    missing = [each for each in texts if not (wavs / f"{each[0]}.wav").exists()]
    parts = [missing[first : first + AT_A_TIME] for first in range(0, len(missing), AT_A_TIME)]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for number, _ in enumerate(pool.map(speak, parts, [chosen.voice] * len(parts), [wavs] * len(parts)), start=1):
            print(f"{number} of {len(parts)} parts of {AT_A_TIME} clips")
    spoken = [each for each in texts if (wavs / f"{each[0]}.wav").exists()]
    metadata = chosen.out / "metadata.csv"
    lines = metadata.read_text(encoding="utf-8").splitlines()[1:] if metadata.exists() else []
    lines += [f"{name}|{text}|{text}|{chosen.voice}|{chosen.language}" for name, text in spoken]
    # A line cut short by a kill would stay for ever.
    with open_file_atomically(metadata) as file:
        file.write(("\n".join([HEADER, *dict.fromkeys(lines)]) + "\n").encode())
    print(f"{metadata}: {len(spoken)} of {len(texts)} texts are spoken by {chosen.voice}")


def read_sentences(path: Path) -> list[str]:
    """The sentences that may be trained on."""
    lines = [line.rpartition("|")[2].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines[:-KEPT_OUT] if len(line) <= MOST_CHARACTERS]


def choose_texts(sentences: Sequence[str], voice: str, count: int, phrases: int) -> list[tuple[str, str]]:
    """Sentences and phrases, always the same, and others for each voice."""
    draw = random.Random(voice)
    drawn = draw.sample(range(len(sentences)), min(count, len(sentences)))
    chosen = [(f"{voice}_{number:06d}", sentences[number]) for number in drawn]
    for number in range(phrases):
        words = sentences[draw.randrange(len(sentences))].split()
        length = draw.randint(1, min(LONGEST_PHRASE, len(words)))
        first = draw.randint(0, len(words) - length)
        chosen.append((f"{voice}_p{number:06d}", " ".join(words[first : first + length]).strip(".,;:!?\"'")))
    return [(name, text) for name, text in chosen if text]


def speak(texts: Texts, voice: str, wavs: Path) -> None:
    """Writes the clips of texts; what a synthesiser refuses or says without a sound is left out."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if VOICES[voice][0] == "text2wave":
            # All of them by one process: loading the voice takes longer than a sentence.
            said = (text.replace("\\", "").replace('"', "") for _, text in texts)
            wave = '(unwind-protect (utt.save.wave (utt.synth (Utterance Text "{}")) "{}" \'riff) nil)'
            names = [folder / f"{name}.wav" for name, _ in texts]
            lines = [wave.format(text, path) for text, path in zip(said, names, strict=True)]
            (folder / "say.scm").write_text("\n".join([f"(voice_{FESTIVAL})", *lines]), encoding="utf-8")
            subprocess.run(["festival", "-b", folder / "say.scm"], check=True, capture_output=True)
        for name, text in texts:
            raw = folder / f"{name}.wav"
            if VOICES[voice][0] != "text2wave":
                speak_text(text, voice, raw)
            if not raw.exists():
                continue
            audio, rate_hz = soundfile.read(raw)
            if len(audio) and abs(audio).max() > 0:
                whole = wavs / f".{name}.wav"
                soundfile.write(whole, finish_audio(audio, rate_hz), RATE_HZ)
                whole.replace(wavs / f"{name}.wav")


if __name__ == "__main__":
    main()

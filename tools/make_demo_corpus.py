"""Speak every line of the embedded demo corpus anew: `python tools/make_demo_corpus.py`.

The sentences are those of `myxtts/data/demo/metadata.csv`; its `speaker_name` says which voice reads them. Needs three
free speech synthesisers, on Debian `apt-get install festival festvox-us-slt-hts flite espeak-ng`:

- Festival 2.5, University of Edinburgh and Carnegie Mellon University, with the voice cmu_us_slt_arctic_hts, Carnegie
  Mellon University and Nagoya Institute of Technology, all of BSD-like licences: the voice `slt` (English).
- flite 2.2, Carnegie Mellon University, BSD-like licence: the voice `rms` (English).
- espeak-ng 1.51, GPL-3.0-or-later; the licence covers the program, not the sound it makes: the voice `fa` (Persian).

The same versions give the same samples on every run.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

DEMO_FOLDER = Path(__file__).resolve().parents[1] / "myxtts" / "data" / "demo"

RATE_HZ = 22050
PEAK = 10 ** (-3 / 20)
SPEECH_LEVEL = 0.003
LEAD_SECONDS, TAIL_SECONDS = 0.05, 0.10


VOICES = {
    # A recogniser mishears a fourth as many words of it as of flite's voice from the same recordings.
    "slt": ["text2wave", "-eval", "(voice_cmu_us_slt_arctic_hts)", "-o", "{wav}"],
    "rms": ["flite", "-voice", "rms", "-f", "/dev/stdin", "-o", "{wav}"],
    "fa": ["espeak-ng", "-v", "fa", "-s", "150", "-w", "{wav}", "--stdin"],
}
"""The command of each voice; the text comes through its standard input."""


def speak_text(text: str, voice: str, wav: Path) -> None:
    """Write `text` in the named voice to a wav file, as the synthesiser gives it."""
    command = [word.format(wav=wav) for word in VOICES[voice]]
    subprocess.run(command, input=text.encode(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish_audio(audio: NDArray[np.float64], rate_hz: int) -> NDArray[np.int16]:
    """The clip as it is stored: at 22.05 kHz, trimmed to the speech, its peak at -3 dB, 16 bit."""
    audio = soxr.resample(audio, rate_hz, RATE_HZ, quality="VHQ")
    audio *= PEAK / np.abs(audio).max()
    loud = np.flatnonzero(np.abs(audio) > SPEECH_LEVEL)
    audio = audio[loud[0] : loud[-1] + 1]
    padded = np.pad(audio, (round(LEAD_SECONDS * RATE_HZ), round(TAIL_SECONDS * RATE_HZ)))
    return np.round(padded * 32767).astype(np.int16)


def make_clip(text: str, voice: str, path: Path) -> float:
    """Speak one line into a flac file. Returns its duration in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "raw.wav"
        speak_text(text, voice, wav)
        audio, rate_hz = soundfile.read(wav)
    samples = finish_audio(audio, rate_hz)
    soundfile.write(path, samples, RATE_HZ, subtype="PCM_16", format="FLAC", compression_level=1.0)
    return len(samples) / RATE_HZ


def main() -> int:
    """Make all clips. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=DEMO_FOLDER / "wavs", help="folder for the clips (default: %(default)s)"
    )
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with (DEMO_FOLDER / "metadata.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    seconds = [make_clip(line["normalised"], line["speaker_name"], out / f"{line['id']}.flac") for line in lines]
    size = sum((out / f"{line['id']}.flac").stat().st_size for line in lines)
    print(
        f"{len(lines)} clips, {sum(seconds):.1f} s ({min(seconds):.2f} to {max(seconds):.2f} s), "
        f"{size / 1e6:.2f} MB in {out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

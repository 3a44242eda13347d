"""Says when the words of a sound are said: `ALIGNER_PYTHON word_aligner.py`; started by `speech.py`.

Reads lines of JSON, `{"wav": PATH, "words": [...]}`, of 16 kHz and 16 bit, and answers each with a line: the words with their
seconds, or none where the dictionary lacks one or the sound does not fit. Runs in a Python that has pocketsphinx, and imports nothing
of MyXTTS.
"""

from __future__ import annotations

import json
import os
import sys
import wave

from pocketsphinx import Decoder

FRAMES_PER_SECOND = 100
RATE_HZ = 16_000


def align(decoder: Decoder, path: str, words: list[str]) -> list[tuple[str, float, float]]:
    if not words or not all(decoder.lookup_word(word) for word in words):
        return []
    with wave.open(path, "rb") as file:
        assert file.getframerate() == RATE_HZ
        sound = file.readframes(file.getnframes())
    decoder.set_align_text(" ".join(words))
    decoder.start_utt()
    decoder.process_raw(sound, full_utt=True)
    decoder.end_utt()
    found = [each for each in decoder.seg() or () if not each.word.startswith(("<", "[", "+", "("))]
    # A second way of saying a word is `word(2)`.
    return [
        (each.word.partition("(")[0], each.start_frame / FRAMES_PER_SECOND, (each.end_frame + 1) / FRAMES_PER_SECOND)
        for each in found
    ]


def main() -> None:
    # The package may print; the answers have the real standard output for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    decoder = Decoder(samprate=RATE_HZ, loglevel="FATAL")
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(align(decoder, question["wav"], question["words"])), file=answers, flush=True)


if __name__ == "__main__":
    main()

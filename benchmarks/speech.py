"""How well texts are said, with and without retries: words misheard, lengths, doubts and seconds.

    python -m benchmarks.speech benchmarks/hard_texts.txt --recogniser-command "judges/bin/python examples/judges/moonshine.py"

A line of the texts is `id|text`; ids that differ in their last two digits are one kind. Sounds are kept in --out.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import soundfile


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--checkpoint", default="base")
    parser.add_argument("--out", type=Path, default=Path("build/speech"))
    parser.add_argument("--recordings", type=Path, help="a folder with id.wav, whose lengths are compared")
    parser.add_argument("--recogniser-command", required=True)
    parser.add_argument("--takes", nargs="+", default=["0.75,0,0", "0.5,0,0", "0.5,3,0"], metavar="T,RETRIES,SEED")
    parser.add_argument("--check", action="store_true", help="let the recogniser choose the takes")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    from myxtts.audio.resampling import resample_clip
    from myxtts.evaluation.judges import JUDGE_RATE_HZ, RECOGNISER, JudgeChoice, open_judge
    from myxtts.evaluation.scores import score_transcript
    from myxtts.evaluation.sentences import write_wav
    from myxtts.inference.speech import SpeechSettings
    from myxtts.inference.synthesizer import load_synthesizer

    lines = [line.split("|", 1) for line in arguments.texts.read_text(encoding="utf-8").splitlines()]
    with open_judge(RECOGNISER, JudgeChoice(command=arguments.recogniser_command)) as judge:
        assert judge is not None

        def count_errors(text: str, samples: Any, rate_hz: int, wav: Path) -> tuple[int, int]:
            write_wav(wav, resample_clip(samples, rate_hz, JUDGE_RATE_HZ), JUDGE_RATE_HZ)
            words, _ = score_transcript(text, judge.ask(wav, "en"), "en")
            return words["errors"], words["length"]

        def check(text: str, samples: Any, rate_hz: int) -> float:
            errors, length = count_errors(text, samples, rate_hz, arguments.out / "check.wav")
            return errors / length

        arguments.out.mkdir(parents=True, exist_ok=True)
        synthesizer = load_synthesizer(arguments.checkpoint, check=check if arguments.check else None)
        voice = synthesizer.find_voice()
        for words in arguments.takes:
            temperature, retries, seed = words.split(",")
            folder = arguments.out / words.replace(",", "_")
            folder.mkdir(exist_ok=True)
            settings = SpeechSettings(temperature=float(temperature), retries=int(retries), seed=int(seed))
            kinds: dict[str, list[tuple[int, int]]] = defaultdict(list)
            ratios, doubtful, unfinished, spoken_s, started = [], 0, 0, 0.0, time.perf_counter()
            for name, text in lines:
                speech = synthesizer.speak(text, voice, "en", settings)
                soundfile.write(folder / f"{name}.wav", speech.samples, speech.rate_hz, "PCM_16")
                doubtful += any(piece.doubts for piece in speech.pieces)
                unfinished += bool(speech.unfinished)
                spoken_s += speech.seconds
                if arguments.recordings is not None:
                    ratios.append(speech.seconds / soundfile.info(arguments.recordings / f"{name}.wav").duration)
            elapsed_s = time.perf_counter() - started
            for name, text in lines:
                samples, rate_hz = soundfile.read(folder / f"{name}.wav", dtype="float32")
                scored = count_errors(text, samples, rate_hz, arguments.out / "heard.wav")
                kinds[re.sub(r"\d+$", "", name) if arguments.recordings is None else "all"].append(scored)
            everything = [each for scored in kinds.values() for each in scored]
            print(f"temperature {temperature}, retries {retries}, seed {seed}: {describe(everything)}; doubtful {doubtful}, "
                  f"not ended {unfinished}; {elapsed_s / spoken_s:.2f} s for a second of speech", flush=True)  # fmt: skip
            for kind, scored in kinds.items() if len(kinds) > 1 else ():
                print(f"  {kind}: {describe(scored)}")
            if ratios:
                print(
                    f"  length by that of the recording: {min(ratios):.2f} to {max(ratios):.2f}, {np.median(ratios):.2f}"
                )


def describe(scored: list[tuple[int, int]]) -> str:
    errors, lengths = (sum(each) for each in zip(*scored, strict=True))
    bad = np.mean([errors / length > 0.5 for errors, length in scored])
    return f"misheard {errors / lengths:.3f} of {lengths} words; above .5: {bad:.3f} of {len(scored)}"


if __name__ == "__main__":
    main()

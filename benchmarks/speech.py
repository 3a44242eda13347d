"""How well texts are said: words misheard, lengths and doubts, by engine and with retries; and how true the times of words are.

    python -m benchmarks.speech benchmarks/hard_texts.txt --recogniser-command "judges/bin/python examples/judges/moonshine.py"
    python -m benchmarks.speech benchmarks/kept_out_texts.txt --word-times --aligner-python judges/bin/python

A line of the texts is `id|text`; ids that differ in their last two digits are one kind. Sounds are kept in --out. For word times
Festival says the texts and when each word begins (apt-get install festival festvox-us-slt-hts); what the model says is compared with
an aligner, by `word_aligner.py` in a Python that has pocketsphinx.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from benchmarks.measuring import Child, run_bench, tell_machine

# isort: split
import tensorflow as tf

from myxtts.audio.resampling import resample_clip
from myxtts.evaluation.judges import JUDGE_RATE_HZ, RECOGNISER, Judge, JudgeChoice, open_judge
from myxtts.evaluation.scores import score_transcript
from myxtts.evaluation.sentences import write_wav
from myxtts.inference.following import TextFollower
from myxtts.inference.generation import GeneratedRow, Row
from myxtts.inference.speech import SpeechSettings, TimedWord
from myxtts.inference.synthesizer import SpeechCopier, Synthesizer, load_synthesizer
from myxtts.units import SAMPLE_RATE_HZ
from tools.base_voice.make_corpus import FESTIVAL
from tools.make_demo_corpus import LEAD_SECONDS, PEAK, SPEECH_LEVEL

Texts = Sequence[tuple[str, str]]
"""Ids and what is said."""
ROOT = Path(__file__).resolve().parents[1]
TRUE_WITHIN = 0.08
"""Median error of a word's beginning, in seconds: the bar."""


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.speech", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, nargs="?", default=ROOT / "benchmarks" / "hard_texts.txt")
    parser.add_argument("--checkpoint", default="base")
    parser.add_argument("--engine", nargs="+", default=["auto"], choices=["auto", "float32", "int8"])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "speech")
    parser.add_argument("--recordings", type=Path, help="a folder with id.wav, whose lengths are compared")
    parser.add_argument("--recogniser-command", help="who writes down what the takes say; without it there are none")
    parser.add_argument("--takes", nargs="+", default=["0.75,0,0", "0.5,0,0", "0.5,3,0"], metavar="T,RETRIES,SEED")
    parser.add_argument("--check", action="store_true", help="let the recogniser choose the takes")
    parser.add_argument("--word-times", action="store_true", help="compare the times of words with Festival's")
    parser.add_argument("--aligner-python", metavar="PATH", help="the Python that has pocketsphinx")
    arguments = parser.parse_args(words)
    if not (arguments.recogniser_command or arguments.word_times):
        parser.error("give --recogniser-command, --word-times or both")
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [(name, text) for name, _, text in (line.partition("|") for line in lines)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tell_machine():
        for engine in arguments.engine:
            if arguments.recogniser_command:
                compare_takes(texts, engine, arguments)
            if arguments.word_times:
                compare_times(texts, engine, arguments)


def compare_takes(texts: Texts, engine: Any, arguments: argparse.Namespace) -> None:
    """Words that a recogniser mishears, by settings."""
    choice = JudgeChoice(command=arguments.recogniser_command)
    with open_judge(RECOGNISER, choice) as judge:
        assert judge is not None

        def check(text: str, samples: Any, rate_hz: int) -> float:
            errors, length = count_errors(judge, text, samples, rate_hz, arguments.out / "check.wav")
            return errors / length

        synthesizer = load_synthesizer(arguments.checkpoint, engine=engine, check=check if arguments.check else None)
        print(synthesizer.engine_note)
        for words in arguments.takes:
            temperature, retries, seed = words.split(",")
            folder = arguments.out / f"{engine}_{words.replace(',', '_')}"
            settings = SpeechSettings(temperature=float(temperature), retries=int(retries), seed=int(seed))
            said = say_all(texts, synthesizer, settings, folder, arguments.recordings)
            kinds: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for name, text in texts:
                samples, rate_hz = soundfile.read(folder / f"{name}.wav", dtype="float32")
                scored = count_errors(judge, text, samples, rate_hz, arguments.out / "heard.wav")
                kinds[re.sub(r"\d+$", "", name) if arguments.recordings is None else "all"].append(scored)
            everything = [each for scored in kinds.values() for each in scored]
            print(
                f"temperature {temperature}, retries {retries}, seed {seed}: {describe(everything)}; {said}", flush=True
            )
            for kind, scored in kinds.items() if len(kinds) > 1 else ():
                print(f"  {kind}: {describe(scored)}")


def count_errors(judge: Judge, text: str, samples: Any, rate_hz: int, wav: Path) -> tuple[int, int]:
    """Words that were misheard, and all."""
    write_wav(wav, resample_clip(samples, rate_hz, JUDGE_RATE_HZ), JUDGE_RATE_HZ)
    words, _ = score_transcript(text, judge.ask(wav, "en"), "en")
    return words["errors"], words["length"]


def say_all(
    texts: Texts, synthesizer: Synthesizer, settings: SpeechSettings, folder: Path, recordings: Path | None
) -> str:
    """Writes id.wav of each text, and tells of all of them."""
    folder.mkdir(exist_ok=True)
    voice, ratios = synthesizer.find_voice(), list[float]()
    doubtful, unfinished, spoken_s, begun = 0, 0, 0.0, time.perf_counter()
    for name, text in texts:
        speech = synthesizer.speak(text, voice, "en", settings)
        soundfile.write(folder / f"{name}.wav", speech.samples, speech.rate_hz, "PCM_16")
        doubtful += any(piece.doubts for piece in speech.pieces)
        unfinished += bool(speech.unfinished)
        spoken_s += speech.seconds
        if recordings is not None:
            ratios.append(speech.seconds / soundfile.info(recordings / f"{name}.wav").duration)
    cost = (time.perf_counter() - begun) / spoken_s
    told = f"doubtful {doubtful}, not ended {unfinished}; {cost:.2f} s for a second of speech"
    if ratios:
        told += f"; length by the recording's: {min(ratios):.2f} to {max(ratios):.2f}, {np.median(ratios):.2f}"
    return told


def describe(scored: list[tuple[int, int]]) -> str:
    errors, lengths = (sum(each) for each in zip(*scored, strict=True))
    bad = np.mean([errors / length > 0.5 for errors, length in scored])
    return f"misheard {errors / lengths:.3f} of {lengths} words; above .5: {bad:.3f} of {len(scored)}"


def compare_times(texts: Texts, engine: Any, arguments: argparse.Namespace) -> None:
    """Errors of the times of words, of recordings and of what the model says."""
    folder = arguments.out / "festival"
    record(texts, folder)
    synthesizer = load_synthesizer(arguments.checkpoint, engine=engine)
    read, said, own = Errors("recordings, codes read"), Errors("said, by the aligner"), Errors("the aligner itself")
    with ExitStack() as stack:
        aligner = None
        if arguments.aligner_python:
            words = [arguments.aligner_python, str(ROOT / "benchmarks" / "word_aligner.py")]
            aligner = stack.enter_context(Child(words))
        for name, text in texts:
            samples, true = read_recording(folder / name)
            read.add(time_recording(synthesizer, text, samples), true)
            if aligner is None:
                continue
            own.add(align(aligner, text, samples, SAMPLE_RATE_HZ, folder / "aligned.wav"), true)
            speech = synthesizer.speak(text, synthesizer.find_voice(), "en", timed=True)
            if len(speech.pieces) == 1:
                aligned = align(aligner, text, speech.samples, speech.rate_hz, folder / "aligned.wav")
                said.add(speech.pieces[0].words, aligned)
    for errors in (read, own, said)[: 1 if aligner is None else 3]:
        print(errors, flush=True)
    for errors in (read, said)[: 1 if aligner is None else 2]:
        most = float(np.median(np.abs(errors.starts_s)))
        print(f"Target   {errors.name}: half of the words begin within {TRUE_WITHIN * 1000:.0f} ms: "
              f"{most * 1000:.0f}, {'met' if most <= TRUE_WITHIN else 'missed'}")  # fmt: skip


def record(texts: Texts, folder: Path) -> None:
    """Has Festival say what the folder does not hold yet: id.wav and id.words, which has a word and its seconds a line."""
    folder.mkdir(exist_ok=True)
    words = (
        '(set! utt (utt.synth (Utterance Text "{text}"))) (utt.save.wave utt "{path}.wav" \'riff) (set! f (fopen "{path}.words" "w"))'
        ' (mapcar (lambda (w) (format f "%s\\t%f\\t%f\\n" (item.name w) (item.feat w "word_start") (item.feat w "word_end")))'
        " (utt.relation.items utt 'Word)) (fclose f)"
    )
    lines = [
        words.format(text=re.sub(r'[\\"]', "", text), path=folder / name)
        for name, text in texts
        if not (folder / f"{name}.words").exists()
    ]
    if lines:
        (folder / "say.scm").write_text("\n".join([f"(voice_{FESTIVAL})", *lines]), encoding="utf-8")
        subprocess.run(["festival", "-b", folder / "say.scm"], check=True, capture_output=True)


def read_recording(path: Path) -> tuple[Any, list[TimedWord]]:
    """A recording as those that the base voice learnt from are, and when its words are said."""
    audio, rate_hz = soundfile.read(path.with_suffix(".wav"), dtype="float32")
    samples = resample_clip(audio, rate_hz, SAMPLE_RATE_HZ)
    samples = samples * np.float32(PEAK / np.abs(samples).max())
    loud = np.flatnonzero(np.abs(samples) > SPEECH_LEVEL)
    first = max(0, loud[0] - round(LEAD_SECONDS * SAMPLE_RATE_HZ))
    timed = list[TimedWord]()
    for line in path.with_suffix(".words").read_text(encoding="utf-8").splitlines():
        word, start, end = line.split("\t")
        if word.startswith("'") and timed:
            # What hangs on a word, as in "Tom's", is one of its own for Festival, without times.
            timed[-1] = timed[-1]._replace(word=timed[-1].word + word)
        else:
            timed.append(TimedWord(word, float(start), float(end)).shift(-first / SAMPLE_RATE_HZ))
    return samples[first:], timed


def time_recording(synthesizer: Synthesizer, text: str, samples: Any) -> Iterable[TimedWord]:
    """When the words of a recording are said, by its codes beside its text."""
    gpt, voice = synthesizer.xtts.gpt, synthesizer.find_voice()
    ids = synthesizer.tokenizer.encode(text, "en")
    codes_M = np.append(SpeechCopier(synthesizer.xtts).encode(samples), gpt.size.stop_audio_token)
    given = (tf.constant(each[None]) for each in (voice.prompt_PC, np.asarray(ids, np.int32), codes_M))
    said = GeneratedRow(codes_M, gpt.compute_latents(*given)[0].numpy(), True)
    return TextFollower(gpt, synthesizer.tokenizer).time_words(text, Row(tuple(ids), voice, (0, 0)), said, 1.0)


def align(aligner: Child, text: str, samples: Any, rate_hz: int, wav: Path) -> list[TimedWord]:
    """When the aligner hears the words; none where it does not know one."""
    write_wav(wav, resample_clip(samples, rate_hz, JUDGE_RATE_HZ), JUDGE_RATE_HZ)
    heard = aligner.ask({"wav": str(wav.resolve()), "words": [spell(word) for word in text.split()]})
    return [TimedWord(*each) for each in heard]


def spell(word: str) -> str:
    return re.sub(r"[^\w']", "", word).casefold().strip("'")


class Errors:
    """How far times are from what is taken for true, in seconds."""

    def __init__(self, name: str):
        self.name, self.sentences, self.left_out = name, 0, 0
        self.starts_s, self.ends_s = list[float](), list[float]()

    def add(self, found: Iterable[TimedWord], true: Sequence[TimedWord]) -> None:
        """Another sentence; one whose words are parted otherwise is left out."""
        words = [word for word in found if spell(word.word)]
        if [spell(word.word) for word in words] != [spell(word.word) for word in true]:
            self.left_out += 1
            return
        self.sentences += 1
        self.starts_s += [mine.start_s - other.start_s for mine, other in zip(words, true, strict=True)]
        self.ends_s += [mine.end_s - other.end_s for mine, other in zip(words, true, strict=True)]

    def __str__(self) -> str:
        text = f"{self.name}: {len(self.starts_s)} words of {self.sentences} sentences, {self.left_out} left out"
        for name, errors_s in (("begin", self.starts_s), ("end", self.ends_s)):
            median, most = np.quantile(np.abs(errors_s), [0.5, 0.9]) * 1000 if errors_s else (np.nan, np.nan)
            mean = np.mean(errors_s) * 1000 if errors_s else np.nan
            text += f"; {name}: half within {median:.0f} ms, nine in ten within {most:.0f}, {mean:+.0f} in the mean"
        return text


if __name__ == "__main__":
    run_bench(main)

"""What a corpus costs that is made of long recordings, and how right it is: FLAGS is a corpus whose clips are joined.

- Cuts: how far the clips' ends are from where speech was put.
- Texts: with the script, how many clips are kept, and how many of these have another text than was read.
- Speed: seconds of audio each second of the clock and of the processor, the recogniser alone and all of it.
- Memory: the highest of a process that cuts `--hours` of it, without a recogniser.
- Clipping, with `--clipping` instead of all others: how many clips are called so as they are, and overdriven.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile

from benchmarks.measuring import run_bench
from myxtts.audio.reading import read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.data.ljspeech import read_metadata
from myxtts.errors import CorpusError
from myxtts.evaluation.judges import RECOGNISER, Judge, JudgeChoice, open_judge
from myxtts.processes import make_importable
from myxtts.recordings.book import BookedClip, ClipBook, find_wav
from myxtts.recordings.build import CorpusRequest, build_corpus
from myxtts.recordings.judging import MOST_FLAT_TOPS, count_flat_tops
from myxtts.recordings.transcribing import DEFAULT_RECOGNISER
from myxtts.units import SAMPLE_RATE_HZ

NEAR_SECONDS = 0.15
LOUD_SHARE = 10**-3.5
Place = tuple[float, float, str]
"""Where a clip begins and ends in the recording, and its text."""


def join_clips(corpus: Path, most: int, path: Path) -> list[Place]:
    """Writes clips without the silence at their ends, 0.6 to 1.2 s apart."""
    metadata = read_metadata(corpus)
    random = np.random.default_rng(3)
    frame = SAMPLE_RATE_HZ // 100
    places: list[Place] = []
    now = 0
    with soundfile.SoundFile(path, "w", SAMPLE_RATE_HZ, 1) as file:
        for row in range(min(most, len(metadata))):
            samples = read_clip(metadata.root / metadata.audio[row])
            power = np.square(samples[: len(samples) // frame * frame].reshape(-1, frame)).mean(1)
            loud = np.flatnonzero(power > power.max() * LOUD_SHARE)
            speech = samples[loud[0] * frame : (loud[-1] + 1) * frame]
            gap = np.zeros(int(random.uniform(0.6, 1.2) * SAMPLE_RATE_HZ), np.float32)
            file.write(np.concatenate([gap, speech]) + 1e-4 * random.standard_normal(len(gap) + len(speech)))
            start = now + len(gap)
            now = start + len(speech)
            places.append((start / SAMPLE_RATE_HZ, now / SAMPLE_RATE_HZ, metadata.text[row]))
    return places


def measure_cuts(places: Sequence[Place], book: ClipBook) -> dict[str, Any]:
    """Distances of the true ends from the nearest ones found, in milliseconds."""
    misses = []
    for edge in (0, 1):
        found = np.array([(clip.start, clip.end)[edge] for clip in book.clips])
        misses += [float(np.abs(found - place[edge]).min()) * 1000 for place in places]
    return {"median_ms": round(float(np.median(misses))), "p99_ms": round(float(np.percentile(misses, 99))), "most_ms": round(max(misses))}  # fmt: skip


def measure_texts(places: Sequence[Place], book: ClipBook) -> dict[str, Any]:
    """Clips from a place's beginning to a place's end are compared together: where inside them words belong is not known."""
    kept = wrong = 0
    run: list[BookedClip] = []
    wrong_texts: list[list[str]] = []
    for clip in book.clips:
        run.append(clip)
        lasts = [n for n, place in enumerate(places) if abs(place[1] - clip.end) < NEAR_SECONDS]
        if not lasts:
            continue
        inside = [
            place[2]
            for place in places
            if place[0] > run[0].start - NEAR_SECONDS and place[1] < clip.end + NEAR_SECONDS
        ]
        good = [each for each in run if each.kept]
        kept += len(good)
        said = " ".join(each.text for each in run)
        if " ".join(said.split()) != " ".join(" ".join(inside).split()):
            # What is set aside may be what is wrong: what is kept must then be a part of what was read.
            bad = [each for each in good if each.text not in " ".join(inside)] if len(good) < len(run) else good
            wrong += len(bad)
            wrong_texts += [[each.text, " ".join(inside)] for each in bad]
        run = []
    return {"clips": len(book.clips), "kept": kept, "kept with another text": wrong, "examples": wrong_texts[:5]}


def measure_clipping(corpus: Path) -> dict[str, int]:
    """How many clips are called clipped: as they are, and played too loud at 44.1 kHz, cut off there and then made quieter."""
    counts = dict.fromkeys(("clips", "as they are", "mp3", "6 dB", "6 dB, mp3", "12 dB", "12 dB, mp3"), 0)
    for file in sorted(path for path in corpus.rglob("*") if path.suffix in (".wav", ".flac", ".mp3", ".ogg")):
        samples = read_clip(file)
        counts["clips"] += 1
        counts["as they are"] += count_flat_tops(samples) > MOST_FLAT_TOPS
        high = resample_clip(samples / np.abs(samples).max(), SAMPLE_RATE_HZ, 44_100)
        for over, name in ((0, ""), (6, "6 dB"), (12, "12 dB")):
            quiet = 0.4 * np.clip(high * 10 ** (over / 20), -1, 1)
            coded = io.BytesIO()
            soundfile.write(coded, quiet, 44_100, format="MP3")
            coded.seek(0)
            for sound, end in ((quiet, ""), (soundfile.read(coded, dtype="float32")[0], ", mp3" if over else "mp3")):
                if over or end:
                    heard = resample_clip(sound.astype(np.float32), 44_100, SAMPLE_RATE_HZ)
                    counts[f"{name}{end}"] += count_flat_tops(heard) > MOST_FLAT_TOPS
    return counts


def time_work(work: Any) -> tuple[float, float, Any]:
    """Seconds by the clock and of the processor, and the result."""
    clock, processor = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - clock, time.process_time() - processor, result


def bench(corpus: Path, most: int, folder: Path) -> dict[str, Any]:
    places = join_clips(corpus, most, folder / "talk.flac")
    (folder / "script.txt").write_text("\n".join(place[2] for place in places), encoding="utf-8")
    request = CorpusRequest(
        recordings=(folder / "talk.flac",), out=folder / "corpus", script=folder / "script.txt", language="en"
    )
    with open_judge(RECOGNISER, JudgeChoice(DEFAULT_RECOGNISER)) as recogniser:
        assert recogniser is not None
        judge: Judge = recogniser
        clock, processor, book = time_work(lambda: build_corpus(request, judge, lambda *_: None))
        files = [find_wav(request.out, clip) for clip in book.clips]
        alone = time_work(lambda: [judge.ask(file, "en") for file in files])
    seconds = book.recordings[0].seconds
    return {
        "audio_s": round(seconds),
        "cuts": measure_cuts(places, book),
        "texts": measure_texts(places, book),
        "reasons": {reason: len(drops) for reason, drops in book.make_report().group_by_reason().items()},
        "audio seconds each second": {
            "all": {"clock": round(seconds / clock, 1), "processor": round(seconds / processor, 1)},
            "recogniser alone": {"clock": round(seconds / alone[0], 1), "processor": round(seconds / alone[1], 1)},
        },
    }


def bench_memory(corpus: Path, hours: float, folder: Path) -> dict[str, Any]:
    join_clips(corpus, 200, folder / "part.flac")
    part, rate = soundfile.read(folder / "part.flac", dtype="float32")
    with soundfile.SoundFile(folder / "long.flac", "w", rate, 1) as file:
        for _ in range(max(1, round(hours * 3600 * rate / len(part)))):
            file.write(part)
    del part
    command = [
        sys.executable, "-P", "-m", "benchmarks.recordings", str(folder / "long.flac"), str(folder / "long"),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=make_importable(os.environ))
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def cut_here(recording: Path, out: Path) -> dict[str, Any]:
    """The other side of `bench_memory`."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.perf_counter()
    # Without a recogniser no clip has a text.
    with suppress(CorpusError):
        build_corpus(CorpusRequest(recordings=(recording,), out=out), None, lambda *_: None)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "hours": round(soundfile.info(recording).duration / 3600, 2),
        "clips": len(list((out / "aside").iterdir())),
        "mb before": round(before / 1024),
        "mb highest": round(after / 1024),
        "seconds": round(time.perf_counter() - seconds),
    }


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a corpus to join clips of")
    parser.add_argument("out", type=Path, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--clips", type=int, default=100, help="the most clips (default: 100)")
    parser.add_argument("--hours", type=float, default=0.0, help="also measure the memory of so many hours")
    parser.add_argument("--clipping", action="store_true", help="only measure what is called clipped")
    arguments = parser.parse_args(words)
    if arguments.clipping:
        print(json.dumps(measure_clipping(arguments.corpus)))
        return
    if arguments.out is not None:
        print(json.dumps(cut_here(arguments.corpus, arguments.out)))
        return
    load = os.getloadavg()[0]
    with TemporaryDirectory(prefix="myxtts-recordings-") as folder:
        figures = bench(arguments.corpus, arguments.clips, Path(folder))
        if arguments.hours:
            figures["memory"] = bench_memory(arguments.corpus, arguments.hours, Path(folder))
    print(json.dumps({**figures, "load": [round(load, 1), round(os.getloadavg()[0], 1)]}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    run_bench(main)

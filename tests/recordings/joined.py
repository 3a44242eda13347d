"""Recordings made of clips whose places are known, and recognisers for them."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.reading import read_clip
from tests.support.shared_files import find_shared

RATE_HZ = 22050
FRAME = RATE_HZ // 100


@dataclass(frozen=True)
class Joined:
    """A recording of clips, each with its text and where it begins and ends."""

    path: Path
    texts: list[str]
    places: list[tuple[float, float]]
    fillers: list[tuple[float, float]]


def read_speech(count, corpus="kathleen"):
    """Clips of a corpus without the silence around them, and their texts."""
    folder = find_shared("data", corpus)
    lines = [line.split("|") for line in (folder / "metadata.csv").read_text().splitlines()[:count]]
    clips = []
    for name, *_ in lines:
        samples = read_clip(next((folder / "wavs").glob(f"{name}.*")))
        frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
        loud = np.flatnonzero(np.square(frames).mean(1) > np.square(frames).mean(1).max() * 10**-3.5)
        clips.append(samples[loud[0] * FRAME : (loud[-1] + 1) * FRAME] / np.abs(samples).max() * 0.5)
    return clips, [line[1] for line in lines]


def make_silence(random, seconds):
    return np.zeros(int(seconds * RATE_HZ))


def make_noise(random, seconds):
    return 0.02 * random.standard_normal(int(seconds * RATE_HZ))


def make_music(random, seconds):
    """Chords of three notes with overtones, and a drum."""
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    notes = np.array([(262, 330, 392), (220, 262, 330), (175, 220, 262), (196, 247, 294)])[(t / 0.6).astype(int) % 4]
    sound = sum(np.sin(2 * np.pi * notes[:, n] * h * t) / h for n in range(3) for h in (1, 2, 3))
    drum = random.standard_normal(len(t)) * np.exp(-(t % 0.3) * 40)
    return 0.08 * sound * np.exp(-(t % 0.6) * 1.5) + 0.1 * drum


def join(path, clips, texts, fillers=(make_silence,), *, seconds=(0.4, 1.0), breath=0.3, rate_hz=RATE_HZ, channels=1):
    """Writes clips with fillers between them, before the first and behind the last, over a little noise.

    Between clip and filler is a breath, as nobody speaks into the last note.
    """
    random, silence = np.random.default_rng(7), np.zeros(int(breath * RATE_HZ))
    parts, places, gaps, now = [], [], [], 0

    def add(samples, places):
        nonlocal now
        places.append((now / RATE_HZ, (now + len(samples)) / RATE_HZ))
        parts.append(samples)
        now += len(samples)

    for number in range(len(clips) + 1):
        filler = fillers[number % len(fillers)](random, random.uniform(*seconds))
        add(np.concatenate([silence, filler, silence]), gaps)
        if number < len(clips):
            add(clips[number], places)
    sound = np.concatenate(parts) + 1e-4 * random.standard_normal(now)
    if rate_hz != RATE_HZ:
        # Played at another rate: speech that is a little faster is speech too.
        scale = RATE_HZ / rate_hz
        places, gaps = ([(start * scale, end * scale) for start, end in each] for each in (places, gaps))
    soundfile.write(path, np.stack([sound * (1 - 0.3 * n) for n in range(channels)], axis=1), rate_hz)
    return Joined(path, texts, places, gaps)


def hear_nothing_new(path, language):
    """The same in every clip."""
    return "some words that were said here"


def hear_until_killed(path, language):
    """Ends the process at the fifth clip, counted over all processes in a file."""
    with open(os.environ["ASKED_FILE"], "a+") as file:
        file.write("x")
        file.flush()
        if file.tell() == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    return f"heard {round(soundfile.info(path).duration, 2)} seconds of it"

"""Checkpoints by ear: what each validation of a run said, on one page, with the loss it had and the recording itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from myxtts.audio.clip_errors import ClipError
from myxtts.audio.reading import read_clip
from myxtts.files import FileError, MissingFileError, open_file_atomically, read_json
from myxtts.monitoring.embedding import SOUND_STYLE, embed_clip, embed_file
from myxtts.monitoring.errors import MetricsFileError
from myxtts.monitoring.loss_curve import draw_losses
from myxtts.monitoring.metrics_log import FILE_NAME, read_metrics
from myxtts.monitoring.metrics_rows import Row, RunRow, ValidationRow
from myxtts.monitoring.page_style import STYLE
from myxtts.monitoring.words import UNKNOWN, format_count

SAMPLES_FOLDER = "samples"
CLIP_NAME = "clip.json"
PAGE_NAME = "listen.html"
CODEC_FOLDER = "codec"
MOST_STEPS = 24
"""More make a page of tens of megabytes; the first, the best and the last are always among them."""
STAGE_NOTES = {
    "codec": "The clip after it went through the codec's codes and back.",
    "gpt": "Led, the GPT is given the true sound and says the next piece each time: what it has learnt of sound, not yet speech "
    "of its own. Griffin-Lim makes the sound here, also of a model that has a waveform decoder: with that it sounds better.",
    "decoder": "The decoder makes sound of what the GPT makes of the clip's true codes.",
}

FREE_NOTE = (
    "On its own, it is given nothing but the text and a voice prompt, as when it is used: this is its speech. Where it "
    "does not stop by itself it is cut off, at twice the recording's length or at 10 s."
)
FREE_MARK = "-free"
"""In the name of a file with what a model said on its own."""

_SAMPLE_NAME = re.compile(r"step-(\d+)\.wav")
_PAIR_STYLE = """
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(15rem, 100%), 1fr)); gap: .9rem; }
.pair > div { min-width: 0; } .pair p { margin: 0 0 .2rem; font-size: .85rem; }
"""


@dataclass(frozen=True)
class StepSound:
    """What a model said at one validation."""

    step: int
    path: Path
    free: Path | None
    """What it said on its own, beside what it said when it was led; None where it said nothing on its own."""
    loss: float | None
    is_best: bool
    """Whether the run counts it as its best."""
    has_checkpoint: bool
    """Whether the checkpoint of that step is still there."""


@dataclass(frozen=True)
class Hearing:
    """The sounds of one stage of a run."""

    stage: str | None
    rows: tuple[Row, ...]
    sounds: tuple[StepSound, ...]
    text: str | None
    recording: Path | None
    """What is said in all of them, and who says it; None where it is not known or no longer there."""


def name_sample(step: int, *, is_free: bool = False) -> str:
    """The file with what was heard after so many updates; `is_free` for what the model said on its own."""
    return f"step-{step:08d}{FREE_MARK if is_free else ''}.wav"


def note_clip(folder: Path, text: str, recording: Path) -> None:
    """Keeps beside the sounds of a run which clip they are of."""
    path = folder / SAMPLES_FOLDER / CLIP_NAME
    with open_file_atomically(path) as file:
        file.write(json.dumps({"text": text, "recording": str(recording)}).encode())


def collect_hearing(folder: Path) -> Hearing | None:
    """The sounds of a stage's folder; None where there are none."""
    found = sorted(
        (int(match[1]), path)
        for path in (folder / SAMPLES_FOLDER).glob("*.wav")
        if (match := _SAMPLE_NAME.fullmatch(path.name))
    )
    if not found:
        return None
    rows = read_metrics(folder / FILE_NAME).rows if (folder / FILE_NAME).exists() else ()
    losses = {row.step: row.loss for row in rows if isinstance(row, ValidationRow)}
    # The run's own judgement: losses of a codec before and after it has codes cannot be compared.
    best = next((row.step for row in reversed(rows) if isinstance(row, ValidationRow) and row.is_best), None)
    sounds = tuple(
        StepSound(step, path, _find_free(path), losses.get(step), step == best, (folder / path.stem).is_dir())
        for step, path in found
    )
    text, recording = _read_clip_note(folder / SAMPLES_FOLDER / CLIP_NAME)
    stage = next((row.stage for row in rows if isinstance(row, RunRow)), None)
    return Hearing(stage, rows, sounds, text, recording)


def write_listening_page(folder: Path, page_path: Path) -> int:
    """Writes the page of a run and returns how many sounds are on it; where there are none, there is no page."""
    stages = (folder, folder / CODEC_FOLDER)
    hearings = [hearing for stage in stages if (hearing := collect_hearing(stage)) is not None]
    if hearings:
        with open_file_atomically(page_path) as file:
            file.write(format_listening_page(_name_run(folder), hearings).encode())
    chosen = [sound for hearing in hearings for sound in choose_sounds(hearing.sounds)]
    return len(chosen) + sum(sound.free is not None for sound in chosen)


def choose_sounds(sounds: Sequence[StepSound]) -> list[StepSound]:
    """At most `MOST_STEPS`, spread evenly over the run, newest first."""
    places = set(np.linspace(0, len(sounds) - 1, min(MOST_STEPS - 1, len(sounds))).round().astype(int).tolist())
    places |= {index for index, sound in enumerate(sounds) if sound.is_best}
    return [sounds[index] for index in sorted(places, reverse=True)]


def format_listening_page(name: str, hearings: Sequence[Hearing]) -> str:
    """The page."""
    title = f"{name}: checkpoints by ear"
    body = [
        f"<h1>{escape(title)}</h1>",
        "<p>The same clip at every validation, newest first.</p>",
        *(_draw_hearing(hearing) for hearing in hearings),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{SOUND_STYLE}{_PAIR_STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _name_run(folder: Path) -> str:
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if folder.name == CODEC_FOLDER else folder.name


def _draw_hearing(hearing: Hearing) -> str:
    chosen = choose_sounds(hearing.sounds)
    left_out = len(hearing.sounds) - len(chosen)
    parts = [
        f"<section><h2>Stage {escape(hearing.stage or UNKNOWN)}</h2>",
        f"<p>{FREE_NOTE}</p>" if any(sound.free for sound in chosen) else "",
        f"<p>{STAGE_NOTES[hearing.stage]}</p>" if hearing.stage in STAGE_NOTES else "",
        f'<blockquote dir="auto">{escape(hearing.text)}</blockquote>' if hearing.text else "",
        _draw_recording(hearing),
        *(_draw_sound(sound) for sound in chosen),
        f"<p>{left_out} more are in {SAMPLES_FOLDER}/.</p>" if left_out else "",
        draw_losses(hearing.rows) if any(isinstance(row, ValidationRow) for row in hearing.rows) else "",
        "</section>",
    ]
    return "\n".join(parts)


def _draw_recording(hearing: Hearing) -> str:
    if hearing.recording is None:
        return ""
    try:
        samples = read_clip(hearing.recording)
    except ClipError:
        return f'<p class="unknown">The recording {escape(hearing.recording.name)} is no longer there.</p>'
    return (
        f'<figure class="sound"><figcaption><b>Recording</b><span>{escape(hearing.recording.name)}</span></figcaption>'
        f"{embed_clip(samples, 'the recording')}</figure>"
    )


def _draw_sound(sound: StepSound) -> str:
    label = f"step {format_count(sound.step)}"
    loss = f"loss {sound.loss:.4g}" if sound.loss is not None else f"loss {UNKNOWN}"
    marks = [
        loss,
        *(["best"] if sound.is_best else []),
        *([f"checkpoint {sound.path.stem}"] if sound.has_checkpoint else []),
    ]
    heard = _embed_sound(sound.path, label)
    if sound.free is not None:
        free = _embed_sound(sound.free, f"{label}, on its own")
        heard = f'<div class="pair"><div><p>On its own</p>{free}</div><div><p>Led</p>{heard}</div></div>'
    return (
        f'<figure class="sound"><figcaption><b>Step {format_count(sound.step)}</b>'
        f"<span>{escape(' · '.join(marks))}</span></figcaption>{heard}</figure>"
    )


def _embed_sound(path: Path, label: str) -> str:
    try:
        return embed_file(path, label)
    except (ClipError, FileError):
        # A run that was killed while it wrote one: the others are worth hearing all the same.
        return f'<p class="unknown">{escape(path.name)} cannot be played: it was not written to its end.</p>'


def _find_free(path: Path) -> Path | None:
    free = path.with_stem(f"{path.stem}{FREE_MARK}")
    return free if free.is_file() else None


@dataclass(frozen=True)
class _ClipNote:
    text: str
    recording: Path


def _read_clip_note(path: Path) -> tuple[str | None, Path | None]:
    try:
        note = read_json(path, _ClipNote)
    except MissingFileError:
        return None, None
    except FileError as error:
        raise MetricsFileError(f"{error} It should say which clip the sounds are of. Remove the file.") from error
    return note.text, note.recording

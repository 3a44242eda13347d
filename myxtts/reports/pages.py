"""The pages of a run, of what it said, and of a corpus. Others fill their own templates by `render_page`."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from myxtts import units
from myxtts.audio.filterbanks import SILENT_LOG_POWER, compute_log_mel
from myxtts.audio.reading import read_clip
from myxtts.data.overview import Overview
from myxtts.data.scan import ScanResult
from myxtts.errors import ClipError, NotARunError
from myxtts.files import FileError, MissingFileError, open_file_atomically, read_bytes, read_json
from myxtts.monitoring.clock import TRAINING, Cause
from myxtts.monitoring.metrics import (
    FILE_NAME,
    EventRow,
    MachineRow,
    Metrics,
    Row,
    RunRow,
    TrainRow,
    ValidationRow,
    read_metrics,
)
from myxtts.monitoring.summary import RunSummary, summarise_run
from myxtts.monitoring.tensorboard import paint_mel
from myxtts.reports.charts import (
    BarPart,
    Point,
    Series,
    draw_bars,
    draw_counts,
    draw_histogram,
    draw_lines,
    make_visible,
)
from myxtts.units import SAMPLE_RATE_HZ, UNKNOWN, format_count, format_number, format_step_time

LOUD_LOG_POWER = 2.0
"""Drawn brightest: the loudest vowels of a clip at full scale. The same in all pictures, so that they can be compared."""
MOST_SOUND_BYTES = 64 << 20
"""Of a sound in a page: a quarter of an hour of wav, more than a browser takes gladly."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BIT_RGB = (8, 2, 0, 0, 0)
_SOUND = Markup(
    '<img alt="Spectrogram of {label}" src="data:image/png;base64,{picture}">'
    '<audio controls preload="metadata" aria-label="{label}" src="data:audio/wav;base64,{wav}"></audio>'
)


def embed_file(path: Path, label: str, *, is_wav: bool = True) -> Markup:
    """The spectrogram of a wav file and a player with the file inside it, which needs no script; of a recording in any other format
    with the wav file that a run reads from it."""
    samples = read_clip(path)
    if is_wav:
        wav = read_bytes(path, MOST_SOUND_BYTES)
    else:
        file = io.BytesIO()
        soundfile.write(file, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
        wav = file.getvalue()
    picture = paint_mel(compute_log_mel(samples), scale=1, lowest=SILENT_LOG_POWER, highest=LOUD_LOG_POWER)
    codes = {"picture": encode_png(picture), "wav": wav}
    return _SOUND.format(label=label, **{name: base64.b64encode(code).decode() for name, code in codes.items()})


def encode_png(picture_HW3: NDArray[np.uint8]) -> bytes:
    """An RGB picture as a PNG file."""
    height, width, _ = picture_HW3.shape
    # Each line begins with the number of its filter: 0 is none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture_HW3.reshape(height, -1)], axis=1)
    header = struct.pack(">II5B", width, height, *_EIGHT_BIT_RGB)
    file = _PNG_SIGNATURE
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")):
        file += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return file


MOST_EVENTS = 200
SAMPLES_FOLDER = "samples"
CLIP_NAME = "clip.json"
LISTENING_PAGE = "listen.html"
CODEC_FOLDER = "codec"
MOST_STEPS = 24
"""With sounds: more make a page of tens of megabytes; the first, the best and the last are always among them."""
FREE_MARK = "-free"
"""In the name of a file with what a model said on its own."""
_SAMPLE_NAME = re.compile(r"step-(\d+)\.wav")


def render_page(template: str, **facts: Any) -> str:
    """A template of this room, filled in. Whatever is put into it is escaped, unless it is `Markup`."""
    return open_templates().get_template(template).render(facts)


def draw_losses(rows: Sequence[Row]) -> Markup:
    """Training and validation loss by step."""
    train = [(float(row.step), row.loss) for row in rows if isinstance(row, TrainRow)]
    validation = [(float(row.step), row.loss) for row in rows if isinstance(row, ValidationRow)]
    series = [Series("training", train), Series("validation", validation, dots=True)]
    return draw_lines(series, "step", lambda loss: f"{loss:.4g}")


def write_run_page(metrics_path: Path, page_path: Path) -> None:
    """Writes the page of a finished or a running run, made from its metrics file alone."""
    _write(page_path, format_run_page(read_metrics(metrics_path)))


def format_run_page(metrics: Metrics) -> str:
    """A run on one page: curves, where the time went, who waited, what happened."""
    rows, summary = metrics.rows, summarise_run(metrics.rows)
    trains = [row for row in rows if isinstance(row, TrainRow)]
    machines = [row for row in rows if isinstance(row, MachineRow)]
    session = next((row for row in reversed(rows) if isinstance(row, RunRow)), None)
    facts = {} if session is None else {"settings": session.settings, "environment": session.environment}

    # Where the time went: the steps first, and then what cost most.
    causes = [(cause, seconds) for cause, seconds in summary.spent.items() if seconds > 0]
    causes.sort(key=lambda entry: (entry[0] is not Cause.STEP, -entry[1]))
    parts = [BarPart(str(cause), seconds / summary.elapsed_s, list(Cause).index(cause)) for cause, seconds in causes]

    def format_share(share: float) -> str:
        return f"{share:.0%}"

    return render_page(
        "run.html",
        title=f"{summary.stage or 'run'}, {summary.mode or UNKNOWN} mode",
        metrics=metrics,
        summary=summary,
        losses=draw_losses(rows),
        causes=causes,
        time=draw_bars([("run", parts)]),
        step_times=draw_histogram([s for row in trains for s in row.step_times_s], format_step_time) if summary.times else None,
        stages=_draw_stages(summary),
        readiness=_draw_curves(
            ((handoff.name, row.step, handoff.readiness) for row in trains if row.flow for handoff in row.flow.handoffs), format_share, 1.0
        ),
        memory=_draw_curves(
            ((use.device, row.step, None if use.used_bytes is None else use.used_bytes / 2**30) for row in trains for use in row.memory),
            lambda gibibytes: f"{gibibytes:.4g} GB",
        ),
        memory_uses={use.device: use for row in trains for use in row.memory}.values(),
        machine=machines[-1] if machines else None,
        busy=_draw_curves(
            [*(("processors", row.step, row.host.cpu_share) for row in machines),
             *((f"GPU {card.physical_id}", row.step, card.utilization) for row in machines for card in row.cards)],
            format_share, 1.0,
        ),
        events=[row for row in rows if isinstance(row, EventRow)],
        most_events=MOST_EVENTS,
        session=session,
        settings=json.dumps(facts, indent=2, ensure_ascii=False),
    )  # fmt: skip


def format_corpus_page(result: ScanResult, overview: Overview, validation: ScanResult | None = None) -> str:
    """The page of a scanned corpus."""
    bars = overview.histogram
    edges = [*(bar.from_s for bar in bars), bars[-1].to_s]
    return render_page(
        "corpus.html",
        title=result.corpus.root.name,
        result=result,
        overview=overview,
        validation=validation,
        durations=draw_counts([bar.clips for bar in bars], edges, lambda seconds: f"{seconds:.4g} s"),
    )


def name_sample(step: int, *, is_free: bool = False) -> str:
    """The file with what was heard after so many updates; `is_free` for what the model said on its own."""
    return f"step-{step:08d}{FREE_MARK if is_free else ''}.wav"


def note_clip(folder: Path, text: str, recording: Path) -> None:
    """Keeps beside the sounds of a run which clip they are of."""
    _write(folder / SAMPLES_FOLDER / CLIP_NAME, json.dumps({"text": text, "recording": str(recording)}))


def write_listening_page(folder: Path, page_path: Path, spoken: tuple[Path, str] | None = None) -> int:
    """Writes what each validation of a run said, with the loss it had and the recording itself: checkpoints by ear.

    Returns how many sounds are on the page; where there are none, there is no page.

    Args:
        spoken: what the run says at its end, and its text.
    """
    stages = [stage for place in (folder, folder / CODEC_FOLDER) if (stage := _collect_stage(place)) is not None]
    heard = None if spoken is None else {"sound": _try_embedding(spoken[0], "at the end"), "text": spoken[1]}
    if stages or heard:
        own = folder.resolve()
        name = f"{own.parent.name}/{own.name}" if own.name == CODEC_FOLDER else own.name
        title = f"{name}: checkpoints by ear"
        facts = {"stages": stages, "spoken": heard, "samples_folder": SAMPLES_FOLDER}
        _write(page_path, render_page("listening.html", title=title, **facts))
    return (heard is not None) + sum(
        1 + (sound["free_file"] is not None) for stage in stages for sound in stage["sounds"]
    )


@dataclass(frozen=True)
class _ClipNote:
    text: str
    recording: Path


@cache
def open_templates(package: str = "myxtts.reports") -> Environment:
    """The templates of a package, which may use those of this room, with the filters they share."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in dict.fromkeys((package, "myxtts.reports"))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: make_visible(value if isinstance(value, Markup) else str(value)),
    )
    filters = {
        name: getattr(units, f"format_{name}")
        for name in ("bytes", "count", "duration", "number", "share", "step_time")
    }
    filters["ms"] = lambda seconds: f"{seconds * 1000:.2f} ms"
    filters["moment"] = lambda time_s: f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    templates.filters |= filters
    return templates


def _write(path: Path, text: str) -> None:
    with open_file_atomically(path) as file:
        file.write(text.encode())


def _draw_stages(summary: RunSummary) -> Markup | None:
    flow = summary.flow
    if flow is None or not (flow.stages or flow.handoffs):
        return None
    rows, titles = [], ("busy", "waits for a batch", "waits for a slot")
    first = len(flow.stages) - len(flow.handoffs)
    for number, stage in enumerate(flow.stages):
        seconds = {0: stage.busy_s}
        if number > first:
            seconds[1] = flow.handoffs[number - first - 1].taker_wait_s
        if number >= first:
            seconds[2] = flow.handoffs[number - first].giver_wait_s
        shares = {n: flow.share(each_s) for n, each_s in seconds.items()}
        rows.append((stage.name, [BarPart(titles[n], share, n) for n, share in shares.items() if share is not None]))
    for each in flow.preparers:
        idle = flow.share(each.giver_wait_s)
        if idle is not None:
            rows.append((each.name, [BarPart("busy", 1 - idle, 0), BarPart(titles[2], idle, 2)]))
    for each in flow.trainers:
        data, others = flow.share(each.taker_wait_s), flow.share(each.giver_wait_s)
        if data is not None and others is not None:
            works = max(0.0, 1 - data - others)
            parts = [
                BarPart("busy", works, 0),
                BarPart(titles[1], data, 1),
                BarPart("waits for other trainers", others, 2),
            ]
            rows.append((each.name, parts))
    busy, stall = summary.goodput, summary.data_stall
    if busy is not None and stall is not None:
        rows.append((TRAINING, [BarPart("busy", busy, 0), BarPart("waits for a batch", stall, 1)]))
    return draw_bars(rows)


def _draw_curves(
    points: Iterable[tuple[str, int, float | None]], format_y: Callable[[float], str], y_max: float | None = None
) -> Markup:
    """Curves from zero, by name; each point has a step and a value."""
    curves: dict[str, list[Point]] = {}
    for name, step, value in points:
        curves.setdefault(name, []).append((float(step), value))
    series = [Series(name, own) for name, own in curves.items()]
    return draw_lines(series, "step", format_y, from_zero=True, y_max=y_max, otherwise="")


def _collect_stage(folder: Path) -> dict[str, Any] | None:
    """What is heard of one stage of a run, newest first; None where there are no sounds."""
    found = sorted(
        (int(match[1]), path)
        for path in (folder / SAMPLES_FOLDER).glob("*.wav")
        if (match := _SAMPLE_NAME.fullmatch(path.name))
    )
    if not found:
        return None
    rows = read_metrics(folder / FILE_NAME).rows if (folder / FILE_NAME).exists() else ()
    validations = [row for row in rows if isinstance(row, ValidationRow)]
    losses = {row.step: row.loss for row in validations}
    # The run's own judgement: losses of a codec before and after it has codes cannot be compared.
    best = next((row.step for row in reversed(validations) if row.is_best), None)
    # Spread evenly over the run, newest first.
    places = set(np.linspace(0, len(found) - 1, min(MOST_STEPS - 1, len(found))).round().astype(int).tolist())
    places |= {place for place, (step, _) in enumerate(found) if step == best}
    shown = [found[place] for place in sorted(places, reverse=True)]
    return {
        "name": next((row.stage for row in rows if isinstance(row, RunRow)), None),
        **_describe_clip(folder / SAMPLES_FOLDER / CLIP_NAME),
        "sounds": [_hear(folder, step, path, losses.get(step), step == best) for step, path in shown],
        "left_out": len(found) - len(shown),
        "losses": draw_losses(rows) if validations else "",
    }


def _hear(folder: Path, step: int, path: Path, loss: float | None, is_best: bool) -> dict[str, Any]:
    """What a model said at one validation, led and on its own; None is what cannot be played, or was not said."""
    label = f"step {format_count(step)}"
    marks = [f"loss {format_number(loss)}", *(["best"] if is_best else [])]
    if (folder / path.stem).is_dir():
        marks.append(f"checkpoint {path.stem}")
    free = path.with_name(name_sample(step, is_free=True))
    return {
        "step": step,
        "marks": marks,
        "led_file": path.name,
        "led": _try_embedding(path, label),
        "free_file": free.name if free.is_file() else None,
        "free": _try_embedding(free, f"{label}, on its own") if free.is_file() else None,
    }


def _try_embedding(path: Path, label: str, *, is_wav: bool = True) -> Markup | None:
    """None where it cannot be played: a run was killed while it wrote it, say, and the others are worth hearing all the same."""
    try:
        return embed_file(path, label, is_wav=is_wav)
    except (ClipError, FileError):
        return None


def _describe_clip(path: Path) -> dict[str, Any]:
    """What the sounds are of; None is what is not known, or cannot be played."""
    try:
        note = read_json(path, _ClipNote)
    except MissingFileError:
        return dict.fromkeys(("text", "recording_file", "recording"))
    except FileError as error:
        raise NotARunError(f"{error} It should say which clip the sounds are of. Remove the file.") from error
    recording = _try_embedding(note.recording, "the recording", is_wav=False)
    return {"text": note.text, "recording_file": note.recording.name, "recording": recording}

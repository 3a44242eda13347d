"""Trainings of a workspace: the words of `myxtts train`, how far each is and who trains it, and the memory it will take.

All that is known of a run is read from its folder, so it does not matter who began it, or in which process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from myxtts.checkpoints.store import CheckpointReader
from myxtts.config import XTTSConfig
from myxtts.config.presets import MODEL_SIZES
from myxtts.config.settings import parse_gpu_ids
from myxtts.config.sources import dump_sections, iterate_flags
from myxtts.data.task_processes import ProcessTask, Work
from myxtts.devices.machine import read_machine, select_visible
from myxtts.devices.nvml import Card
from myxtts.errors import DevicePlanError, NotARunError, RunFolderError
from myxtts.files import FileError, open_scratch_folder, parse_json, read_json, read_text
from myxtts.monitoring.metrics import (
    FILE_NAME,
    EventRow,
    Metrics,
    RunRow,
    SummaryRow,
    TrainRow,
    ValidationRow,
    read_metrics,
)
from myxtts.reports.pages import CLIP_NAME, CODEC_FOLDER, SAMPLES_FOLDER, name_sample
from myxtts.serving.request import ApiError
from myxtts.studio.corpora import Corpora
from myxtts.studio.door import CONFLICT
from myxtts.studio.jobs import Jobs, read_environ, read_tail, show_card
from myxtts.studio.workspace import BASE, Workspace
from myxtts.training.mode import measure_in_process, plan_run
from myxtts.training.run_folder import LOCK_NAME, read_record

CPU = "CPU"
BOTH_ROLES = "two"
"""On the CPU: one process prepares, another trains, as two cards would."""
NUMBERS: Mapping[str, str] = {
    "steps": "training.max_steps", "batch_size": "data.batch_size", "validation_interval": "training.validation_interval",
}  # fmt: skip
"""Fields that are settings: whole numbers, which may be left empty."""
_HOLDER = re.compile(r"process (\d+) on (.+), since ")
_TAIL_BYTES = 1 << 16


def read_settings(
    workspace: Workspace, corpora: Corpora, fields: Mapping[str, str], *, rehearsal: bool
) -> dict[str, Any]:
    """The settings that a form asks for, by dotted key. Raises `ApiError`."""
    settings: dict[str, Any] = {"training.checkpoint_dir": str(workspace.name_new(workspace.runs, fields.get("name", "")))}  # fmt: skip
    if corpus := fields.get("corpus", ""):
        settings["data.train_data"] = str(corpora.find_usable(corpus))
        if (language := corpora.read_language(corpus)) is not None:
            settings["data.language"] = language
    if start := fields.get("start", ""):
        settings["training.init_from"] = workspace.find_model(start)
    elif (size := fields.get("size", "tiny")) in MODEL_SIZES:
        settings["model.size"] = size
    else:
        raise ApiError(f"A size must be one of {', '.join(MODEL_SIZES)}, but is {size[:40]!r}.", param="size")
    for field, key in NUMBERS.items():
        if (given := fields.get(field, "").strip()) and not re.fullmatch("[0-9]{1,9}", given):
            raise ApiError(f"{field} must be a whole number of up to 9 digits, but is {given[:40]!r}.", param=field)
        settings |= {key: int(given)} if given else {}
    return settings | _read_device(fields.get("device", ""), rehearsal=rehearsal)


def _read_device(device: str, *, rehearsal: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"training.rehearsal": True} if rehearsal or device in (CPU, BOTH_ROLES) else {}
    if device == BOTH_ROLES:
        return settings | {"training.mode": "isolated"}
    if pair := re.fullmatch(r"(\d{1,3}),(\d{1,3})", device, re.ASCII):
        return settings | {"data.data_gpu": int(pair[1]), "data.model_gpu": int(pair[2]), "data.enable_memory_isolation": True}  # fmt: skip
    if device not in ("", CPU) and not read_card(device):
        raise ApiError(f"device must be one of those that the form offers, but is {device[:40]!r}.", param="device")
    return settings


def read_card(device: str) -> str:
    """The one card that a form asks for; nothing where it asks for none or two."""
    return device if re.fullmatch(r"\d{1,3}", device, re.ASCII) else ""


def spell_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of `myxtts train`."""
    flags = {key: flag.name for key, flag, _ in reversed(list(iterate_flags()))}
    words = ["train"]
    for key, value in settings.items():
        words += [flags[key]] if value is True else [flags[key], str(value)]
    return words


def spell_command(words: Sequence[str], card: str = "") -> str:
    """Words of `myxtts` for a shell, with one card in sight or all."""
    shown = [f"{name}={value}" for name, value in show_card(card).items()]
    return " ".join([*shown, shlex.join(["myxtts", *words])])


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """The settings that words of `myxtts train` stand for; what they do not say is left out."""
    keys = {flag.name: key for key, flag, _ in iterate_flags()}
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {keys[word]: True if value.startswith("--") else value for word, value in pairs if word in keys}


def make_config(settings: Mapping[str, Any]) -> XTTSConfig:
    """The configuration of a run. Raises `ConfigError`."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return XTTSConfig(**sections)


def list_cards(environ: Mapping[str, str] | None = None) -> tuple[Card, ...]:
    """The GPUs that a run would see, in this environment or in another."""
    machine = read_machine(environ)
    with contextlib.suppress(DevicePlanError):
        return select_visible(machine.cards, machine.environ)
    return ()


def list_devices(sections: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str] | None = None) -> set[str]:
    """The devices that a run of these settings uses, in this environment or in another."""
    data, training, cards = sections["data"], sections["training"], list_cards(environ)
    if training["rehearsal"] or not cards:
        return {CPU}
    several = parse_gpu_ids(training["model_gpus"]) if training["model_gpus"] else []
    named = [each for each in (data["data_gpu"], data["model_gpu"], *several) if each is not None]
    return {f"GPU {each}" for each in named or [cards[0].physical_id]}


def find_trainer(folder: Path) -> int | None:
    """The process that trains in a folder, on this machine. Nothing is locked for it, so no trainer that comes now is kept out."""
    with contextlib.suppress(FileError, OSError):
        found = _HOLDER.match(read_text(folder / LOCK_NAME, 500))
        if found and found[2] == socket.gethostname():
            # The kernel frees the lock with the file; what stands in it stays.
            opened = Path(f"/proc/{found[1]}/fd")
            lock = os.stat(folder / LOCK_NAME)
            if any(_is_same(link, lock) for link in opened.iterdir()):
                return int(found[1])
    return None


def _is_same(link: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(link.stat(), file)
    except OSError:
        return False


@dataclass(frozen=True)
class RunState:
    """How a run is."""

    name: str
    status: str
    """starting, training, stopping, finished, stopped, failed or died."""
    step: int
    """Updates that are saved."""
    end_step: int | None
    stage: str
    problem: str = ""
    """What it said last, where it failed."""
    told: str = ""
    """While it starts, what it says."""

    @property
    def is_active(self) -> bool:
        return self.status in ("starting", "training", "stopping")


class Trainings:
    """The runs of a workspace."""

    def __init__(self, workspace: Workspace, jobs: Jobs):
        self._workspace, self._jobs = workspace, jobs
        self._stopping: dict[str, int] = {}

    def describe(self, name: str) -> RunState:
        """How a run is now."""
        folder, job = self._workspace.runs / name, f"train-{name}"
        trainer, problem = find_trainer(folder), ""
        try:
            record = read_record(folder)
        except RunFolderError as error:
            return RunState(name, "failed", 0, None, "", str(error))
        if trainer is not None:
            status = "stopping" if self._stopping.get(name) == trainer else "training"
        elif self._jobs.is_running(job):
            status = "starting"
        elif record is not None and record.ending is not None:
            status = "finished"
        else:
            status = self._find_ending(folder, job)
            problem = self._jobs.read_log(job) if status in ("failed", "died") else ""
        found = CheckpointReader(folder).list()
        end_step, stage = (None, "") if record is None else (record.end_step, record.stage)
        told = self._jobs.read_log(job, 600).rpartition("\n")[2] if status in ("starting", "training") else ""
        return RunState(name, status, found[-1].step if found else 0, end_step, stage, problem, told)

    def list_all(self) -> list[RunState]:
        return [self.describe(name) for name in self._workspace.list_names(self._workspace.runs)]

    def start(self, settings: Mapping[str, Any], card: str = "") -> str:
        """Begins a run. Raises `ApiError` where another one trains on its devices."""
        config, folder = make_config(settings), Path(settings["training.checkpoint_dir"])
        self._require_free(list_devices(dump_sections(config), {**os.environ, **show_card(card)}))
        # So that it is listed from now on, whatever becomes of it.
        folder.mkdir(exist_ok=True)
        self._jobs.start(f"train-{folder.name}", spell_words(settings), None, card)
        return folder.name

    def resume(self, name: str) -> None:
        """Goes on with a run, by the command that it was started with last, here or in a shell."""
        if self.describe(name).is_active:
            raise ApiError(f"{name} trains already.", CONFLICT)
        words, cwd = self._find_command(name)
        if not words:
            raise ApiError(f"{name} was not started from here, and nothing in its folder says how. Start another run.")
        if not cwd.is_dir():
            raise ApiError(f"{name} was started in {cwd}, which its command needs, but that folder has gone. Make it, or start another run.", CONFLICT)  # fmt: skip
        self._require_free(self._list_devices_of(name))
        self._jobs.start(f"train-{name}", words, cwd, self._find_card(name))

    def spell_resume(self, name: str) -> str:
        """The command that goes on with a run, for a shell; nothing where it is not known."""
        words, cwd = self._find_command(name)
        if not words:
            return ""
        place = "" if cwd == self._workspace.root else f"cd {shlex.quote(str(cwd))} && "
        return place + spell_command(words, self._find_card(name))

    def _find_command(self, name: str) -> tuple[list[str], Path]:
        """What a run was started with last, and where: paths of a shell may be relative. No words where that is not known."""
        folder, root = self._workspace.runs / name, self._workspace.root
        # What trains its codec first has begun there, and not yet itself.
        for record in (read_record(folder), read_record(folder / CODEC_FOLDER)):
            if record is not None and record.starts:
                # `myxtts train ...` or `python train_main.py ...`
                start = record.starts[-1]
                command = [word for word in start.command[2:] if word not in ("--resume", "--reset-training")]
                return ["train", *command, "--resume"], Path(start.cwd or root)
        job = self._jobs.find(f"train-{name}")
        return ([] if job is None else list(job.words)), root

    def _find_card(self, name: str) -> str:
        job = self._jobs.find(f"train-{name}")
        return "" if job is None else job.card

    def stop(self, name: str) -> None:
        """Asks a run to save and end, whoever began it."""
        trainer, job = find_trainer(self._workspace.runs / name), f"train-{name}"
        if trainer is None:
            self._jobs.stop(job)
            return
        is_ours = self._jobs.is_running(job)
        with contextlib.suppress(ProcessLookupError):
            os.kill(trainer, signal.SIGTERM)
            self._stopping[name] = trainer
        if is_ours:
            self._jobs.note_stop(job)

    def _require_free(self, devices: set[str]) -> None:
        for run in self.list_all():
            used = self._list_devices_of(run.name) if run.is_active else set()
            if shared := used & devices:
                raise ApiError(f"{run.name} trains on {', '.join(sorted(shared))} already: one training at a time per device. Stop it, or wait.", CONFLICT)  # fmt: skip

    def _list_devices_of(self, name: str) -> set[str]:
        """The devices of a run; until it has written down what it is, by the words it was started with."""
        folder, job = self._workspace.runs / name, self._jobs.find(f"train-{name}")
        trainer = find_trainer(folder)
        environ = {**os.environ, **show_card(self._find_card(name))} if trainer is None else read_environ(trainer)
        if (record := read_record(folder)) is not None:
            return list_devices(record.config, environ)
        return list_devices(dump_sections(make_config(read_words(() if job is None else job.words))), environ)

    def _find_ending(self, folder: Path, job: str) -> str:
        """How a run that nobody trains has ended: its last row says so, unless the command that was started last told none."""
        status, told_s = _read_ending(folder)
        record, code = self._jobs.find(job), self._jobs.read_code(job)
        if status is not None and (record is None or told_s >= record.started_s):
            return status
        if record is not None and (record.is_stopped or code == 0):
            return "stopped"
        has_gone = told_s > 0 and status is None if code is None else code < 0
        return "died" if has_gone else "failed"


def _read_ending(folder: Path) -> tuple[str | None, float]:
    """What the last row of a run says, and when it was written. None where there is none, or a codec is done and its run has not begun."""
    for place in (folder, folder / CODEC_FOLDER):
        lines = read_tail(place / FILE_NAME, _TAIL_BYTES).splitlines()
        with contextlib.suppress(ValueError, AttributeError, IndexError, TypeError):
            last = parse_json(lines[-1])
            status, told_s = (
                str(last["status"]) if last.get("kind") == SummaryRow.kind else "died",
                float(last.get("time_s", 0)),
            )
            return (None if place != folder and status == "finished" else status), told_s
    return None, 0.0


def read_run(folder: Path) -> Metrics | None:
    """What a run has told so far; while its codec is trained, what that has told. None where it has told nothing."""
    for place in (folder, folder / CODEC_FOLDER):
        with contextlib.suppress(NotARunError):
            return read_metrics(place / FILE_NAME)
    return None


def summarise_progress(metrics: Metrics) -> dict[str, Any]:
    """What the page tells of a run beside its summary: the pace to its end, the last row and the latest events."""
    trains = [row for row in metrics.rows if isinstance(row, TrainRow)]
    sessions = [row for row in metrics.rows if isinstance(row, RunRow)]
    events = [row for row in metrics.rows if isinstance(row, EventRow)]
    last = trains[-1] if trains else None
    end = sessions[-1].end_step if sessions else None
    left_s = None
    if last is not None and last.step_s is not None and end is not None:
        left_s = (end - last.step) * last.step_s
    return {"last": last, "end_step": end, "left_s": left_s, "events": events[-8:]}


@dataclass(frozen=True)
class Sample:
    """What was heard after so many updates: led by the recording's codes, and on its own."""

    step: int
    led: Path
    free: Path | None
    is_checkpoint: bool
    loss: float | None
    """Of that validation."""


@dataclass(frozen=True)
class Heard:
    """What is to be heard of a run: its samples, the newest first, and the clip they are of."""

    samples: tuple[Sample, ...] = ()
    text: str = ""
    recording: Path | None = None


def list_heard(folder: Path, metrics: Metrics | None = None) -> Heard:
    """The samples of a run; of its codec, where it has none of its own."""
    for place in (folder, folder / CODEC_FOLDER):
        files = [each for each in (place / SAMPLES_FOLDER).glob("step-*.wav") if each.stem[5:].isdecimal()]
        if not files:
            continue
        rows = () if metrics is None else metrics.rows
        losses = {row.step: row.loss for row in rows if isinstance(row, ValidationRow)}
        samples = []
        for led in sorted(files, reverse=True):
            step = int(led.stem[5:])
            free = led.with_name(name_sample(step, is_free=True))
            has_both, is_checkpoint = free.is_file(), (place / led.stem).is_dir()
            samples.append(Sample(step, led, free if has_both else None, is_checkpoint, losses.get(step)))
        clip: dict[str, Any] = {}
        with contextlib.suppress(FileError):
            clip = read_json(place / SAMPLES_FOLDER / CLIP_NAME, dict)
        return Heard(tuple(samples), str(clip.get("text", "")), Path(str(clip["recording"])) if "recording" in clip else None)  # fmt: skip
    return Heard()


def estimate_memory(settings: Mapping[str, Any]) -> str:
    """What each device must hold, in words, by the code that a run asks at its start. Takes some seconds: in a process of its own.

    Raises `MemoryBillError` where that is too much, with a batch that fits.
    """
    with open_scratch_folder("bill") as folder:
        task = ProcessTask(f"{__name__}:make_biller", {"folder": str(folder)})
        return str(measure_in_process(task, dict(settings), "the memory bill")["bill"])


def make_biller(folder: str) -> Work:
    """For `estimate_memory`: from settings to the bill. Only here TensorFlow is loaded, and it sees no card."""
    from myxtts.devices.plan import PlanRequest
    from myxtts.devices.planning import plan_devices
    from myxtts.devices.runtime import apply_plan
    from myxtts.training.memory_estimate import check_run
    from myxtts.tuning.measuring import describe_shape
    from myxtts.tuning.profiling import set_up_profile

    apply_plan(plan_devices(PlanRequest(mode="single", rehearsal=True), read_machine()))
    return partial(_bill, folder, check_run, describe_shape, set_up_profile)


def _bill(folder: str, check_run: Any, describe_shape: Any, set_up_profile: Any, settings: Any) -> dict[str, str]:
    config = make_config(settings)
    plan = plan_run(config).plan
    setup = set_up_profile(config, plan, Path(folder))
    return {"bill": str(check_run(setup.config, plan, describe_shape(setup)))}


def choose_starts(models: Sequence[str]) -> list[str]:
    """What a training can start from: the base voice, then whole runs and imported models; not every checkpoint."""
    return [BASE, *(model for model in models if model != BASE and model.count("/") == 1)]

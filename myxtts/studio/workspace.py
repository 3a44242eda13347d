"""The folder of a studio: what is in it, by names that are never taken for paths.

recordings/ID.wav     what was uploaded or recorded, with ID.json: its title, and what its header says
corpora/NAME/         made by `myxtts corpus`
models/NAME/          made by `myxtts import`
runs/NAME/            `--checkpoint-dir` of a training
evaluations/NAME/     made by `myxtts evaluate`
jobs/                 the commands that were started, and what they said
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from myxtts.audio.reading import inspect_clip
from myxtts.checkpoints.model_directory import MANIFEST_NAME
from myxtts.checkpoints.store import CheckpointReader
from myxtts.errors import ClipError
from myxtts.files import FileError, open_file, open_file_atomically, read_json
from myxtts.serving.request import ApiError
from myxtts.studio.door import CONFLICT, refuse_unknown

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
CONTAINERS: Mapping[str, str] = {
    "WAV": "wav",
    "WAVEX": "wav",
    "RF64": "wav",
    "FLAC": "flac",
    "OGG": "ogg",
    "MP3": "mp3",
}
"""What libsndfile calls the formats that are taken, and the ending of their files here."""
LONGEST_RECORDING_S = 24 * 3600.0
MOST_TITLE = 200
MOST_SCRIPT = 1000
"""Characters of the text of a recording."""
LOCK_NAME = ".lock"
"""In the folder of a corpus: held by whoever makes it, here or in a shell."""
INCOMING = ".incoming"
RECORDING = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
BASE = "base"
"""The voice that comes with the package, in the place of a model."""


@dataclass(frozen=True)
class Recording:
    """A recording of the workspace."""

    id: str
    title: str
    """As its user calls it: often the name of the file it came from. For people to read only."""
    kind: str
    seconds: float
    rate_hz: int
    channels: int
    size_bytes: int
    text: str = ""
    """What is said in it, where that was known before: read from a script in the browser."""


class Workspace:
    """A folder in which a studio keeps everything."""

    def __init__(self, root: Path):
        self.root = Path(root).resolve()
        self.recordings, self.corpora, self.models, self.runs, self.evaluations, self.jobs = (
            self.root / name for name in ("recordings", "corpora", "models", "runs", "evaluations", "jobs")
        )

    def make(self) -> None:
        """Makes the folders that are not there, and removes what a studio that was killed had received in part. Raises `OSError`."""
        for folder in (self.recordings, self.corpora, self.models, self.runs, self.evaluations, self.jobs):
            folder.mkdir(parents=True, exist_ok=True)
        for path in self.recordings.glob(f"*{INCOMING}"):
            if not is_held(path):
                path.unlink(missing_ok=True)

    def name_new(self, folder: Path, name: str) -> Path:
        """The place of a new corpus or run. Raises `ApiError` for a name that cannot be one, or is taken."""
        if not NAME.fullmatch(name):
            raise ApiError("A name must be of a-z, 0-9 and -, up to 40 of them, and begin with none of -. Give another.", param="name")  # fmt: skip
        # An empty folder, or one with a lock that nobody holds, is what is left of one that failed before it began.
        if (folder / name).exists() and (
            not (folder / name).is_dir() or {path.name for path in (folder / name).iterdir()} - {LOCK_NAME}
        ):
            raise ApiError(f"There is a {name} already. Give another name.", CONFLICT, param="name")
        return folder / name

    def find(self, folder: Path, name: str, what: str) -> Path:
        """What has that name in a folder of the workspace. Raises `ApiError`."""
        if not NAME.fullmatch(name) or not (folder / name).is_dir():
            raise refuse_unknown(what)
        return self.keep_inside(folder / name, what)

    def keep_inside(self, path: Path, what: str) -> Path:
        """The path itself, which no link may lead out of the workspace. Raises `ApiError`."""
        if not path.resolve().is_relative_to(self.root) or not path.exists():
            raise refuse_unknown(what)
        return path

    def list_names(self, folder: Path) -> list[str]:
        """What there is in a folder of the workspace, the newest first."""
        found = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]

    def list_recordings(self) -> list[Recording]:
        """All of them, the newest first. What cannot be read is left out."""
        paths = sorted(self.recordings.glob("*.json"), reverse=True)
        return [found for path in paths if (found := self._read_recording(path.stem)) is not None]

    def _read_recording(self, id: str) -> Recording | None:
        if RECORDING.fullmatch(id):
            with contextlib.suppress(FileError):
                found = read_json(self.recordings / f"{id}.json", Recording)
                return found if found.id == id and found.kind in CONTAINERS.values() else None
        return None

    def find_recording(self, id: str) -> tuple[Recording, Path]:
        """A recording and its file. Raises `ApiError`."""
        if (found := self._read_recording(id)) is None:
            raise refuse_unknown("recording")
        return found, self.keep_inside(self.recordings / f"{found.id}.{found.kind}", "recording")

    def name_incoming(self) -> Path:
        """A file that nobody has, for what comes."""
        return self.recordings / f".{secrets.token_hex(8)}{INCOMING}"

    def keep_recording(self, incoming: Path, title: str, text: str = "") -> Recording:
        """Keeps a file that has come whole, where it holds sound of a kind that is taken. Raises `ApiError`."""
        try:
            info = inspect_clip(incoming, most_seconds=LONGEST_RECORDING_S)
        except ClipError as error:
            raise ApiError(f"This is no recording that can be used: it {str(error).partition(f'{incoming}: ')[2] or error}") from None  # fmt: skip
        if (kind := CONTAINERS.get(info.container)) is None:
            raise ApiError(f"A recording must be wav, flac, ogg or mp3, but is {info.container}. Convert it first.")
        id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        size_bytes = incoming.stat().st_size
        recording = Recording(id, title[:MOST_TITLE], kind, info.seconds, info.rate_hz, info.channels, size_bytes, text)
        # The sound comes last: without its description it would take its place on the disk, and be listed nowhere.
        with open_file_atomically(self.recordings / f"{id}.json") as file:
            file.write(json.dumps(asdict(recording), ensure_ascii=False).encode())
        incoming.rename(self.recordings / f"{id}.{kind}")
        return recording

    def remove_recording(self, id: str) -> None:
        recording, path = self.find_recording(id)
        (self.recordings / f"{recording.id}.json").unlink()
        path.unlink()

    def list_models(self) -> list[str]:
        """What can speak or be trained on, as `find_model` takes them: the base voice, imported models, runs and their checkpoints."""
        imported = [f"models/{name}" for name in self.list_names(self.models) if (self.models / name / MANIFEST_NAME).is_file()]  # fmt: skip
        trained = []
        for name in self.list_names(self.runs):
            steps = [f"runs/{name}/{each.path.name}" for each in CheckpointReader(self.runs / name).list()]
            trained += [f"runs/{name}", *reversed(steps)] if steps else []
        return [BASE, *imported, *trained]

    def find_model(self, model: str) -> str:
        """A model of `list_models` as commands take it. Raises `ApiError`."""
        if model not in self.list_models():
            raise refuse_unknown("model")
        return BASE if model == BASE else str(self.keep_inside(self.root / model, "model"))


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock of a file; not where there is no such file, or no locks."""
    with contextlib.suppress(FileError, OSError), open_file(path) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

"""The voices of a server: the model's own, those in a folder, and those that were uploaded."""

from __future__ import annotations

import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.audio.reading import inspect_clip
from myxtts.errors import ClipError, VoiceError
from myxtts.inference.voices import VOICE_SUFFIX, Voice, advise_another, load_voice, read_references, suggest_voice
from myxtts.serving.request import UNKNOWN_VOICE, ApiError, ServerStartError

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer

_log = logging.getLogger(__name__)

RECORDING_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
MOST_UPLOADS = 32
"""Uploaded voices that are kept; the one that was not used for longest makes room."""
LONGEST_UPLOAD_SECONDS = 300.0


class Voices:
    """Voices by name: those that every client may see and use, and uploads. Used in the event loop only."""

    def __init__(self, voices: Mapping[str, Voice]):
        self._voices = dict(voices)
        self._uploads: OrderedDict[str, Voice] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """What every client may see: an upload is known to its owner alone."""
        return tuple(self._voices)

    def find(self, name: str) -> Voice:
        """A voice by its name. Raises `ApiError`."""
        if name in self._voices:
            return self._voices[name]
        if name in self._uploads:
            self._uploads.move_to_end(name)
            return self._uploads[name]
        none = "This server has none of its own: upload a recording to POST /v1/audio/voices."
        hint = suggest_voice(name, self._voices) if self._voices else none
        raise ApiError(f"There is no voice {name[:80]!r}. {hint}", UNKNOWN_VOICE, param="voice")

    def keep_upload(self, voice: Voice) -> str:
        """The name of a new voice, which nobody can guess."""
        name = f"upload-{secrets.token_urlsafe(12)}"
        self._uploads[name] = voice
        while len(self._uploads) > MOST_UPLOADS:
            self._uploads.popitem(last=False)
        return name


def collect_voices(synthesizer: Synthesizer, folder: Path | None) -> dict[str, Voice]:
    """The voices that come with the model, and those in a folder: voice files and recordings, by the names of the files."""
    voices = {name: synthesizer.find_voice(name) for name in synthesizer.speakers}
    for path in _list_voice_files(folder) if folder else []:
        if path.stem in voices:
            raise ServerStartError(
                f"Every voice must have a name of its own, but {path} is a second {path.stem!r}. Rename it."
            )
        voice = load_voice(path) if path.suffix.lower() == VOICE_SUFFIX else synthesizer.clone_voice([path])
        try:
            synthesizer.check_voice(voice)
        except VoiceError as error:
            raise ServerStartError(f"{path}: {error}") from error
        if (stranger := synthesizer.describe_stranger(voice)) is not None:
            _log.warning("%s: %s", path, stranger)
        voices[path.stem] = voice
    return voices


def check_voice_files(folder: Path) -> None:
    """Raises `ServerStartError`, `VoiceError` or `ClipError` for a folder whose voices no model could take."""
    for path in _list_voice_files(folder):
        if path.suffix.lower() == VOICE_SUFFIX:
            load_voice(path)
        else:
            read_references([path])


def _list_voice_files(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise ServerStartError(
            f"--voices {folder} must be a folder that can be read: {error.strerror}. Give a folder of voices, or leave it out."
        ) from error
    found = [path for path in paths if path.suffix.lower() in (VOICE_SUFFIX, *RECORDING_SUFFIXES)]
    if not found:
        raise ServerStartError(
            f"--voices {folder} must hold voice files ({VOICE_SUFFIX}, from `myxtts synthesize --save-voice`) or recordings "
            f"({', '.join(RECORDING_SUFFIXES)}), but holds none."
        )
    return found


def clone_upload(synthesizer: Synthesizer, recording: bytes) -> Generator[Voice | None, None, None]:
    """The voice in the bytes of a sound file, as work for the model's thread. Raises `ApiError`."""
    # In memory: a recording of somebody's voice must not stay on the disk, however this process ends.
    with os.fdopen(os.memfd_create("recording"), "wb") as file:
        file.write(recording)
        file.flush()
        path = Path(f"/proc/self/fd/{file.fileno()}")
        try:
            with advise_another():
                # A small file may hold hours of silence.
                inspect_clip(path, most_seconds=LONGEST_UPLOAD_SECONDS)
            yield synthesizer.clone_samples(read_references([os.fspath(path)]))
        except (ClipError, VoiceError) as error:
            raise ApiError(str(error).replace(str(path), "The recording")) from error

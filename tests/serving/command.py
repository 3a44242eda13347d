"""`myxtts serve` as a person starts it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from tests.inference.builders import write_small_model
from tests.serving.hosting import Client
from tests.support.processes import ROOT, clean_environ

WAIT_S = 300
"""A busy machine compiles slowly."""


def write_material(folder: Path) -> Path:
    """A model that was never trained, with a named voice, and a folder with a recording."""
    speaker = {
        "gpt_cond_latent": np.random.default_rng(1).normal(0, 1, (1, 32, 32)).astype(np.float32),
        "speaker_embedding": np.zeros((1, 0, 1), np.float32),
    }
    write_small_model(folder / "model", speakers={"Claribel": speaker})
    (folder / "voices").mkdir()
    write_recording(folder / "voices" / "narrator.wav")
    return folder


def write_recording(path: Path, seconds: float = 2.0) -> Path:
    soundfile.write(path, np.random.default_rng(2).normal(0, 0.1, round(seconds * 22050)), 22050)
    return path


class RunningServer:
    """A server process, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], told: list[str], log: Path):
        self.process, self.told, self.log = process, told, log
        self.address = told[-1].split()[2].removesuffix("/v1/audio/speech")
        self.client = Client(int(self.address.rpartition(":")[2]), WAIT_S)

    def stop(self, number: int) -> tuple[int, str]:
        """Its exit code and what it printed since it was ready."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out


@contextlib.contextmanager
def start_server(folder: Path, *flags: str) -> Iterator[RunningServer]:
    """The server when it is ready; its log goes to a new file in the folder."""
    command = [
        sys.executable, "-m", "myxtts.cli.main", "serve", "--checkpoint", str(folder / "model"), "--voices",
        str(folder / "voices"), "--port", "0", "--rehearsal", *flags,
    ]  # fmt: skip
    path = folder / f"server-{len(list(folder.glob('*.log')))}.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=clean_environ(PYTHONPATH=str(ROOT)), cwd=ROOT
        )
        try:
            told = []
            assert process.stdout is not None
            for line in process.stdout:
                told.append(line.strip())
                if line.startswith("Speech"):
                    break
            assert told, path.read_text()
            assert told[-1].startswith("Speech"), path.read_text()
            yield RunningServer(process, told, path)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

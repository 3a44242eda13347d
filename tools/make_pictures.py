"""Draw the README's pictures from real runs, after a view or a report has changed: `python tools/make_pictures.py`.

The live view is a frame of a training in a terminal of 80 columns, the profiler's report is its page in a headless Chromium. Both
runs are rehearsals on logical CPU devices and take some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 80, 50
PAGE_WIDTH, PAGE_HEIGHT = 920, 1130
REDRAWN = re.compile(r"\r?(?:\x1b\[2K)?(?:\x1b\[1A\x1b\[2K)+")
"""How a live view goes back to its first line."""
MOVEMENT = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\r")
"""All that a terminal is told but colours."""
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures", metavar="DIR")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        frames = list_frames(run_in_terminal(name_training(Path(folder) / "run")))
        # Nearly at the end, where all that a view can know is known.
        picture = draw_terminal(frames[len(frames) * 9 // 10], "myxtts train")
        (out / "live-view.svg").write_text(picture, encoding="utf-8")
        page = Path(folder) / "profile.html"
        run_in_terminal(name_profile(page))
        photograph_page(page, out / "profile.png")


def run_in_terminal(command: Sequence[str]) -> str:
    """All that a command writes to a terminal, in which it is alone."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    # Reading a terminal that nobody writes to any more is an input error.
    with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:
        while data := terminal.read(65536):
            written += data
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}:\n{written.decode()[-4000:]}")
    return written.decode("utf-8").replace("\r\n", "\n")


def list_frames(written: str) -> list[str]:
    """Each picture that a live view has drawn over the one before, with its colours."""
    frames = [MOVEMENT.sub("", frame).strip("\n") for frame in REDRAWN.split(written)[1:]]
    if not frames:
        raise SystemExit("The training drew no picture over another one: its view has changed, and so must `REDRAWN`.")
    return frames


def draw_terminal(frame: str, title: str) -> str:
    """An SVG picture of what a terminal shows, which loads nothing from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(frame), no_wrap=True, crop=True)
    return WEB_FONTS.sub("", console.export_svg(title=title))


def photograph_page(page: Path, picture: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("The report's picture is taken with a headless Chromium, and there is none. Install chromium.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"),
                *(f"--window-size={PAGE_WIDTH},{PAGE_HEIGHT}", f"--screenshot={picture}", page.as_uri()),
            ],
            check=True,
            capture_output=True,
        )


def name_training(folder: Path) -> list[str]:
    return [
        *(sys.executable, "train_main.py", "--rehearsal", "--mode", "isolated", "--model-size", "tiny"),
        *("--codec-steps", "40", "--max-steps", "60", "--log-interval", "2", "--validation-interval", "20"),
        *("--checkpoint-dir", str(folder)),
    ]


def name_profile(page: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "myxtts.cli.main", "profile", "--rehearsal", "--mode", "dual"),
        *("--model-size", "tiny", "--html", str(page)),
    ]


if __name__ == "__main__":
    main()

"""Draw the README's pictures from real runs, after a view or a report has changed: `python tools/make_pictures.py`.

The live view is a frame of a training in a terminal of 80 columns, the profiler's report is its page in a headless Chromium. The
studio shows a corpus, made by `myxtts corpus` of a recording that is joined from demo clips, and that same training. All runs are
rehearsals on logical CPU devices and take some minutes.
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
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.serving.browser import Tab  # noqa: E402
from tests.studio.hosting import host_studio  # noqa: E402
from tests.studio.material import join_clips  # noqa: E402
from tests.studio.visiting import go, press, visit  # noqa: E402

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
        workspace = Path(folder) / "studio"
        (workspace / "corpora").mkdir(parents=True)
        (workspace / "runs").mkdir()
        frames = list_frames(run_in_terminal(name_training(workspace / "runs" / "my-voice")))
        # Nearly at the end, where all that a view can know is known.
        picture = draw_terminal(frames[len(frames) * 9 // 10], "myxtts train")
        (out / "live-view.svg").write_text(picture, encoding="utf-8")
        page = Path(folder) / "profile.html"
        run_in_terminal(name_profile(page))
        photograph_page(page, out / "profile.png")
        record_reading(Path(folder) / "reading.wav")
        run_in_terminal(name_corpus(Path(folder) / "reading.wav", workspace / "corpora" / "my-corpus"))
        photograph_studio(workspace, out)


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


def record_reading(path: Path) -> None:
    """Forty seconds of demo clips, with so much noise over the third of them that it is doubtful."""
    join_clips(path, 40)
    samples, rate_hz = soundfile.read(path, dtype="float32")
    noisy = samples[round(7.5 * rate_hz) : round(11 * rate_hz)]
    noisy += np.random.default_rng(0).normal(0, 0.08, len(noisy)).astype(np.float32)
    soundfile.write(path, samples, rate_hz, subtype="PCM_16")


def photograph_studio(workspace: Path, out: Path) -> None:
    with host_studio(workspace) as (client, _), visit(client.origin) as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=1100, height=760, deviceScaleFactor=1, mobile=False)
        tab.call("Emulation.setScrollbarsHidden", hidden=True)
        go(tab, client.origin, "/corpora/my-corpus")
        press(tab, "j")
        tab.wait_for("[...document.querySelectorAll('.wave')].slice(0, 9).every(each => each.complete)")
        photograph_tab(tab, out / "studio-corpus.png")
        for language, name in (("en", "studio-run.png"), ("fa", "studio-run-fa.png")):
            go(tab, client.origin, f"/runs/my-voice?lang={language}")
            tab.wait_for("document.querySelector('[data-part=samples] audio')")
            photograph_tab(tab, out / name)


def photograph_tab(tab: Tab, picture: Path) -> None:
    picture.write_bytes(b64decode(tab.call("Page.captureScreenshot", format="png")["data"]))


def name_corpus(recording: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "myxtts.cli.main", "corpus", str(recording), "--out", str(folder)]


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

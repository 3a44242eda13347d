"""Reader processes and scans must not pay for TensorFlow."""

from __future__ import annotations

import subprocess
import sys

LIGHT = ("augment", "filterbanks", "reading", "resampling")


def test_reading_resampling_and_drawing_do_not_load_tensorflow() -> None:
    imports = "; ".join(f"import myxtts.audio.{module}" for module in LIGHT)
    program = f"import sys; {imports}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""`python utilities/configure_max_gpu_utilization.py`: the same as `myxtts configure`."""

import sys
from pathlib import Path

# A script sees its own folder, not the one it was started in.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("configure", sys.argv[1:], "utilities/configure_max_gpu_utilization.py"))

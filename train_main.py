"""`python train_main.py`: the same as `myxtts train`."""

import sys

from myxtts.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command("train", sys.argv[1:], "train_main.py"))

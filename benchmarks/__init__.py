"""Benches: `make bench` lists them, `make bench NAME=model FLAGS="..."` runs one. Each compares side by side, in one run."""

import os

from myxtts.devices.machine import VISIBLE_DEVICES, prepare_environment

# Here, before any bench or child of one imports TensorFlow. The figures are of the processor, and TensorFlow would take the
# memory of each card that it sees.
os.environ[VISIBLE_DEVICES] = ""
prepare_environment(os.environ)

"""Hours of a recording take no more memory than minutes."""

import pytest

from tests.support.processes import run_code

LISTEN = """
import resource
import numpy as np, soundfile
from pathlib import Path
from myxtts.recordings import cutting

class Ear:
    # As costly in memory as the real one, which is as large however long it hears; but fast.
    def reset(self): pass
    def process_samples(self, samples): return float(max(samples) > 0.1)

cutting._load_detector = Ear
path, random = Path({path!r}), np.random.default_rng(1)
with soundfile.SoundFile(path, "w", 8000, 1) as file:
    for _ in range({minutes}):
        minute = 0.2 * random.standard_normal((6, 80000))
        minute[:, 60000:] = 0
        file.write(minute.ravel())
spans = cutting.choose_spans(cutting.hear_speech(path))
assert {minutes} * 5 < sum(1 for _ in cutting.read_spans(path, spans)) <= {minutes} * 6 + 1
report(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(tmp_path, minutes):
    """The highest memory of a process that cuts a recording, in MB."""
    return run_code(LISTEN.format(path=str(tmp_path / f"{minutes}.wav"), minutes=minutes))


@pytest.mark.soak
def test_memory_does_not_grow_with_the_length(tmp_path):
    short, long = measure(tmp_path, 30), measure(tmp_path, 120)
    # Two arrays of a chunk's figures while they are joined; the samples would be 480 MB.
    assert long - short < 25, (short, long)

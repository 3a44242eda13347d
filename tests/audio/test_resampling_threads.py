"""A clip's bits must not depend on how many threads the process that reads it gives to BLAS."""

import os

import pytest

from tests.support.processes import run_code

CODE = """
import hashlib
import numpy as np
from myxtts.audio.resampling import resample_clip

rng = np.random.default_rng(0)
digest = hashlib.sha256()
for rate_hz in (8000, 16000, 24000, 44100, 48000, 96000):
    for seconds in (0.5, 2.345, 11.0):
        clip = rng.standard_normal(int(rate_hz * seconds)).astype(np.float32)
        digest.update(resample_clip(clip, rate_hz, 22050).tobytes())
report(digest.hexdigest())
"""


def digest_with(threads):
    return run_code(CODE, {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)})


@pytest.mark.parametrize("threads", [2, 4])
def test_bits_do_not_depend_on_the_number_of_threads(threads):
    assert digest_with(threads) == digest_with(1)

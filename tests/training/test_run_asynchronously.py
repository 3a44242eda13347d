"""Runs with asynchronous execution, which is how GPUs behave: the same losses, and nothing read before it is there."""

import pytest

from tests.support.processes import clean_environ, run_code

CODE = """
import json, tempfile
from pathlib import Path
from myxtts.config import XTTSConfig
from myxtts.devices import runtime
from myxtts.monitoring.metrics_log import list_losses, read_metrics
from myxtts.training.trainer import XTTSTrainer

runtime.set_synchronous_execution({synchronous})
model = {{"gpt_layers": 1, "gpt_width": 16, "gpt_heads": 2, "dvae_width": 16, "audio_codes": 32}}
with tempfile.TemporaryDirectory() as folder:
    training = {{"codec_steps": 4, "max_steps": 5, "checkpoint_dir": folder, "log_interval": 1, "mode": "{mode}",
                 "deterministic": True, "rehearsal": True, "validation_interval": 5}}
    config = XTTSConfig(model=model, data={{"batch_size": 32, "prompt_seconds": 0.5, "num_workers": 0}}, training=training)
    XTTSTrainer(config).train()
    report(list_losses(read_metrics(Path(folder) / "metrics.jsonl")))
"""


@pytest.fixture(scope="module")
def expected():
    return run_code(CODE.format(synchronous=True, mode="single"), clean_environ())


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["single", "dual", "isolated"])
def test_a_run_that_does_not_wait_gives_the_same_losses(expected, mode):
    found = run_code(CODE.format(synchronous=False, mode=mode), clean_environ())
    assert len(found) == 5
    assert found == expected

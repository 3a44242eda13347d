"""The isolated trainer started from Python: with a producer process of its own, or with both devices in one process."""

import json
import sys

import pytest

from myxtts.config import XTTSConfig
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
from tests.support.processes import clean_environ, run_code
from tests.support.tiny_run import LiveRun, TinyRun

# No main guard, on purpose: a notebook has none either.
SCRIPT = """
import json, sys
from pathlib import Path
from myxtts.devices.plan import Process
from myxtts.errors import DevicePlanError
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
from myxtts.training.trainer import XTTSTrainer
from myxtts.utils.commons import setup_logging
from tests.support.tiny_run import tiny_config

folder, corpus, codec = map(Path, sys.argv[1:])
with open(folder / "script_was_run", "a") as note:
    note.write("once\\n")
flags = ("--train-data", corpus, "--codec", codec, "--max-steps", 4, "--checkpoint-interval", 2, "--keep-last", 9)
config = tiny_config(folder / "run", *flags, mode=None)
trainer = MemoryIsolatedDualGPUTrainer(config, data_gpu_id=0, model_gpu_id=1)
before = trainer.get_memory_stats()["data"]
first = trainer.train()
told = {"producer": trainer.plan.data.process is Process.PRODUCER, "steps": first.stage.step,
        "memory": [before["used_mb"], trainer.get_memory_stats()]}
losses = (folder / "run" / "metrics.jsonl").read_bytes()
(folder / "first.jsonl").write_bytes(losses)
again = XTTSTrainer(trainer.config, resume_checkpoint=folder / "run" / "step-00000002")
told["again"] = again.train().stage.step
setup_logging()
again._log_pipeline_performance()
try:
    trainer.optimize_dataset_for_dual_gpu(None)
except DevicePlanError as error:
    told["refused"] = str(error)
print("@@" + json.dumps(told))
"""


@pytest.mark.soak
def test_a_script_without_a_main_guard_trains_with_a_producer_of_its_own_and_again_from_a_checkpoint(
    codec_run, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, script, tmp_path, codec_run / "corpus", codec_run / "codec"]
    run = LiveRun(tmp_path / "run", command).finish(0)
    told = json.loads(run.text.rpartition("@@")[2].splitlines()[0])
    assert told["producer"]
    before, stats = told["memory"]
    assert before is None, "there was no producer yet"
    assert 0 < stats["data"]["used_mb"] <= stats["data"]["peak_mb"] <= stats["data"]["limit_mb"], "the producer's"
    assert stats["data"]["used_mb"] != stats["model"]["used_mb"]
    assert (told["steps"], told["again"]) == (4, 4)
    assert (tmp_path / "script_was_run").read_text() == "once\n", "the producer does not import the script"
    assert "producer started" in {event.name for event in run.events}
    assert "Throughput" in run.text, "the pace of its steps"
    (tmp_path / "first").mkdir()
    (tmp_path / "first.jsonl").rename(tmp_path / "first" / "metrics.jsonl")
    assert [step for step, _ in run.losses] == [1, 2, 3, 4]
    assert run.losses == TinyRun.at(tmp_path / "first").losses, "from a checkpoint that was named, to the last bit"
    assert (tmp_path / "run" / "newer-step-00000004").is_dir()
    assert "belongs to the producer process" in told["refused"]


def test_the_data_role_has_the_memory_of_the_producer_and_not_that_of_the_trainer(monkeypatch):
    # A command that another test has run in this process may have put its plan into force.
    monkeypatch.setattr("myxtts.devices.runtime.active_plan", lambda: None)
    trainer = MemoryIsolatedDualGPUTrainer(XTTSConfig(training={"rehearsal": True}), data_gpu_id=0, model_gpu_id=1)
    stats = trainer.get_memory_stats()
    assert (stats["data"]["used_mb"], stats["data"]["peak_mb"]) == (None, None), "there is no producer yet"
    assert stats["model"]["used_mb"] > 0, "before the plan is in force, too"


DATASET = """
from myxtts.utils.gpu_memory import setup_gpu_memory_isolation
setup_gpu_memory_isolation(data_gpu_id=0, model_gpu_id=1)
import tensorflow as tf
from myxtts.config import XTTSConfig
from myxtts.data.dataset_optimizer import print_optimization_summary
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer

trainer = MemoryIsolatedDualGPUTrainer(XTTSConfig(), data_gpu_id=0, model_gpu_id=1)
plain = tf.data.Dataset.range(12).map(lambda number: tf.cast(number, tf.float32)).batch(4)
dataset = trainer.optimize_dataset_for_dual_gpu(plain, prefetch_buffer_size=3)
report({
    "device": trainer.data_device,
    "devices": sorted({batch.device[-6:] for batch in dataset}),
    "values": [batch.numpy().tolist() for batch in dataset] == [batch.numpy().tolist() for batch in plain],
    "plain": print_optimization_summary(plain),
    "summary": print_optimization_summary(dataset),
})
"""


def test_a_dataset_gets_its_options_before_it_is_prefetched_to_the_data_device():
    told = run_code(DATASET, clean_environ(MYXTTS_REHEARSAL="1"))
    assert told["devices"] == [f":{told['device'].removeprefix('/')}"], "prefetched last: nothing moved it back"
    assert told["values"]
    assert "parallel_batch: unset" in told["plain"]
    for option in ("parallel_batch", "map_fusion", "map_parallelization", "autotune", "deterministic"):
        assert f"{option}: True" in told["summary"], option

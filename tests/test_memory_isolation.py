"""Memory isolation: the plan of two processes, its limits, and what is refused. Runs without GPUs.

python tests/test_memory_isolation.py
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python tests/...` straight from a checkout

from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Limit, Mode, PlanRequest, Process
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError
from tests.support.processes import clean_environ, run_code


def make_machine(*free_mib: int) -> Machine:
    cards = tuple(
        Card(PhysicalId(id), "NVIDIA GeForce RTX 3090", f"GPU-{id}", "", 24576, free)
        for id, free in enumerate(free_mib)
    )
    return Machine(CardScan(cards, (), None), host_free_mib=16000)


class IsolationPlan(unittest.TestCase):
    def test_each_process_sees_one_card_with_its_own_limit(self) -> None:
        plan = plan_devices(PlanRequest(data_gpu=0, model_gpu=1, isolation=True), make_machine(24000, 24000))
        self.assertIs(plan.mode, Mode.ISOLATED)
        self.assertEqual([card.memory for card in plan.process(Process.PRODUCER).cards], [Limit(8192)])
        self.assertEqual([card.memory for card in plan.process(Process.TRAINER).cards], [Limit(16384)])

    def test_a_limit_that_does_not_fit_is_refused_before_anything_starts(self) -> None:
        request = PlanRequest(data_gpu=0, model_gpu=1, isolation=True, model_limit_mib=20000)
        with self.assertRaisesRegex(DevicePlanError, r"data\.model_gpu_memory 20000 does not fit"):
            plan_devices(request, make_machine(24000, 18000))


class IsolationInThisProcess(unittest.TestCase):
    def test_both_roles_get_their_devices_and_the_plan_is_in_force(self) -> None:
        code = """
from myxtts.devices import runtime
from myxtts.utils.gpu_memory import setup_gpu_memory_isolation
plan = setup_gpu_memory_isolation(data_gpu_id=0, model_gpu_id=1)
report([plan.data.device, plan.model.device, runtime.active_plan() == plan, runtime.list_logical_devices()])
"""
        found = run_code(code, clean_environ(MYXTTS_REHEARSAL="1"))
        self.assertEqual(found, ["/CPU:1", "/CPU:2", True, ["/CPU:0", "/CPU:1", "/CPU:2"]])


class IsolatedTraining(unittest.TestCase):
    def test_the_trainer_trains_on_the_plan_in_force_and_tells_its_true_values(self) -> None:
        code = """
import tempfile
from pathlib import Path
from myxtts.config import XTTSConfig
from myxtts.utils.gpu_memory import setup_gpu_memory_isolation
setup_gpu_memory_isolation(data_gpu_id=0, model_gpu_id=1)
from myxtts.monitoring.metrics import read_metrics
from myxtts.errors import NotTrainingError
from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer

model = {"gpt_layers": 1, "gpt_width": 16, "gpt_heads": 2, "dvae_width": 16, "audio_codes": 32}
with tempfile.TemporaryDirectory() as folder:
    config = XTTSConfig(model=model, data={"batch_size": 16, "prompt_seconds": 0.5, "num_workers": 0},
                        training={"codec_steps": 2, "max_steps": 14, "checkpoint_dir": folder, "log_interval": 5})
    trainer = MemoryIsolatedDualGPUTrainer(config, data_gpu_id=0, model_gpu_id=1)
    before = [trainer.buffer_queue, trainer.step_times]
    refused = []
    for ask in (trainer._preprocess_on_data_gpu, trainer._train_step_impl):
        try:
            ask(0)
        except NotTrainingError as error:
            refused.append(str(error))
    result = trainer.train()
    batch = trainer._async_transfer_to_model_gpu(trainer._preprocess_on_data_gpu(0))
    report({
        "devices": [trainer.data_device, trainer.model_device],
        "before": before,
        "slots": [trainer.max_buffer_size, trainer.pipeline_depth, trainer.buffer_queue.slots],
        "steps": [result.stage.step, len(trainer.step_times)],
        "memory": {role: [stats["id"], stats["device"]] for role, stats in trainer.get_memory_stats().items()},
        "batch": [batch.tensors["mel_BFM"].device[-5:], batch.info.facts.updates],
        "trains": trainer._train_step_impl(batch).shape.rank,
        "interval": read_metrics(Path(folder) / "metrics.jsonl").rows[0].settings["training"]["validation_interval"],
        "refused": refused,
        "folder": [result.stage.report.is_file(), any(result.stage.board.iterdir()), (Path(folder) / "producer").exists()],
    })
"""
        found = run_code(code, clean_environ(MYXTTS_REHEARSAL="1"))
        self.assertEqual(found["devices"], ["/CPU:1", "/CPU:2"])
        self.assertEqual(found["before"], [None, []])
        self.assertEqual(found["slots"], [3, 2, 3])
        # Ten steps of warm-up do not count; one that traced may be among the others.
        self.assertEqual(found["steps"][0], 14)
        self.assertTrue(1 <= found["steps"][1] <= 4)
        self.assertEqual(found["memory"], {"data": [0, "/CPU:1"], "model": [1, "/CPU:2"]})
        self.assertEqual(found["batch"], ["CPU:2", 0])
        self.assertEqual(found["trains"], 1)
        self.assertGreaterEqual(found["interval"], 100, "advice would be made from it: it is not cut to a short run")
        self.assertEqual(["train()" in text and "Call that first." in text for text in found["refused"]], [True, True])
        # No producer process, so no folder for one.
        self.assertEqual(found["folder"], [True, True, False])


if __name__ == "__main__":
    unittest.main()

"""The mode follows from what was asked and what is there; what cannot be had is refused. Runs without GPUs.

python tests/test_intelligent_gpu_pipeline.py
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python tests/...` straight from a checkout

from myxtts.config.config import DataConfig
from tests.support.processes import run_train


class PipelineSettings(unittest.TestCase):
    def test_promised_defaults(self) -> None:
        data = DataConfig()
        self.assertEqual(data.pipeline_buffer_size, 50)
        self.assertEqual(data.model_start_delay, 2.0)
        self.assertIsNone(data.data_gpu)
        self.assertIsNone(data.model_gpu)

    def test_flags_reach_the_settings(self) -> None:
        text = run_train("--buffer-size", "100", "--model-start-delay", "3.5", "--print-config").stdout
        self.assertRegex(text, r"pipeline_buffer_size: 100 +# --buffer-size")
        self.assertRegex(text, r"model_start_delay: 3.5 +# --model-start-delay")


class ModeSelection(unittest.TestCase):
    def check(self, flags: list[str], words: str) -> None:
        result = run_train("--rehearsal", "--print-plan", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(words, result.stdout)

    def test_no_gpu_flags_is_the_single_buffered_mode(self) -> None:
        self.check([], "Mode    single-GPU buffered")

    def test_two_ids_are_the_dual_mode(self) -> None:
        self.check(["--data-gpu", "0", "--model-gpu", "1"], "Mode    dual")

    def test_isolation_is_the_isolated_mode(self) -> None:
        self.check(["--data-gpu", "0", "--model-gpu", "1", "--enable-memory-isolation"], "Mode    isolated dual")

    def test_one_id_alone_is_an_error(self) -> None:
        result = run_train("--data-gpu", "0")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--data-gpu and --model-gpu belong together", result.stderr)


if __name__ == "__main__":
    unittest.main()

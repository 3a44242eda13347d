"""One trial of the configurator: what there is no memory for is said, with what would fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import CardScan
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.monitoring.errors import MemoryBillError
from myxtts.monitoring.memory_bill import BatchChoice
from myxtts.training.errors import GradientMemoryError
from myxtts.training.tuning import trial as tuning_trial

PLAN = plan_devices(PlanRequest(), Machine(CardScan((), (), None), 16000))


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a trial whose bill or whose steps fail as given."""

    def run(*, bill: Exception | None = None, steps: Exception | None = None) -> Any:
        def fail(error: Exception | None, **given: Any) -> dict[str, Any]:
            if error is not None:
                raise error
            return {"step_s": 0.1, "read_share": 0.0, "in_force": {"mode": "single"}}

        for name in ("apply_devices", "start_devices", "describe_shape", "set_up_profile"):
            monkeypatch.setattr(tuning_trial, name, lambda *_: SimpleNamespace(config=None))
        monkeypatch.setattr(tuning_trial, "list_fitting_batches", lambda *_: [BatchChoice(4, 2)])
        monkeypatch.setattr(tuning_trial, "read_devices", lambda *_: {"devices": "one"})
        monkeypatch.setattr(tuning_trial, "check_run", lambda *_: fail(bill))
        monkeypatch.setattr(tuning_trial, "_time_steps", lambda setup, **given: fail(steps, **given))
        return tuning_trial.run_trial(XTTSConfig(), PLAN, 1 << 30, is_whole=False)

    return run


@pytest.mark.parametrize(
    "failure",
    [
        {"bill": MemoryBillError("It needs 30 GB.")},
        {"steps": GradientMemoryError("It needs 30 GB.")},
        {"steps": tf.errors.ResourceExhaustedError(None, None, "It needs 30 GB.")},
    ],
    ids=["by the bill", "while training", "while building"],
)
def test_settings_without_the_memory_are_refused_with_a_batch_that_fits(trial: Any, failure: dict[str, Any]) -> None:
    answer = trial(**failure)
    assert "It needs 30 GB." in answer["refusal"]
    assert answer["fitting"] == [[4, 2]]
    assert "step_s" not in answer


def test_settings_that_fit_are_measured(trial: Any) -> None:
    assert trial() == {
        "fitting": [[4, 2]],
        "step_s": 0.1,
        "read_share": 0.0,
        "in_force": {"devices": "one", "mode": "single"},
    }

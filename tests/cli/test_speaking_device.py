"""What is said of the device that speaks."""

import pytest

from myxtts.cli import synthesize
from myxtts.cli.devices import describe_single_device
from myxtts.devices.plan import DeviceUse, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import CommandLineError
from tests.devices.test_plan import make_machine


def describe(cards, **asked):
    return describe_single_device(
        plan_devices(PlanRequest(mode="single", task=DeviceUse.SPEAK, **asked), make_machine(cards))
    )


def test_the_device_is_named_with_the_reason_and_the_way_to_another():
    assert describe(0) == "Device: /CPU:0. Speaking on the CPU: this machine has no NVIDIA GPU."
    assert describe(2, rehearsal=True) == "Device: /CPU:1. Rehearsal: no GPU is used."
    said = describe(2)
    assert said.startswith("Device: /GPU:0, physical GPU 0, ")
    assert "Speaking on GPU 0 alone; other cards stay unused (GPU 1 " in said
    assert said.endswith("For another one set CUDA_VISIBLE_DEVICES=1.")
    assert "--data-gpu" not in said


def test_samples_are_not_written_to_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = ["--checkpoint", "nowhere", "--text", "Hello.", "--voice", "nowhere.safetensors", "--stream"]
    with pytest.raises(CommandLineError, match="standard output is a terminal") as refused:
        synthesize.run(words, "myxtts synthesize")
    for way_out in ("-r 22050", "-r 24000", "--out FILE"):
        assert way_out in str(refused.value)

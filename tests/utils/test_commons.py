"""Placement and logging for the caller."""

import logging

from myxtts.utils.commons import setup_logging
from tests.support.fake_gpus import PLANNING
from tests.support.processes import run_code


def test_setting_logging_up_twice_prints_once(capsys):
    setup_logging()
    setup_logging(logging.WARNING)
    setup_logging(logging.INFO)
    logging.getLogger("myxtts.anything").info("a decision")
    setup_logging(logging.WARNING)
    logging.getLogger("myxtts").warning("once")
    logging.getLogger("myxtts").info("never")
    assert capsys.readouterr().err == "a decision\nWarning: once\n"


PLACEMENT = """
from myxtts.utils.commons import ensure_gpu_placement, find_default_device, get_device_context
runtime.apply_plan(plan_rehearsal(mode="dual"))
import tensorflow as tf
with get_device_context("/CPU:2"):
    there = tf.constant([1.0])
with get_device_context():
    here = tf.constant([1.0])
moved = ensure_gpu_placement(there)
report([there.device[-6:], here.device[-6:], moved.device[-6:], ensure_gpu_placement(here) is here, find_default_device()])
"""


def test_work_goes_to_the_given_device_else_to_the_first_gpu_else_to_the_cpu():
    assert run_code(PLANNING + PLACEMENT) == [":CPU:2", ":CPU:0", ":CPU:0", True, "/CPU:0"]


def test_the_default_device_is_the_first_gpu_where_there_is_one():
    code = """
from myxtts.devices import runtime
from myxtts.utils.commons import find_default_device
runtime.list_logical_devices = lambda: ["/CPU:0", "/GPU:0", "/GPU:1"]
report(find_default_device())
"""
    assert run_code(code) == "/GPU:0"

"""Trains from Python with one device that prepares and another that trains, each with a memory limit of its own.

    python examples/memory_isolated_training.py
    python examples/memory_isolated_training.py --train-data my_voice --data-gpu 0 --model-gpu 1 --epochs 100

Without two cards the same roles are rehearsed on the CPU. The lengths below are for a first look: a few minutes on two
cores, on the demo corpus. There is no `if __name__ == "__main__"` here, and none is needed: the process that prepares
does not import this file.
"""

import argparse
import logging
import os
import sys

from myxtts.config import XTTSConfig
from myxtts.devices.machine import prepare_environment, read_machine
from myxtts.errors import MyXTTSError

parser = argparse.ArgumentParser(description="Train a small model with memory isolation.")
parser.add_argument("--train-data", help="corpus folder; the demo corpus unless given")
parser.add_argument("--data-gpu", type=int, default=0, help="card that prepares, as nvidia-smi shows it")
parser.add_argument("--model-gpu", type=int, default=1, help="card that trains")
parser.add_argument("--codec-steps", type=int, default=40, help="updates of the codec, which is trained first")
parser.add_argument("--max-steps", type=int, default=20, help="updates of the model itself")
parser.add_argument("--epochs", type=int, default=1000, help="times through the corpus, if that is less")
parser.add_argument("--checkpoint-dir", default="runs/memory_isolated", help="the run's folder")
arguments = parser.parse_args()


def train() -> None:
    # Before TensorFlow is imported: it counts cards as nvidia-smi does from here on.
    prepare_environment(os.environ)
    cards = len(read_machine().cards)
    config = XTTSConfig(
        model={"size": "tiny"},
        data={"train_data": arguments.train_data},
        training={
            "codec_steps": arguments.codec_steps,
            "max_steps": arguments.max_steps,
            "epochs": arguments.epochs,
            "checkpoint_dir": arguments.checkpoint_dir,
            "rehearsal": cards < 2,
        },
    )

    # TensorFlow comes with these, and takes some seconds: what is wrong with the settings has been said by now.
    from myxtts.errors import RunFinishedError
    from myxtts.training.memory_isolated_trainer import MemoryIsolatedDualGPUTrainer
    from myxtts.utils.commons import setup_logging

    setup_logging()
    log = logging.getLogger("myxtts.example")
    if cards < 2:
        log.info("Two cards are needed, %d found: rehearsing on the CPU.", cards)
    trainer = MemoryIsolatedDualGPUTrainer(config, data_gpu_id=arguments.data_gpu, model_gpu_id=arguments.model_gpu)
    log.info("A process of its own prepares on %s, this one trains on %s.", trainer.data_device, trainer.model_device)
    try:
        result = trainer.train()
    except RunFinishedError as finished:
        log.info("%s", finished)
    else:
        stage = result.stage
        log.info("%d updates in %s: %s. Look at %s.", stage.step, stage.folder, stage.ending.reason, stage.report)


try:
    train()
except MyXTTSError as error:
    # All errors that are raised on purpose: their message says what is wrong and what to do.
    print(f"{parser.prog}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)

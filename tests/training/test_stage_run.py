"""Parts of a stage that only matter where several workers train it."""

import os
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from myxtts.config import XTTSConfig
from myxtts.training.model import RunProgress
from myxtts.training.run_folder import FollowerFolder
from myxtts.training.run_log import choose_board
from myxtts.training.stopping import StopNow, StopRequests
from myxtts.training.trainer import XTTSTrainer


def test_workers_never_write_curves_into_one_folder(tmp_path):
    chief = SimpleNamespace(path=tmp_path / "run")
    with FollowerFolder(tmp_path / "run" / "worker-1", stage="gpt", command=(), is_resumed=False) as follower:
        given = XTTSConfig(training={"tensorboard_log_dir": str(tmp_path / "board")})
        assert choose_board(chief, given) == tmp_path / "board"
        assert choose_board(follower, given) == follower.path / "tensorboard"
        assert choose_board(chief, XTTSConfig()) == chief.path / "tensorboard"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_before_the_first_batch_is_told_to_others_who_wait_for_it(workers):
    """What leaves the stage is what a link tells them; alone, it is an ending like any other."""
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        trainer = SimpleNamespace(_workers=SimpleNamespace(size=workers, stop=stop), _updates=Mock())
        saver, schedule = SimpleNamespace(progress=RunProgress()), SimpleNamespace(end_step=5)
        if workers == 1:
            ending = XTTSTrainer._run_loop(trainer, saver, schedule, None, None)
            assert ending.signal is signal.SIGTERM
        else:
            with pytest.raises(StopNow, match="asked to stop"):
                XTTSTrainer._run_loop(trainer, saver, schedule, None, None)

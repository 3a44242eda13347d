import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from myxtts.monitoring.metrics import ValidationRow
from myxtts.monitoring.tensorboard import open_tensorboard, paint_mel
from tests.monitoring.runs import make_train_row


def read_events(folder):
    import tensorflow as tf

    found = {}
    for path in sorted(folder.glob("events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[value.tag, event.step] = tf.make_ndarray(value.tensor)
    return found


def test_curves_pictures_and_audio_are_written(tmp_path):
    import tensorflow as tf

    mel_FM = np.random.default_rng(0).normal(size=(5, 8))
    writer = open_tensorboard(tmp_path)
    writer.write_train_row(make_train_row(10, losses=(2.0, 4.0), scalars={"grad_norm": 1.5}))
    writer.write_validation_row(ValidationRow(time_s=0.0, step=10, loss=3.5))
    writer.write_mel("mel/sentence", mel_FM, 10)
    writer.write_audio("audio/sentence", np.zeros(100, np.float32), 24000, 10)
    writer.close()
    found = read_events(tmp_path)
    for name, value in {
        "train/loss": 3.0, "train/grad_norm": 1.5, "validation/loss": 3.5, "speed/goodput": 0.9,
        "readiness/on the model device": 0.98, "memory_mb/GPU:1": 9 * 1024,
    }.items():  # fmt: skip
        assert found[name, 10] == pytest.approx(value)
    assert ("memory_mb/GPU:0", 10) not in found, "what is unknown leaves a gap, not a zero"
    assert (tf.io.decode_png(found["mel/sentence", 10][2]).numpy() == paint_mel(mel_FM)).all()
    samples, rate = tf.audio.decode_wav(found["audio/sentence", 10][0][0])
    assert (samples.shape, int(rate)) == ((100, 1), 24000)


def test_without_the_package_one_line_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert open_tensorboard(tmp_path) is None
    (record,) = caplog.records
    assert "pip install tensorboard" in record.getMessage()
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_in_this_room_imports_tensorflow():
    names = ["live_view", "summary", "metrics", "memory", "tensorboard"]
    imports = "; ".join(["import myxtts.reports.compare", *(f"import myxtts.monitoring.{name}" for name in names)])
    code = f"import sys; {imports}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Curves, pictures and audio for TensorBoard."""

import importlib.util

import numpy as np
import pytest

from myxtts.monitoring.metrics import ValidationRow
from myxtts.monitoring.tensorboard import UNKNOWN_GREY, open_tensorboard, paint_mel
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


def test_low_bands_are_at_the_bottom_time_runs_to_the_right_and_brightness_rises_with_the_value():
    mel_FM = np.zeros((3, 2), np.float32)
    mel_FM[2, 0] = 1.0
    picture = paint_mel(mel_FM, scale=2)
    assert (picture.shape, picture.dtype) == ((4, 6, 3), np.uint8)
    bright = picture.astype(int).sum(axis=-1)
    assert np.unravel_index(bright.argmax(), bright.shape) == (2, 4)
    ramp = paint_mel(np.linspace(0, 1, 100)[:, np.newaxis], scale=1)[0] @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(ramp) > 0).all()


def test_given_limits_make_pictures_comparable():
    quiet, loud = np.array([[0.0, 1.0]]), np.array([[0.0, 10.0]])
    assert (paint_mel(quiet)[0] == paint_mel(loud)[0]).all()
    assert (paint_mel(quiet, lowest=0, highest=10)[0] != paint_mel(loud, lowest=0, highest=10)[0]).any()


def test_values_that_are_not_finite_are_grey_and_hurt_nothing_else():
    picture = paint_mel(np.array([[0.0, np.nan, np.inf, 1.0]]), scale=1)[:, 0]
    assert (picture[1:3] == UNKNOWN_GREY).all()
    assert (picture[[3, 0]] == paint_mel(np.array([[0.0, 1.0]]), scale=1)[[1, 0], 0]).all()
    assert (paint_mel(np.full((2, 2), np.nan)) == UNKNOWN_GREY).all()
    assert paint_mel(np.zeros((2, 2))).max() < UNKNOWN_GREY

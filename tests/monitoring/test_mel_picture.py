import numpy as np

from myxtts.monitoring.tensorboard import UNKNOWN_GREY, paint_mel


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

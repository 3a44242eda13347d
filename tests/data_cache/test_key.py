"""Any difference in what a feature depends on is another generation."""

import numpy as np
import pytest

from myxtts.data.cache import digest_arrays, key
from tests.data_cache.builders import make_key


@pytest.mark.parametrize(
    "changes",
    [
        {"feature": "speaker_embedding"},
        {"parameters": {"sample_rate_hz": 24000, "padding": "zeros"}},
        {"parameters": {"sample_rate_hz": 22050}},
        {"encoder_digest": "b" * 64},
        {"precision": "mixed_float16"},
        {"device_kind": "gpu"},
    ],
)
def test_each_part_of_the_key_makes_another_folder(changes):
    assert make_key(**changes).folder_name != make_key().folder_name


def test_another_format_is_another_folder(monkeypatch):
    before = make_key().folder_name
    monkeypatch.setattr(key, "FORMAT_VERSION", 2)
    assert make_key().folder_name != before


def test_the_order_of_parameters_does_not_matter():
    assert make_key(parameters={"padding": "zeros", "sample_rate_hz": 22050}).folder_name == make_key().folder_name


def test_the_folder_of_a_key_never_changes_between_versions():
    assert make_key().folder_name == "dvae_codes-5b5a0069b7390d00"


@pytest.mark.parametrize("value", [float("nan"), np.float32(1.0)])
def test_a_parameter_without_one_spelling_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        _ = make_key(parameters={"gain": value}).folder_name


def test_a_feature_that_is_no_file_name_is_refused():
    with pytest.raises(AssertionError):
        make_key(feature="../codes")


WEIGHTS = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.float16)}


@pytest.mark.parametrize(
    "changed",
    [
        {"a": WEIGHTS["a"] + np.float32(1e-6), "b": WEIGHTS["b"]},
        {"a": WEIGHTS["a"].reshape(2, 3), "b": WEIGHTS["b"]},
        {"a": WEIGHTS["a"].view(np.int32), "b": WEIGHTS["b"]},
        {"c": WEIGHTS["a"], "b": WEIGHTS["b"]},
        {"a": WEIGHTS["a"]},
    ],
)
def test_any_other_weight_shape_type_or_name_is_another_digest(changed):
    assert digest_arrays(changed) != digest_arrays(WEIGHTS)


def test_the_order_and_layout_of_weights_do_not_matter():
    same = {"b": np.asfortranarray(WEIGHTS["b"]), "a": WEIGHTS["a"].copy()}
    assert digest_arrays(same) == digest_arrays(WEIGHTS)

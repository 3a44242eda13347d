"""What is clear about the cache of codes before anything is measured."""

import pytest

from myxtts.config import XTTSConfig
from myxtts.data.cache import Decision
from myxtts.pipeline.code_cache import decide_fixed
from myxtts.pipeline.preparation_settings import Target, choose_preparation

NOT_ALIKE = Decision("off", "Augmentation changes the clips every time.")


@pytest.mark.parametrize(
    ("asked", "data", "decision"),
    [
        ("auto", {}, None),
        ("disk", {}, Decision("disk", "--cache is disk.")),
        ("off", {}, Decision("off", "--cache is off.")),
        ("auto", {"augment_gain_db": 3.0}, NOT_ALIKE),
        ("disk", {"augment_gain_db": 3.0}, NOT_ALIKE),
    ],
)
def test_only_auto_without_augmentation_has_to_measure(asked, data, decision):
    preparation = choose_preparation(XTTSConfig(data=data), Target.GPT, [1.0] * 80)
    assert decide_fixed(asked, preparation) == decision

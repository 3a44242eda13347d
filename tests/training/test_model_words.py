"""What a run says about its model."""

import pytest

from myxtts.config import XTTSConfig
from myxtts.training.model import describe_model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"size": "tiny"}, "tiny ("),
        ({}, "base ("),
        ({"size": "tiny", "text_tokens": 300}, "tiny ("),
        ({"gpt_layers": 3, "gpt_width": 64, "gpt_heads": 2}, "a size of its own, 3 layers of width 64 ("),
        ({"gpt_layers": 4, "gpt_width": 256, "gpt_heads": 4, "dvae_width": 128}, "tiny ("),
    ],
)
def test_a_model_is_called_by_the_size_it_has(model, name):
    assert describe_model(XTTSConfig(model=model), None, "gpt").startswith(f"Model: {name}")

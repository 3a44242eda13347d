"""Built models shared by the tests of this room: building is cheap, reading the reference's weights is not."""

from __future__ import annotations

import pytest

from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.weights import load_checkpoint_arrays
from tests.models.reference import DVAE_SIZE, GPT_SIZE, load_state


@pytest.fixture(scope="session")
def gpt() -> GPT:
    """The reference's small GPT. Nobody may change its weights."""
    gpt = GPT(GPT_SIZE)
    load_checkpoint_arrays(gpt, load_state("gpt_state")).require_complete()
    return gpt


@pytest.fixture
def dvae() -> DVAE:
    """The reference's small DVAE, a fresh one for each test."""
    dvae = DVAE(DVAE_SIZE)
    load_checkpoint_arrays(dvae, load_state("d_dvae")).require_complete()
    return dvae

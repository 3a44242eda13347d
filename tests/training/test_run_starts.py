"""Runs that start from a model: only its GPT is trained."""

import numpy as np
import pytest

from myxtts.checkpoints.coqui_export import export_coqui
from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.tensors import read_array
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import OPTIONAL, list_xtts_weights
from myxtts.text.vocabulary import extend_vocabulary
from tests.checkpoints.hostile_models import draw_tensors
from tests.support.tiny_run import MODEL_SETTINGS, SMALLEST, TinyRun, run_tiny

# Whole runs; tests/training/test_starting_point.py has what is read and refused.
pytestmark = pytest.mark.soak

OF_THE_START = dict.fromkeys(name for name in MODEL_SETTINGS if name != "model.dropout")
"""Settings that a starting point brings with it."""


@pytest.fixture(scope="module")
def runs(share, unbroken, codec_run):
    """Runs from a run's folder, from Coqui's files, and with more text tokens than the model had."""

    def make(folder):
        folder.mkdir()
        publish(unbroken.folder / "step-00000008", folder)
        extend_vocabulary(unbroken.folder / "vocab.json", folder / "larger.json", "fa", ["سلام دنیا"] * 4)
        common = ("--train-data", codec_run / "corpus", "--max-steps", "2", "--grad-accum", "1")
        starts = {
            "from_run": ("--init-from", unbroken.folder),
            "from_coqui": ("--init-from", folder / "coqui" / "model.pth"),
            "larger": ("--init-from", unbroken.folder, "--vocabulary", folder / "larger.json"),
        }
        for name, flags in starts.items():
            run_tiny(folder / name, *common, *flags, **OF_THE_START)

    return share("starts", make)


def publish(path, folder):
    """A model directory with a random decoder and speaker encoder in `whole`, and as the files Coqui has in `coqui`."""
    model = read_model_directory(path)
    config = model.config.replace(model={"decoder_width": 32})
    sizes = read_sizes(config.model)
    weights = list_xtts_weights(sizes.gpt, sizes.decoder, sizes.speaker)
    frozen = draw_tensors([weight for weight in weights if not weight.key.startswith("gpt.")], 1)
    parts = {"model": {**frozen, **model.model}, "dvae": model.dvae, "vocabulary": model.vocabulary}
    write_model_directory(folder / "whole", config=config, **parts)
    export_coqui(read_model_directory(folder / "whole"), folder / "coqui")


def read_model(path):
    """The arrays of a model directory, of the GPT and of everything else that is no mere constant."""
    model = read_model_directory(path)
    arrays = {name: read_array(tensor) for name, tensor in model.model.items()}
    arrays |= {f"dvae.{name}": read_array(tensor) for name, tensor in model.dvae.items()}
    gpt = {name: array for name, array in arrays.items() if name.startswith("gpt.")}
    return gpt, {name: array for name, array in arrays.items() if name not in gpt and not OPTIONAL.search(name)}


def assert_only_gpt_trained(before, after):
    (old_gpt, old_rest), (new_gpt, new_rest) = read_model(before), read_model(after)
    assert old_rest.keys() == new_rest.keys()
    for name, array in old_rest.items():
        np.testing.assert_array_equal(new_rest[name], array, err_msg=name, strict=True)
    assert old_gpt.keys() == new_gpt.keys()
    return {name for name in old_gpt if not np.array_equal(old_gpt[name], new_gpt[name])}


def test_a_run_is_fine_tuned_from_its_best_checkpoint(runs, unbroken):
    trained = assert_only_gpt_trained(unbroken.folder / "step-00000008", runs / "from_run" / "step-00000002")
    assert "gpt.text_head.weight" in trained
    assert len(TinyRun.at(runs / "from_run").losses) == 2


def test_published_files_are_fine_tuned_and_the_rest_stays_as_it_was(runs):
    start = runs / "whole"
    trained = assert_only_gpt_trained(start, runs / "from_coqui" / "step-00000002")
    rest = read_model(start)[1]
    assert any(name.startswith("hifigan_decoder.") for name in rest)
    assert any(name.startswith("dvae.") for name in rest)
    assert "gpt.text_head.weight" in trained


def test_new_text_tokens_are_added_behind_the_old_ones(runs, unbroken):
    old, new = read_model(unbroken.folder / "step-00000008")[0], read_model(runs / "larger" / "step-00000002")[0]
    before, after = old["gpt.text_embedding.weight"], new["gpt.text_embedding.weight"]
    assert len(after) >= len(before) + len(set("سلامدنیا")) + 1, "letters and the language's tag"
    # Each of the two updates moves a number by no more than about the learning rate.
    np.testing.assert_allclose(after[: len(before)], before, atol=2.1 * SMALLEST["training.learning_rate"])
    assert len(new["gpt.text_head.bias"]) == len(after)

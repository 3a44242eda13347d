"""`--stage decoder` on real runs: resumed bit for bit, the GPT untouched, and a model that speaks by what was trained."""

import shutil

import numpy as np
import pytest
import soundfile

from myxtts.checkpoints.coqui_export import complete_model
from myxtts.checkpoints.model_directory import read_model_directory
from myxtts.checkpoints.store import find_model_directory, find_own_model, read_training_checkpoint
from myxtts.checkpoints.tensors import read_array
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.inference.vocoders import DecoderVocoder
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import DECODER_PREFIX, list_decoder_weights
from myxtts.monitoring.metrics import TrainRow, ValidationRow
from tests.support.tiny_run import MODEL_SETTINGS, TinyRun, run_tiny

pytestmark = pytest.mark.soak

LENGTH = 4
FLAGS = ("--stage", "decoder", "--lr-schedule", "constant", "--validation-interval", "2")
SETTINGS = {
    # Of the GPT that is there.
    **dict.fromkeys(MODEL_SETTINGS),
    "data.prompt_seconds": None,
    "model.decoder_width": 32,
    "data.batch_size": 2,
}


@pytest.fixture(scope="module")
def decoder_flags(codec_run, unbroken):
    return (*FLAGS, "--train-data", codec_run / "corpus", "--init-from", unbroken.folder)


@pytest.fixture(scope="module")
def runs(share, decoder_flags, unbroken):
    """A decoder trained in the folder of its GPT (`voice`), and the same one elsewhere, in two goes (`apart`)."""

    def make(folder):
        folder.mkdir()
        shutil.copytree(unbroken.folder, folder / "voice")
        run_tiny(folder / "voice", *decoder_flags[:-2], "--max-steps", LENGTH, **SETTINGS)
        for length in (2, LENGTH):
            run_tiny(folder / "apart", *decoder_flags, "--max-steps", length, **SETTINGS)

    return share("decoders", make)


@pytest.fixture(scope="module")
def trained(runs):
    return TinyRun.at(runs / "voice" / "decoder")


def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(runs, trained):
    apart = TinyRun.at(runs / "apart")
    assert len(trained.losses) == LENGTH
    for what in ("losses", "validations", "weights"):
        assert getattr(apart, what) == getattr(trained, what), what


def test_the_gpt_and_the_codec_stay_bit_for_bit(trained, unbroken):
    before, after = (
        read_model_directory(path) for path in (find_own_model(unbroken.folder), find_model_directory(trained.folder))
    )
    for old, new in ((before.model, after.model), (before.dvae, after.dvae)):
        for name, tensor in old.items():
            np.testing.assert_array_equal(read_array(new[name]), read_array(tensor), err_msg=name, strict=True)


def test_the_model_has_the_decoder_by_its_published_names_and_no_rivals(trained):
    path = find_model_directory(trained.folder)
    saved = read_training_checkpoint(path)
    sizes = read_sizes(saved.model.config.model)
    own = {name for name in saved.model.model if name.startswith(DECODER_PREFIX)}
    assert own == {DECODER_PREFIX + weight.key for weight in list_decoder_weights(sizes.decoder)}
    assert not [name for name in saved.model.model if "by_period" in name]
    for owner in ("rival", "rival_optimizer", "optimizer"):
        assert any(name.startswith(f"{owner}/") for name in saved.tensors), owner
    assert own <= complete_model(saved.model).keys(), "it is exported, too"


def test_the_folder_of_the_gpt_speaks_by_its_decoder(runs, trained):
    assert find_model_directory(runs / "voice").parent == trained.folder
    synthesizer = load_synthesizer(runs / "voice", verify_checksums=False)
    assert isinstance(synthesizer.vocoder, DecoderVocoder)
    assert synthesizer.rate_hz == 24_000
    assert "without a speaker encoder" in synthesizer.vocoder.how
    voice = synthesizer.clone_samples([np.sin(np.arange(22050) * 0.05).astype(np.float32)])
    assert not voice.speaker_G.any()


def test_a_gpt_that_was_trained_on_speaks_without_a_decoder_that_is_not_its_own(runs, trained, tmp_path):
    voice = tmp_path / "voice"
    shutil.copytree(runs / "voice", voice)
    shutil.rmtree(voice / "decoder" / "start")
    shutil.copytree(find_model_directory(trained.folder), voice / "decoder" / "start")
    assert find_model_directory(voice) == find_own_model(voice)


def test_every_validation_is_heard_by_the_decoder(trained):
    for step in (2, LENGTH):
        samples, rate_hz = soundfile.read(trained.folder / "samples" / f"step-{step:08d}.wav")
        assert rate_hz == 24_000
        assert 0.9 < len(samples) / rate_hz < 1.2
        assert np.abs(samples).max() > 0


def test_the_figures_of_both_sides_are_kept(trained):
    named = {"mel_loss", "adversarial_loss", "feature_loss", "discriminator_loss"}
    for kind in (TrainRow, ValidationRow):
        found = trained.list_rows(kind)
        assert found
        for row in found:
            assert named <= row.scalars.keys()
            assert row.loss == pytest.approx(row.scalars["mel_loss"], rel=1e-5)
    assert not sum(row.retraces for row in trained.list_rows(TrainRow))


def test_without_a_gpt_nothing_comes_into_being(tmp_path):
    run = run_tiny(tmp_path / "none", *FLAGS, expect=None, **SETTINGS)
    assert run.code != 0
    assert "no run of one" in run.text
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("mode", ["dual", "isolated"])
def test_every_mode_trains_the_same_decoder(trained, decoder_flags, tmp_path, mode):
    assert (
        run_tiny(tmp_path / mode, *decoder_flags, "--max-steps", LENGTH, mode=mode, **SETTINGS).losses == trained.losses
    )

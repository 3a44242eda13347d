"""`myxtts import` and `myxtts export` from the command line."""

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import read_model_directory
from myxtts.checkpoints.store import CheckpointStore, TrainingState
from myxtts.cli.main import main
from tests.checkpoints.test_import_export import CONFIG, VOCABULARY, draw_tensors
from tests.support.processes import run_python


def run_myxtts(*words):
    return run_python(["-m", "myxtts.cli.main", *map(str, words)])


@pytest.fixture(scope="module")
def coqui(tmp_path_factory):
    """Coqui's files of a small model."""
    from myxtts.checkpoints.exporting import export_coqui
    from myxtts.checkpoints.model_directory import write_model_directory
    from myxtts.models.sizes import read_sizes
    from myxtts.models.weights import list_dvae_weights, list_xtts_weights

    folder = tmp_path_factory.mktemp("coqui")
    sizes = read_sizes(CONFIG.model)
    write_model_directory(
        folder / "ours",
        config=CONFIG,
        model=draw_tensors(list_xtts_weights(sizes.gpt, sizes.decoder, sizes.speaker), 1),
        dvae=draw_tensors(list_dvae_weights(sizes.dvae), 2),
        vocabulary=VOCABULARY.read_text(encoding="utf-8"),
    )
    export_coqui(read_model_directory(folder / "ours"), folder / "theirs")
    return folder / "theirs"


def test_import_says_what_it_read_and_names_the_licence_then_export_gives_it_back(coqui, tmp_path):
    result = run_myxtts(
        "import",
        coqui / "model.pth",
        "--dvae",
        coqui / "dvae.pth",
        "--vocab",
        coqui / "vocab.json",
        "--out",
        tmp_path / "m",
    )
    assert result.returncode == 0, result.stderr
    assert "Model   2 layers, 64 wide, 2 heads, 188 text tokens" in result.stdout
    assert "non-commercial" in result.stdout
    result = run_myxtts("export", tmp_path / "m", "--out", tmp_path / "back", "--coqui")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "back" / "model.pth").read_bytes() == (coqui / "model.pth").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import"], "MODEL.pth"),
        (["import", "nowhere.pth", "--out", "x"], "nowhere.pth"),
        (["import", VOCABULARY, "--out", "x"], "tiny_vocab.json"),
        (["export", "nowhere", "--out", "x"], "nowhere"),
        (["export", "nowhere"], "--out"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(words, message):
    result = run_myxtts(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_is_not_exported_onto_itself(coqui, tmp_path):
    run_myxtts("import", coqui / "model.pth", "--out", tmp_path / "m")
    before = np.asarray(read_model_directory(tmp_path / "m").model["gpt.mel_head.bias"])
    result = run_myxtts("export", tmp_path / "m", "--out", tmp_path / "m")
    assert result.returncode == 2
    np.testing.assert_array_equal(np.asarray(read_model_directory(tmp_path / "m").model["gpt.mel_head.bias"]), before)


@pytest.mark.parametrize("command", [["import", "{coqui}/model.pth"], ["export", "{coqui}/../ours"]])
def test_nothing_that_lies_where_a_model_is_to_go_is_lost(coqui, tmp_path, capsys, command):
    words = [word.format(coqui=coqui) for word in command]
    thesis = tmp_path / "precious" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    assert main([*words, "--out", str(thesis.parent)]) == 2
    assert "holds other files (thesis.txt), which would be lost. Give a new or empty folder." in capsys.readouterr().err
    assert thesis.read_text() == "years of work"
    assert main([*words, "--out", str(thesis)]) == 2
    assert "must be a folder, but is a file" in capsys.readouterr().err
    assert main([*words, "--out", "/proc/exp"]) == 2
    assert "/proc/exp: cannot be written" in capsys.readouterr().err


def test_a_model_is_imported_again_over_itself(coqui, tmp_path):
    words = ["import", str(coqui / "model.pth"), "--out", str(tmp_path / "m")]
    assert [main(words), main(words)] == [0, 0]


def test_the_folder_of_a_run_is_exported_by_its_checkpoint(coqui, tmp_path, capsys):
    run = tmp_path / "run"
    model = read_model_directory(coqui.parent / "ours")
    content = {"config": model.config, "model": model.model, "vocabulary": model.vocabulary}
    save_state = TrainingState(step=3, metrics={})
    CheckpointStore(run, keep_last=1, keep_best=0, best_metric="").save(model=content, tensors={}, state=save_state)
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert main(["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "new")]) == 2
    assert (
        "nowhere: does not exist. Give a model directory, or the --checkpoint-dir of a run." in capsys.readouterr().err
    )

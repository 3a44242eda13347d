"""`myxtts import`, `myxtts export` and `myxtts vocabulary` from the command line."""

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import read_model_directory
from myxtts.checkpoints.store import CheckpointStore, TrainingState
from myxtts.cli.main import main
from myxtts.data.texts import advise_merges
from myxtts.text.tokenizer import Tokenizer
from tests.checkpoints.hostile_models import VOCABULARY
from tests.support.shared_files import ASSETS


def test_import_says_what_it_read_and_names_the_licence_then_export_gives_it_back(coqui, tmp_path, capsys, refuse):
    theirs, ours = coqui / "theirs", tmp_path / "m"
    flags = {"--dvae": theirs / "dvae.pth", "--vocab": theirs / "vocab.json", "--out": ours}
    words = [str(word) for pair in flags.items() for word in pair]
    # Once more over itself.
    assert [main(["import", str(theirs / "model.pth"), *words]) for _ in range(2)] == [0, 0]
    said = capsys.readouterr().out
    assert "Model   2 layers, 64 wide, 2 heads, 188 text tokens" in said
    assert "non-commercial" in said
    assert main(["export", str(ours), "--out", str(tmp_path / "back"), "--coqui"]) == 0
    assert (tmp_path / "back" / "model.pth").read_bytes() == (theirs / "model.pth").read_bytes()
    before = np.asarray(read_model_directory(ours).model["gpt.mel_head.bias"])
    capsys.readouterr()
    refuse("export", ours, "--out", ours)
    np.testing.assert_array_equal(np.asarray(read_model_directory(ours).model["gpt.mel_head.bias"]), before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import"], "MODEL.pth"),
        (["import", "nowhere.pth", "--out", "x"], "nowhere.pth"),
        (["import", VOCABULARY, "--out", "x"], "tiny_vocab.json"),
        (
            ["export", "nowhere", "--out", "x"],
            "nowhere: does not exist. Give a model directory, or the --checkpoint-dir",
        ),
        (["export", "nowhere"], "--out"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(words, message, refuse):
    assert message in refuse(*words)


@pytest.mark.parametrize("command", [["import", "{coqui}/theirs/model.pth"], ["export", "{coqui}/ours"]])
def test_nothing_that_lies_where_a_model_is_to_go_is_lost(coqui, tmp_path, refuse, command):
    words = [word.format(coqui=coqui) for word in command]
    thesis = tmp_path / "precious" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    said = refuse(*words, "--out", thesis.parent)
    assert "holds other files (thesis.txt), which would be lost. Give a new or empty folder." in said
    assert thesis.read_text() == "years of work"
    assert "must be a folder, but is a file" in refuse(*words, "--out", thesis)
    assert "/proc/exp: cannot be written" in refuse(*words, "--out", "/proc/exp")


def test_the_folder_of_a_run_is_exported_by_its_checkpoint(coqui, tmp_path):
    model = read_model_directory(coqui / "ours")
    content = {"config": model.config, "model": model.model, "vocabulary": model.vocabulary}
    store = CheckpointStore(tmp_path / "run", keep_last=1, keep_best=0, best_metric="")
    store.save(model=content, tensors={}, state=TrainingState(step=3, metrics={}))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_vocabulary_is_grown_by_command_with_advice_on_how_far(tmp_path, capsys, refuse):
    texts, out, base = tmp_path / "texts.txt", tmp_path / "vocab.json", str(ASSETS / "tiny_vocab.json")
    texts.write_text("سلام دنیا، سلام دوستان.\n\n" * 30, encoding="utf-8")
    (tmp_path / "metadata.csv").write_text("id|text|language\n" + "a|سلام|fa\nb|hello|en\n" * 3, encoding="utf-8")
    grow = ["vocabulary", base, "--language", "fa-IR", "--out", str(out)]
    assert main([*grow, "--text-file", str(texts), "--merges", "8"]) == 0
    said, tokenizer = capsys.readouterr().out, Tokenizer(out)
    assert f"Grown   188 -> {tokenizer.text_tokens} tokens: [fa], 53 characters, 8 merges" in said
    assert "Texts   30 of 23 characters, or 1" in said
    assert "Advice  --merges 256: one for 500 characters of text, at least 256 and at most 2000." in said
    # Of nothing, of an hour or so, of ten, and of a hundred.
    assert [advise_merges(characters) for characters in (0, 50_000, 500_000, 5_000_000)] == [256, 256, 1000, 2000]
    assert tokenizer.clean("گِل", "fa") == "گِل"
    assert main([*grow, "--train-data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Texts   3 of 4 characters" in said
    assert " 3 merges\n" in said, "as many as are advised, and the texts have"
    assert "--merges must be from 0 to" in refuse(*grow, "--text-file", texts, "--merges", "-1")
    texts.write_text("\n")
    assert "not one word" in refuse(*grow, "--text-file", texts)

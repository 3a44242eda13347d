"""`train_main.py` and `myxtts train`: parse, plan, print; wrong input gives one message and exit code 2."""

import re
import subprocess
import sys

import pytest

from myxtts.cli.main import main, make_parser
from myxtts.config.sources import GROUPS, CollectValue, iterate_flags
from tests.support.nvml import StubCard
from tests.support.processes import ROOT, clean_environ, run_python, run_train


def test_help_lists_every_promised_flag():
    text = run_train("--help").stdout
    for flag in (
        "--train-data", "--val-data", "--data-gpu", "--model-gpu", "--enable-memory-isolation", "--data-gpu-memory",
        "--model-gpu-memory", "--batch-size", "--epochs", "--max-steps", "--buffer-size", "--model-start-delay",
        "--prefetch-buffer-size", "--num-workers", "--model-size", "--enable-static-shapes", "--disable-static-shapes",
        "--grad-accum", "--mixed-precision", "--optimization-level", "--config", "--print-config", "--lr", "--checkpoint-dir",
        "--resume", "--reset-training", "--seed", "--deterministic", "--enable-xla", "--mode", "--rehearsal", "--cache", "--stage",
        "--init-from", "--strict", "--on-oom", "--cluster", "--gradient-checkpointing",
        "--tensorboard-log-dir", "--language",
    ):  # fmt: skip
        assert re.search(rf"(?m)^  (--\S+, )?{flag}[ ,\n]", text), flag


def test_help_begins_with_an_example_and_the_dozen_flags_of_most_runs():
    introduction, first, *others = run_train("--help").stdout.split("\n\n")[2:]
    assert introduction.startswith("  python train_main.py --train-data ")
    rows = [line.split()[0] for line in first.splitlines() if line.startswith("  --")]
    assert rows[:3] == ["--train-data", "--language", "--checkpoint-dir"]
    assert {"--data-gpu", "--model-gpu", "--rehearsal,"} < set(rows)
    assert len(rows) <= 13
    assert [group.partition(":")[0] for group in others] == list(GROUPS)


def test_help_says_what_holds_where_a_flag_is_not_given():
    parser = make_parser("train", "myxtts train")
    rows = {action.option_strings[0]: action for action in parser._actions if isinstance(action, CollectValue)}
    assert {action.key for action in rows.values()} == {key for key, _, _ in iterate_flags()}
    assert [name for name, action in rows.items() if "(default: " not in action.help] == ["--reset-training"]
    assert rows["--speak"].option_strings == ["--speak", "--no-speak"]
    assert rows["--speak"].help.endswith("(default: on)")
    assert rows["--strict"].help.endswith("(default: off)")
    assert rows["--mode"].metavar == "{auto,single,dual,isolated}"
    assert rows["--num-workers"].metavar == "N"


def test_both_commands_are_the_same():
    ours = run_python(["-m", "myxtts.cli.main", "train", "--print-config", "--batch-size", "3"])
    script = run_train("--print-config", "--batch-size", "3")
    assert ours.stdout == script.stdout
    assert "batch_size: 3" in script.stdout


def test_print_plan_of_a_rehearsal():
    result = run_train("--rehearsal", "--data-gpu", "1", "--model-gpu", "0", "--print-plan")
    assert result.returncode == 0
    assert "Data    /CPU:2, stands for GPU 1" in result.stdout
    assert "Model   /CPU:1, stands for GPU 0" in result.stdout


def test_print_plan_on_real_ids(make_machine):
    machine = make_machine(*(StubCard(id) for id in range(4)))
    result = run_train("--data-gpu", "3", "--model-gpu", "1", "--print-plan", environ=machine.environ())
    assert "Data    /GPU:1, physical GPU 3, memory growth" in result.stdout
    assert "Model   /GPU:0, physical GPU 1, memory growth" in result.stdout
    result = run_train(
        "--data-gpu", "3", "--model-gpu", "1", "--enable-memory-isolation", "--print-plan", environ=machine.environ()
    )
    assert "Data    /GPU:0, physical GPU 3, limit 8192 MB, producer process" in result.stdout
    assert "Model   /GPU:0, physical GPU 1, limit 16384 MB, trainer process" in result.stdout
    assert "each process counts its own devices: these are two" in result.stdout


def test_insufficient_gpus_names_what_is_there_and_the_command_that_works(make_machine):
    machine = make_machine(StubCard(0))
    result = run_train("--data-gpu", "0", "--model-gpu", "1", "--epochs", "2", environ=machine.environ())
    assert result.returncode == 2
    assert (
        "Insufficient GPUs for Multi-GPU Mode: asked for GPU 0 and GPU 1, but this machine has GPU 0" in result.stderr
    )
    assert "\n  python train_main.py --epochs 2\n" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--bach-size", "4"], "There is no flag --bach-size. Did you mean --batch-size?"),
        (["--batch-size", "0"], "data.batch_size (--batch-size) must be at least 1, but is '0'"),
        (["--batch-size"], "--batch-size: expected one argument"),
        (["--batch-size", "4", "extra"], "The word 'extra' belongs to no flag"),
        (["--data-gpu", "first", "--model-gpu", "0"], "must be a whole number or nothing (null), but is 'first'"),
        (["--data-gpu-memory", "5"], "from 128 to"),
        (["--config", "missing.yaml"], "missing.yaml: there is no such file"),
        (["--config", "configs"], "must be a file, but is a folder"),
        (["--language", "klingon"], "must be one of en, es"),
        (["--rehearsal", "--mode", "isolated", "--data-gpu-memory", "900000"], "MB of host memory free"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(flags, words, refuse, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert words in refuse("train", *flags, prog="train_main.py")


def test_a_section_that_is_not_a_section_and_a_flag_for_it_do_not_clash(tmp_path, refuse):
    path = tmp_path / "bad.yaml"
    path.write_text("data: 3\n")
    said = refuse("train", "--config", path, "--batch-size", "4")
    assert f"data ({path}:1) must be a group of settings, but is 3" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "\n  train "),
        ([], 2, "\n  train "),
        (["--version"], 0, "myxtts 0."),
        (["trian"], 2, "Did you mean `myxtts train`?"),
        (["--data-gpu", "0"], 2, "There is no flag --data-gpu here: flags stand behind a command, as in `myxtts train --data-gpu`."),
    ],
)  # fmt: skip
def test_without_a_command_the_overview_or_the_way_to_one_is_shown(words, code, said, capsys):
    assert main(words) == code
    told = capsys.readouterr()
    assert said in told.out + told.err


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("train_main.py --print-config", ""), ("train_main.py --help", "1"), ("-m myxtts.cli.main --help", "")],
)
def test_a_reader_that_leaves_early_causes_no_complaint(command, unbuffered):
    environ = clean_environ(PYTHONUNBUFFERED=unbuffered)
    line = f"{sys.executable} {command} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env=environ)
    assert result.stderr == ""
    assert result.returncode in (0, 141)


def test_output_that_cannot_be_written_is_one_message():
    line = f"{sys.executable} train_main.py --print-config > /dev/full"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env=clean_environ())
    said = "train_main.py: error: the output could not be written: No space left on device.\n"
    assert (result.returncode, result.stderr) == (1, said)


def test_text_that_the_terminal_cannot_show_is_escaped():
    result = run_train("--train-data", "پیکره", "--print-config", environ=clean_environ(PYTHONIOENCODING="ascii"))
    assert (result.returncode, result.stderr) == (0, "")
    assert "\\u067e" in result.stdout


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [("KeyboardInterrupt", 130, "train_main.py: interrupted\n"), ("RuntimeError", 1, "Please report it with the file that\n`myxtts diagnose --skip-speed-test --json FILE`")],
)  # fmt: skip
def test_ctrl_c_ends_with_130_and_a_fault_of_ours_names_the_command_to_report_it(error, code, said):
    script = f"""
import sys
from myxtts.cli import main, train
def fail(arguments): raise {error}
train.run = fail
sys.exit(main.run_command("train", [], "train_main.py"))
"""
    result = run_python(["-c", script])
    assert result.returncode == code
    assert said in result.stderr
    assert ("Traceback" in result.stderr) == (code == 1)

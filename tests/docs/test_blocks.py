"""Every block of code in the pages can at least be taken apart: commands by their parsers, YAML by the configuration."""

import ast
import re
import shlex

import pytest

from myxtts.cli.main import COMMANDS, make_parser
from myxtts.config import resolve_config
from tests.support.doc_blocks import read_all_blocks, split_commands
from tests.support.processes import ROOT

BLOCKS = read_all_blocks()
FOREIGN = ("git", "cd", "pip", "curl", "aplay", "tensorboard", "docker", "nvidia-smi", "kubectl", "sbatch", "source", "export", "iptables", "ip6tables", "ray", "umask")  # fmt: skip
"""Programs of others that the pages call."""
SCRIPTS = {
    "train_main.py": "train",
    "utilities/dual_gpu_bottleneck_profiler.py": "profile",
    "utilities/diagnose_gpu_utilization.py": "diagnose",
    "utilities/configure_max_gpu_utilization.py": "configure",
}


def of(language):
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", of("bash"))
def test_commands_parse(block):
    commands = split_commands(block.text)
    assert commands
    for command in commands:
        for part in re.split(r" (?:\||&&|&) ?", command):
            check_command(shlex.split(part.partition(" > ")[0]))


def check_command(words):
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if not words:
        return
    if words[0].startswith("judges/"):
        words = [words[0].rpartition("/")[2], *words[1:]]
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
        assert {word for word in words[1:] if "=" not in word} <= targets
    elif words[0] == "python" and words[1] in SCRIPTS:
        assert (ROOT / words[1]).is_file()
        parse(SCRIPTS[words[1]], words[2:])
    elif words[0] in ("python", "bash"):
        assert words[1] in ("-m", "-c") or (ROOT / words[1]).is_file(), words
    elif words[0] == "myxtts":
        if words[1] != "--help":
            parse(words[1], words[2:])
    else:
        assert words[0] in FOREIGN, words


def parse(name, words):
    assert name in COMMANDS, name
    if "--help" in words:
        return
    arguments = make_parser(name, name).parse_all(words)
    if hasattr(arguments, "given"):
        resolve_config(flags=arguments.given, yaml_path=arguments.config and find_config(arguments.config))


def find_config(path):
    """The configuration file of the project, or nothing for one that the reader writes."""
    return ROOT / path if (ROOT / path).is_file() else None


@pytest.mark.parametrize("block", of("python"))
def test_python_parses(block):
    ast.parse(block.text)


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_a_configuration(block, tmp_path):
    path = tmp_path / "page.yaml"
    path.write_text(block.text, encoding="utf-8")
    resolve_config(yaml_path=path)

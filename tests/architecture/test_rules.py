"""Rules of the code that the linters are set to keep: each is broken once here, to see that it bites."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from myxtts.config.config import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


def find_readers():
    """`section.name` for every setting that code reads: an attribute of something called config or like its section.

    Declaring, checking and printing a setting is not reading it, so `config/` counts only where it derives a value.
    """
    found = set()
    for path in (ROOT / "myxtts").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.parent.name == "config":
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_property(node)]
        else:
            nodes = [tree]
        for node in nodes:
            for child in ast.walk(node):
                if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Load):
                    own = path.parent.name == "config"
                    found |= {f"{section}.{child.attr}" for section in _name_sections(child.value, own)}
    return found


def find_named_places():
    """Every dotted name of the package inside a text of its own code, with the file it stands in."""
    for path in (ROOT / "myxtts").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for found in re.findall(r"(?<![\w./-])myxtts(?:\.[A-Za-z_]\w*)+", node.value):
                    # The beginning of a name that is put together.
                    if not found.endswith("_"):
                        yield found, path.relative_to(ROOT)


def is_there(dotted):
    """Whether a module has that name, or a module has something of that name."""
    place, names = ROOT, dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").is_file():
        module = place / f"{names.pop(0)}.py"
    else:
        module = place / "__init__.py"
    return not names or names[0] in _list_names(module)


def _list_names(module):
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom() | ast.Import():
                yield from (alias.asname or alias.name for alias in node.names)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_what_messages_tell_users_to_call_is_there():
    # A key of a request's own scope, by the custom of servers.
    named = set(find_named_places()) - {("myxtts.facts", Path("myxtts/serving/app.py"))}
    assert ("myxtts.text.vocabulary.train_vocabulary", Path("myxtts/text/tokenizer.py")) in named
    assert not is_there("myxtts.text.vocabulary.grow_vocabulary")
    assert [f"{path}: {name}" for name, path in sorted(named) if not is_there(name)] == []


def _name_sections(base, own):
    name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    if name == "config" or (own and name == "self"):
        return set(SECTIONS)
    return {section for section in SECTIONS if name in (section, f"{section}_config")}


def _is_property(node):
    return any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list)


def test_every_setting_is_read_somewhere():
    keys = {f"{section}.{name}" for section, cls in SECTIONS.items() for name in cls.model_fields}
    assert keys - find_readers() - find_keys_named_in_presets() == set()


def find_keys_named_in_presets():
    """Settings that choose a preset are read through their dotted key."""
    text = (ROOT / "myxtts" / "config" / "presets.py").read_text(encoding="utf-8")
    return set(re.findall(r"\.get\(\"([\w.]+)\"", text))


def lint(code, path):
    command = [TOOLS / "ruff", "check", "--quiet", "--output-format", "concise", "--stdin-filename", path, "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.parametrize(
    ("code", "owner", "elsewhere"),
    [
        ("import tensorflow as tf\n\ntf.config.set_soft_device_placement(True)\n", "myxtts/devices/runtime.py", "myxtts/devices/plan.py"),
        ("import tensorflow as tf\n\nscope = tf.device('/CPU:0')\n", "myxtts/utils/commons.py", "myxtts/models/gpt.py"),
        ("import pynvml\n\npynvml.nvmlInit()\n", "myxtts/devices/nvml.py", "myxtts/utils/gpu_memory.py"),
        ("import tempfile\n\ntempfile.mkdtemp()\n", "myxtts/files.py", "myxtts/cli/train.py"),
        ("print('hello')\n", "myxtts/cli/train.py", "myxtts/devices/plan.py"),
    ],
)  # fmt: skip
def test_each_call_has_one_owner(code, owner, elsewhere):
    assert lint(code, owner) == ""
    assert "TID251" in lint(code, elsewhere) or "T201" in lint(code, elsewhere)


@pytest.mark.parametrize(
    "code",
    [
        "from threading import Thread\n\nThread(target=int).start()\n",
        "import threading\n\nthreading.Thread(target=int).start()\n",
        "import multiprocessing\n\nmultiprocessing.Queue()\n",
        "import subprocess\n\nsubprocess.run(['true'])\n",
        "import torch\n\ntorch.zeros(1)\n",
        "try:\n    int('x')\nexcept Exception:\n    pass\n",
    ],
)
def test_what_no_module_may_do_is_refused(code):
    assert lint(code, "myxtts/training/trainer.py") != ""


def check_imports(root):
    return subprocess.run([TOOLS / "lint-imports", "--no-logo", "--no-cache"], capture_output=True, text=True, cwd=root)


def test_rooms_import_only_what_lies_before_them():
    result = check_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("config/rules.py", "from myxtts.devices import plan  # noqa\n"),
        ("devices/plan.py", "from myxtts.utils import commons  # noqa\n"),
        ("utils/commons.py", "from myxtts.cli import main  # noqa\n"),
        ("errors.py", "from myxtts.config import setting  # noqa\n"),
        ("config/rules.py", "import tensorflow  # noqa\n"),
    ],
)
def test_an_import_against_the_flow_is_found(tmp_path, module, code):
    shutil.copytree(ROOT / "myxtts", tmp_path / "myxtts", ignore=shutil.ignore_patterns("__pycache__", "demo"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "myxtts" / module
    path.write_text(path.read_text(encoding="utf-8") + code, encoding="utf-8")
    result = check_imports(tmp_path)
    assert result.returncode != 0, result.stdout


READING_CALL = re.compile(
    r"(json\.loads?|np\.load|np\.fromfile|yaml\.\w*load|safe_open|soundfile\.read|soundfile\.info|FileIO|.*\.read_text"
    r"|.*\.read_bytes|(?!.*_choice).*\.open|open|.*\.SoundFile)\("
)
WRITING = re.compile(r"""['"][wax][b+]*['"]|O_WRONLY""")
READERS = {
    # Files of the kernel and of the package itself, which nobody else writes.
    "monitoring/machine_facts.py": {"read_text"},
    "processes.py": {"loads", "open", "read_text"},
    "devices/machine.py": {"read_text"},
    "devices/runtime.py": {"read_text"},
    "serving/app.py": {"read_text"},
    "tuning/selfcheck_work.py": {"read_text"},
    # Words between processes of ours, and what a process was started with.
    "pipeline/batch.py": {"loads"},
    "tuning/code_preparation.py": {"loads"},
    "data/task_processes.py": {"loads"},
    "cluster/exchange.py": {"loads"},
    "cluster/trainers.py": {"loads"},
    # The body of a request: what is wrong with a field is told by the field's name.
    "serving/request.py": {"loads"},
    # Behind `open_file`: they read what it has opened, or what it has looked at before a library opens it.
    "audio/reading.py": {"SoundFile"},
    "data/corpus.py": {"load"},
    "data/code_cache.py": {"load"},
    "checkpoints/tensors.py": {"safe_open"},
    # What was made JSON a line before, to see how long it becomes.
    "checkpoints/coqui.py": {"loads"},
}
"""Modules that read otherwise than through `files.py`, and how."""


def find_reading_calls(tree):
    for node in ast.walk(tree):
        call = ast.unparse(node) if isinstance(node, ast.Call) else ""
        found = READING_CALL.match(call)
        if found and ast.unparse(node.func) == found[1] and not WRITING.search(call):
            yield found[1].rpartition(".")[2]


def test_files_are_read_in_one_place():
    found = {}
    for path in sorted((ROOT / "myxtts").rglob("*.py")):
        calls = set(find_reading_calls(ast.parse(path.read_text(encoding="utf-8"))))
        if calls and path != ROOT / "myxtts" / "files.py":
            found[str(path.relative_to(ROOT / "myxtts"))] = calls
    assert found == READERS

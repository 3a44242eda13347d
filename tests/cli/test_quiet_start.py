"""TensorFlow writes lines to the terminal when it is imported, unless `myxtts.devices.runtime` does it: so that must be first.

Read from the source: each command would take seconds to start.
"""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = "myxtts.devices.runtime"
LOADS_RUNTIME = "open_speaking_device"
"""A function of ours, itself looked at below, that has imported the runtime when it returns."""


def list_steps(nodes):
    """What is imported or called, in the order of the lines; what only a type checker reads is left out."""
    steps = []
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            steps += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            steps += [(node.lineno, name) for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == LOADS_RUNTIME:
            steps.append((node.lineno, RUNTIME))
    return [name for _, name in sorted(steps, key=lambda step: step[0])]


def list_top_level(tree):
    """The nodes that are executed when a module is imported."""
    nodes = list(tree.body)
    for node in nodes:
        if isinstance(node, ast.With | ast.Try):
            nodes += node.body
    return nodes


@functools.cache
def find_file(module):
    """The file of a module of ours; None where the name is that of something else."""
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


@functools.cache
def read_steps(path):
    """What a module imports when it is imported."""
    return list_steps(list_top_level(ast.parse(path.read_text(encoding="utf-8"))))


class Imports:
    """What importing modules one after the other would load."""

    def __init__(self):
        self.loaded = set()

    def find_noise(self, names):
        """The way to the first import of TensorFlow that is not the runtime's; None where there is none."""
        for name in names:
            if RUNTIME in self.loaded:
                return None
            if name.partition(".")[0] in ("tensorflow", "keras"):
                return (name,)
            way = self._load(name) if name.startswith("myxtts") else None
            if way is not None:
                return way
        return None

    def _load(self, name):
        parts = name.split(".")
        for module in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            path = find_file(module)
            if path is None or module in self.loaded:
                continue
            self.loaded.add(module)
            way = None if module == RUNTIME else self.find_noise(read_steps(path))
            if way is not None:
                return (module, *way)
        return None


def list_entries():
    """The functions of all commands, each with what it imports; that of its module comes first."""
    for path in sorted((ROOT / "myxtts" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.stem}.{node.name}", [f"myxtts.cli.{path.stem}", *list_steps(ast.walk(node))]


def test_no_command_lets_tensorflow_write_to_the_terminal():
    ways = {entry: Imports().find_noise(steps) for entry, steps in list_entries()}
    assert {entry: way for entry, way in ways.items() if way is not None} == {}
    assert len(ways) > 100


def test_an_import_in_the_wrong_order_is_found():
    assert Imports().find_noise(["myxtts.inference.cloning", RUNTIME]) == ("myxtts.inference.cloning", "tensorflow")
    assert Imports().find_noise([RUNTIME, "myxtts.inference.cloning"]) is None


def test_what_loads_the_runtime_does():
    tree = ast.parse((ROOT / "myxtts" / "cli" / "speaking.py").read_text(encoding="utf-8"))
    (function,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == LOADS_RUNTIME]
    imports = Imports()
    assert imports.find_noise(list_steps(ast.walk(function))) is None
    assert RUNTIME in imports.loaded

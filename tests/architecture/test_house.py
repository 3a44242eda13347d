"""The house can be seen whole: few rooms, chapters instead of scraps, one meaning for a name."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "myxtts"

MOST_MODULES = 18
"""In a folder."""
FEWEST_LINES, MOST_LINES = 40, 700
OTHER_SIZES = {"hashing.py": "random numbers that are the same everywhere: nothing else belongs there"}
"""Modules of another size, and why."""


def list_modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


def test_no_folder_holds_more_modules_than_can_be_seen():
    folders = defaultdict(list)
    for path in list_modules():
        folders[str(path.parent.relative_to(PACKAGE))].append(path.name)
    assert {folder: len(names) for folder, names in folders.items() if len(names) > MOST_MODULES} == {}


def test_a_module_is_a_chapter():
    sizes = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in list_modules()
    }
    odd = {name: size for name, size in sizes.items() if not FEWEST_LINES <= size <= MOST_LINES}
    assert {name: size for name, size in odd.items() if name not in OTHER_SIZES} == {}
    assert set(OTHER_SIZES) <= set(odd), "of a usual size by now"


def test_a_public_class_name_means_one_thing():
    places = defaultdict(list)
    for path in list_modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}

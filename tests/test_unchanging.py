"""The list of tests that may not change names tests that are there."""

import ast

from tests.support.processes import ROOT
from tests.support.unchanging import UNCHANGING


def test_every_test_that_may_not_change_is_there():
    missing, count = [], 0
    for files in UNCHANGING.values():
        for file, names in files.items():
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            missing += [f"{file}::{name}" for name in names if name not in there]
            count += len(names)
    assert missing == []
    assert count > 60

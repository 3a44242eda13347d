"""The way of a batch, as the pages on architecture tell it, is the way it goes in the code."""

import ast
import re
from functools import cache

import pytest

from tests.support.processes import ROOT

MOST_ROWS = 30


def read_rows(language):
    """By number: the file, the function, and how it goes on: `calls 4, 16`, `Handoff to 21`."""
    text = (ROOT / "docs" / language / "architecture.md").read_text("utf-8")
    found = re.findall(r"^\| (\d+) \| `(\S+)` `(\S+)` \|.*\|.*\|(.*)\|$", text, re.MULTILINE)
    return {int(number): (file, function, re.findall(r"`(.+?)`", way)) for number, file, function, way in found}


ROWS = read_rows("en")


def list_hops(number):
    """Where a row goes on: the number of each next row, and the class of a hand-over or None of a call."""
    for way in ROWS[number][2]:
        handover, _, to = way.rpartition(" to ")
        for each in to.removeprefix("calls ").split(", "):
            yield int(each), handover or None


@cache
def parse(file):
    return ast.parse((ROOT / "myxtts" / file).read_text("utf-8"))


def find_functions(file):
    """The functions of a module, by `function` or `Class.method`."""
    classes = [node for node in parse(file).body if isinstance(node, ast.ClassDef)]
    owned = [(node, f"{owner.name}.") for owner in classes for node in owner.body]
    nodes = [*((node, "") for node in parse(file).body), *owned]
    return {prefix + node.name: node for node, prefix in nodes if isinstance(node, ast.FunctionDef)}


def list_calls(file, function):
    """The names that a function calls, itself or through private functions of its class or module."""
    functions, names, waiting = find_functions(file), set(), [function]
    for current in waiting:
        called = [node.func for node in ast.walk(functions[current]) if isinstance(node, ast.Call)]
        found = {getattr(node, "attr", None) or getattr(node, "id", "") for node in called}
        private = [name for name in found - names if name.startswith("_")]
        inner = [each for name in private for each in (name, f"{function.rpartition('.')[0]}.{name}")]
        waiting += [each for each in inner if each in functions and each not in waiting]
        names |= found
    return names


def list_names(file):
    """What a module defines, imports or uses by name."""
    return {getattr(node, "id", None) or getattr(node, "name", None) for node in ast.walk(parse(file))}


def test_the_table_is_one_in_both_languages():
    assert list(ROWS) == list(range(1, len(ROWS) + 1))
    assert 20 <= len(ROWS) <= MOST_ROWS
    assert read_rows("fa") == ROWS


@pytest.mark.parametrize("number", ROWS)
def test_a_row_is_true(number):
    file, function, _ = ROWS[number]
    assert function in find_functions(file)
    for to, handover in list_hops(number):
        next_file, next_function, _ = ROWS[to]
        if handover is None:
            assert next_function.rpartition(".")[2] in list_calls(file, function)
        else:
            assert handover in list_names(file) & list_names(next_file)


def test_the_way_has_no_gap():
    hops = [{number, to} for number in ROWS for to, _ in list_hops(number)]
    reached = {1}
    for _ in ROWS:
        reached |= {number for hop in hops if hop & reached for number in hop}
    assert reached == set(ROWS)

"""The container file, as far as it can be tried without a container engine."""

import re
import shlex
import subprocess

import pytest

from tests.support.processes import ROOT

LINES = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()


def list_arguments(instruction):
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")]


@pytest.mark.parametrize(("extras", "asked"), [("", "."), ("gpu", ".[gpu]"), ("gpu,serve", ".[gpu,serve]")])
def test_pip_is_asked_for_the_extras_at_the_tested_versions(extras, asked):
    (install,) = [command for command in list_arguments("RUN") if command.startswith("pip ")]
    shell = f'pip() {{ printf "%s\\n" "$@"; }}; {install}'
    words = subprocess.run(["sh", "-c", shell], env={"EXTRAS": extras}, capture_output=True, text=True, check=True)
    assert words.stdout.split() == ["install", "--no-cache-dir", "-c", "constraints.txt", asked]


def test_everything_that_is_copied_is_there_and_all_that_the_build_reads_is_copied():
    copied = [name for copy in list_arguments("COPY") for name in shlex.split(copy)[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    project = (ROOT / "pyproject.toml").read_text()
    read = re.findall(r'^(?:readme|license-files) = \[?"([^"]+)"', project, flags=re.MULTILINE)
    assert {"myxtts", "pyproject.toml", "constraints.txt", *read} <= set(copied)


def test_it_runs_myxtts_as_a_user_without_rights():
    assert list_arguments("ENTRYPOINT") == ['["myxtts"]']
    assert list_arguments("USER")[-1] not in ("root", "0")
    # The last user counts, and what is installed needs rights.
    order = [line.split()[0] for line in LINES if line and not line.startswith("#")]
    assert order.index("USER") > max(number for number, word in enumerate(order) if word == "RUN")

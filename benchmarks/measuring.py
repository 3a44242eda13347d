"""What the benches share: quiet windows, tables and targets, and processes that measure when they are asked."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from myxtts.errors import ClusterError, MyXTTSError
from myxtts.processes import end_child, make_importable

T = TypeVar("T")
MOST_STEAL = 0.05
"""Share of the processor time that the host may have taken away in a window that counts."""
MOST_DISCARDED = 2
"""Windows in a row that are tried again before one is taken as it is."""
STOP_SECONDS = 60.0
RESULT = "@result "


def run_bench(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a bench with the words of the command line; a mistake in them ends in one message."""
    try:
        main(sys.argv[1:])
    except MyXTTSError as error:
        sys.exit(f"error: {error}")


@contextmanager
def tell_machine() -> Iterator[None]:
    """Prints what the figures of the block depend on: the machine, and its load before and after."""
    lines, cores = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines(), len(os.sched_getaffinity(0))
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")
    versions = f"TensorFlow {version('tensorflow')}, NumPy {version('numpy')}"
    print(f"Machine  {processor}\n         {cores} cores, Python {platform.python_version()}, {versions}")
    print_load("before")
    if os.getloadavg()[0] > cores / 4:
        print("Warning  the machine was busy already: targets may be missed for that alone")
    print(flush=True)
    yield
    print_load("after")


def print_load(when: str) -> None:
    print(f"Load     {', '.join(f'{each:.2f}' for each in os.getloadavg())} {when} (over 1, 5, 15 minutes)", flush=True)


def print_row(widths: Sequence[int], name: str, *cells: str) -> None:
    """A line of a table: the name at the left of its column, the cells at the right of theirs. What is beyond them is left as it is."""
    padded = [
        f"{cell:>{width}}" for cell, width in itertools.zip_longest(cells, widths[1 : len(cells) + 1], fillvalue=0)
    ]
    print(f"{name:<{widths[0]}}{''.join(padded)}".rstrip(), flush=True)


class Windows:
    """Measures again what the host has spoilt, and counts how often."""

    def __init__(self) -> None:
        self.discarded = self.noisy = 0
        self.is_quiet = True
        """Whether the last window was."""

    def find_quiet(self, measure: Callable[[], T]) -> T:
        """The first figures during which the host took little away, or the last tried."""
        for attempt in range(MOST_DISCARDED + 1):
            steal_before, total_before = read_processor_ticks()
            figures = measure()
            steal, total = read_processor_ticks()
            self.is_quiet = steal - steal_before <= MOST_STEAL * (total - total_before)
            if self.is_quiet:
                break
            self.discarded += attempt < MOST_DISCARDED
        self.noisy += not self.is_quiet
        return figures

    def take_turns(self, contenders: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
        """What each contender measured in each round. All within a round, so that a busy minute hits all of them."""
        figures: dict[str, list[T]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, contender in contenders.items():
                figures[name].append(self.find_quiet(contender))
        return figures

    def judge(self, is_met: bool) -> str:
        """The word for a target of all these windows."""
        return judge(is_met, not self.noisy)

    def __str__(self) -> str:
        text = f"Windows  {self.discarded} discarded for more than {MOST_STEAL:.0%} steal"
        return f"{text}; {self.noisy} taken all the same, after that" if self.noisy else text


def judge(is_met: bool, is_quiet: bool = True) -> str:
    """The word for a target; another one for what the host has spoilt."""
    return ("met" if is_met else "missed") if is_quiet else "noisy"


def read_processor_ticks() -> tuple[int, int]:
    """Of the whole machine since its start: what the host took away, and all."""
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


class Child:
    """A process that answers each line of JSON on its standard input with one on its standard output; a context."""

    def __init__(self, words: Sequence[str], **environ: str):
        self._words = list(words)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(self._words, env={**make_importable(os.environ), **environ}, **pipes)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self._process.kill()
        end_child(self._process, STOP_SECONDS)

    def ask(self, question: Any) -> Any:
        """The answer, however long it takes."""
        self.send(question)
        return self.receive()

    def send(self, question: Any) -> None:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"error: a process of the bench has ended; what it said is above. It was: {' '.join(self._words)}")
        return json.loads(line)


def start_module(module: str, *words: str) -> Child:
    """A child that runs a module of this folder."""
    return Child([sys.executable, "-P", "-m", module, *words])


def answer_questions(work: Callable[[Any], Any]) -> None:
    """The other side of `Child`: does the work for each question until the parent has no more."""
    # Libraries may print; the answers have the real standard output for themselves.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(work(json.loads(line))), file=answers, flush=True)


def run_together(module: str, commands: Sequence[Sequence[str]]) -> Any:
    """Runs a module in processes that stand and fall together, each on a core of its own; what `report_result` was given in one."""
    cores, environ = sorted(os.sched_getaffinity(0)), make_importable(os.environ)
    python = [sys.executable, "-P", "-m", module]
    with ExitStack() as started:
        files, members = [], []
        for number, words in enumerate(commands):
            files.append(started.enter_context(TemporaryFile("w+", encoding="utf-8")))
            pinned = ["taskset", "-c", str(cores[number % len(cores)]), *python, *words]
            members.append(subprocess.Popen(pinned, stdout=files[-1], stderr=subprocess.STDOUT, env=environ))
            started.callback(end_child, members[-1], STOP_SECONDS)
        while any(member.poll() is None for member in members) and not any(member.poll() for member in members):
            time.sleep(0.1)
        for file in files:
            file.seek(0)
        said = [line for file in files for line in file.read().splitlines()]
        if any(member.poll() for member in members):
            raise ClusterError("A process of the bench failed:\n" + "\n".join(said[-20:]))
    return next((json.loads(line.removeprefix(RESULT)) for line in said if line.startswith(RESULT)), None)


def report_result(result: Any) -> None:
    print(f"{RESULT}{json.dumps(result)}", flush=True)

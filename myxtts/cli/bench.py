"""`myxtts bench WHAT`: measures a part of MyXTTS on this machine, against what one would do without it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from myxtts.cli.wrapping import wrap_table
from myxtts.config.section import nearest_name
from myxtts.errors import CommandLineError

BENCHES: Mapping[str, str] = {
    "data": "reading: utterances/s by stage, and our reader against plain loops and tf.data",
    "model": "the network: training step, DVAE, decoding and parameter counts, alone or beside Coqui's PyTorch code",
    "planner": "--mode auto: its choice against every mode tried",
    "cluster": "several trainers: one against two that share its batches, and what larger clusters would do",
    "pipeline": "the pipeline: hand-offs, the modes against one device, the ring, the cost of watching",
}
"""What can be measured -> its line of help. Each is a module `bench_WHAT` of this package with `run(words, prog)`."""


def run(words: Sequence[str], prog: str) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(format_help(prog))
        return 0 if words else 2
    name = words[0]
    if name not in BENCHES:
        near = nearest_name(name, BENCHES)
        hint = f"Did you mean `{prog} {near}`?" if near else f"There are: {', '.join(BENCHES)}."
        raise CommandLineError(f"There is nothing called {name!r} to measure. {hint}")
    code: int = importlib.import_module(f"myxtts.cli.bench_{name}").run(words[1:], f"{prog} {name}")
    return code


def format_help(prog: str) -> str:
    """The overview of what can be measured."""
    lines = [f"usage: {prog} WHAT [flags]", "", *wrap_table(BENCHES)]
    return "\n".join([*lines, "", f"`{prog} WHAT --help` shows the flags."])

"""`myxtts bench model`: how fast this machine trains, encodes and decodes, and against what."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from myxtts.cli.bench_seconds import add_seconds_flag, read_seconds
from myxtts.cli.model_speed import CODES, LABELS, PEER_CAN, ROWS, TEXT_TOKENS, SpeedResult, time_in_turn, time_once
from myxtts.cli.parser import Parser
from myxtts.cli.peer_process import Peer
from myxtts.errors import CommandLineError

THREADS = 2
MOST_LOAD = 0.5
"""Load average of others above which ratios say little."""
PEERS = ("coqui",)
PEER_PYTHON = "MYXTTS_PEER_PYTHON"
SIZES = ("tiny", "small", "base", "big")


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description=f"Measure the network on {THREADS} threads: training steps of two sizes, DVAE encoding and decoding, "
        "beside the speed at which memory can be read.",
    )
    parser.add_argument(
        "--against", choices=PEERS, help="do the same with Coqui's PyTorch code, in turn, and print ratios"
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        type=Path,
        help=f"the Python that has torch and coqui-tts (default: {PEER_PYTHON} of the environment)",
    )
    add_seconds_flag(parser, 10.0)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    seconds = read_seconds(arguments)
    command = find_peer(arguments.peer_python) if arguments.against else None
    from myxtts.cli.files import check_writable, write_text
    from myxtts.devices.environment import VISIBLE_DEVICES, prepare_environment

    check_writable(arguments.json)
    # The figures are of the processor: a card would be measured otherwise, where there is one.
    os.environ[VISIBLE_DEVICES] = ""
    prepare_environment(os.environ)
    print(format_sizes())
    result = measure(command, seconds)
    print(format_result(result))
    if arguments.json:
        write_text(arguments.json, json.dumps(asdict(result), indent=1) + "\n")
        print(f"Figures  {arguments.json}")
    return 0


def find_peer(python: Path | None) -> list[Path]:
    """What starts the peer; an error unless its Python and our script for it are there."""
    given = python or (Path(os.environ[PEER_PYTHON]) if os.environ.get(PEER_PYTHON) else None)
    if given is None:
        raise CommandLineError(
            f"--against coqui needs a Python that has torch and coqui-tts. Give it with --peer-python PATH or {PEER_PYTHON}."
        )
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "peer_coqui.py"
    for path, what in ((given, "the peer's Python"), (script, "the peer's script, which comes with the source tree")):
        if not path.is_file():
            raise CommandLineError(f"--against coqui needs {what}, but there is no file {path}.")
    return [given, script]


def measure(command: Sequence[Path] | None, seconds: float) -> SpeedResult:
    """Each piece of work in turn with the peer's, for about so many seconds each."""
    from myxtts.devices.runtime import set_thread_pools

    load_before = os.getloadavg()[0]
    set_thread_pools(THREADS, THREADS)
    # After the runtime, which makes the import of TensorFlow quiet.
    from myxtts.cli.model_workloads import READ_BYTES, open_work

    ours, theirs = {}, {}
    with contextlib.ExitStack() as stack:
        peer = None
        if command:
            environment = {"OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false"}
            peer = stack.enter_context(Peer(command, environment))
        for name in LABELS:
            with open_work(name) as work:
                contenders: dict[str, Callable[[], float]] = {"ours": partial(time_once, work)}
                if peer is not None and name in PEER_CAN:
                    peer.ask({"prepare": name})
                    contenders["peer"] = partial(_time_peer, peer, name)
                timings = time_in_turn(contenders, seconds)
            ours[name] = timings["ours"]
            if "peer" in timings:
                theirs[name] = timings["peer"]
    return SpeedResult(ours, theirs, READ_BYTES, (load_before, os.getloadavg()[0]))


def _time_peer(peer: Peer, name: str) -> float:
    return float(peer.ask({"run": name})["seconds"])


def format_sizes() -> str:
    """Parameters of every model size."""
    from myxtts.config import ModelConfig
    from myxtts.models.names import count_parameters

    lines = ["size        GPT     DVAE  decoder  speaker    total   (million parameters)"]
    for size in SIZES:
        counts = list(count_parameters(ModelConfig(size=size)).values())
        lines.append(f"{size:<6}" + "".join(f"{count / 1e6:9.1f}" for count in (*counts, sum(counts))))
    return "\n".join(lines)


def format_result(result: SpeedResult) -> str:
    """The figures as plain text, within 100 columns."""
    head = f"{'':<48}{'best':>8}{'median':>9}{'codes/s':>9}"
    lines = [
        "",
        f"{THREADS} threads; load average {result.load_average[0]:.1f} before, {result.load_average[1]:.1f} after. Batches of "
        f"{ROWS}, text {TEXT_TOKENS}, codes {CODES}.",
        head + (f"{'peer':>9}{'codes/s':>9}{'x time':>8}" if result.peer else ""),
    ]
    lines += [_format_row(result, name) for name in LABELS]
    if result.load_average[0] > MOST_LOAD:
        lines += ["", "The machine was busy: two threads wait for each other then, the peer's far more than ours."]
    lines += [
        "",
        f"Roof     memory is read at {result.bytes_per_s / 1e9:.1f} GB/s: {result.roof_codes_per_s:.0f} codes/s of one "
        "sentence in float32",
        *(f"Target   {verdict}" for verdict in result.judge()),
    ]
    return "\n".join(lines)


def _format_row(result: SpeedResult, name: str) -> str:
    timing, is_decoding = result.ours[name], name.startswith("decode")
    row = f"{LABELS[name]:<48}{timing.best:>7.3f}s{timing.median:>8.3f}s"
    row += f"{result.codes_per_s(name):>9.0f}" if is_decoding else " " * 9
    if name in result.peer:
        row += f"{result.peer[name].best:>8.3f}s"
        row += f"{result.codes_per_s(name, of_peer=True):>9.0f}" if is_decoding else " " * 9
        row += f"{result.ratio(name):>8.2f}"
    return row.rstrip()

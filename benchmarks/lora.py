"""Adapters beside full fine-tuning: what a new voice gains by either, from the same model in as many updates.

Needs a trained run and clips of a voice that it has not heard. Runs that are there already are read and not trained again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import judge, print_row, run_bench, tell_machine
from myxtts.monitoring.metrics import ValidationRow, read_metrics

WIDTHS = (22, 12, 12, 12, 12)
AIM = 0.9
"""Of the gain of full fine-tuning."""
NO_RATE = 1e-12
"""Changes nothing: its validation is that of the model itself."""


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.lora", description=__doc__)
    parser.add_argument("--base", required=True, metavar="DIR", help="the run to start from")
    parser.add_argument("--train-data", required=True, metavar="DIR")
    parser.add_argument("--val-data", required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the runs go")
    parser.add_argument("--updates", type=int, default=60, metavar="N", help="of each run (default: 60)")
    parser.add_argument("--rank", type=int, default=16, metavar="N", help="of the adapters (default: 16)")
    parser.add_argument("--full", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3], metavar="RATE")
    parser.add_argument("--lora", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3], metavar="RATE")
    chosen = parser.parse_args(words)
    with tell_machine():
        before = min(train(chosen, "start", NO_RATE, 0, updates=1))
        print_row(WIDTHS, "way", "rate", "best loss", "last loss", "gain")
        best = {}
        for way, rank, rates in (
            ("full fine-tuning", 0, chosen.full),
            (f"rank {chosen.rank}", chosen.rank, chosen.lora),
        ):
            for rate in rates:
                losses = train(chosen, f"{rank}-{rate:g}", rate, rank, chosen.updates)
                gain = before - min(losses)
                best[rank] = max(gain, best.get(rank, gain))
                print_row(WIDTHS, way, f"{rate:g}", f"{min(losses):.4f}", f"{losses[-1]:.4f}", f"{gain:.4f}")
        share = best[chosen.rank] / best[0]
        print(
            f"Validation loss {before:.4f} before. Of the gain of full fine-tuning at its best rate, adapters reach ",
            end="",
        )
        print(f"{share:.1%} at theirs; wanted {AIM:.0%}: {judge(share >= AIM)}.")


def train(chosen: argparse.Namespace, name: str, rate: float, rank: int, updates: int) -> list[float]:
    """The validation losses of a run."""
    folder = chosen.out / name
    if not folder.exists():
        interval = str(max(1, updates // 3))
        flags = ["--init-from", chosen.base, "--train-data", chosen.train_data, "--val-data", chosen.val_data]
        flags += ["--lr", str(rate), "--lora-rank", str(rank), "--max-steps", str(updates), "--checkpoint-dir", folder]
        flags += [
            "--validation-interval",
            interval,
            "--rehearsal",
            "--mode",
            "single",
            "--no-speak",
            "--cache",
            "memory",
        ]
        flags += ["--batch-size", "16", "--grad-accum", "1", "--prompt-seconds", "2"]
        subprocess.run(
            [sys.executable, "-m", "myxtts.cli.main", "train", *flags], check=True, stdout=subprocess.DEVNULL
        )
    return [float(row.loss) for row in read_metrics(folder / "metrics.jsonl").rows if isinstance(row, ValidationRow)]


if __name__ == "__main__":
    run_bench(main)

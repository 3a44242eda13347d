"""Kernels that the hot functions launch without XLA, for cards that it cannot serve; counted as `myxtts profile` does.

A launch takes 4 to 10 us on a GPU however small it is. Coqui's training step in PyTorch, counted alike with its views left out,
launches 708 (4 layers x 256: tiny) and 1,024 (8 x 512: small).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.gpu_functions import FUNCTIONS, SHAPES, Case, build_function
from benchmarks.measuring import print_row, run_bench, tell_machine
from myxtts.tuning.profiling import count_launches


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_launches", description=__doc__)
    parser.add_argument("--size", action="append", choices=SHAPES, help="may be given again (default: tiny and small)")
    parser.add_argument("--function", action="append", choices=FUNCTIONS, help="may be given again (default: all)")
    arguments = parser.parse_args(words)
    with tell_machine():
        for size in arguments.size or ("tiny", "small"):
            for name in arguments.function or FUNCTIONS:
                function, specs = build_function(name, Case(size)).compile()
                kinds = count_launches(function.get_concrete_function(*specs))
                most = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6))
                print_row((8, 20, 8), size, name, f"{kinds.total():,}", f"  {most}")


if __name__ == "__main__":
    run_bench(main)

"""Kernels that the hot functions launch without XLA, for cards that it cannot serve; counted in the graphs that TensorFlow runs here.

A launch takes 4 to 10 us on a GPU however small it is. Coqui's training step in PyTorch, counted alike with its views left out,
launches 708 (4 layers x 256: tiny) and 1,024 (8 x 512: small).
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.eager import context

from benchmarks.gpu_functions import FUNCTIONS, SHAPES, Case, build_function
from benchmarks.measuring import print_row, run_bench, tell_machine

FREE = """Placeholder Const NoOp Identity IdentityN _Arg _Retval StopGradient PreventGradient VarHandleOp ReadVariableOp Reshape
ExpandDims Squeeze Shape ShapeN BroadcastGradientArgs ConcatOffset Bitcast _DeviceArg _DeviceRetval _HostSend _HostRecv
InvertPermutation Enter Exit Merge Switch NextIteration LoopCond"""
"""Names, shapes, constants and calls: nothing that a GPU would be asked for."""
ON_HOST = ("StridedSlice", "Pack", "Range", "ConcatV2", "Prod", "Mul", "AddV2", "Sub")
"""Of int32, which TensorFlow keeps in host memory."""


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_launches", description=__doc__)
    parser.add_argument("--size", action="append", choices=SHAPES, help="may be given again (default: tiny and small)")
    parser.add_argument("--function", action="append", choices=FUNCTIONS, help="may be given again (default: all)")
    arguments = parser.parse_args(words)
    with tell_machine():
        for size in arguments.size or ("tiny", "small"):
            for name in arguments.function or FUNCTIONS:
                kinds = count_launches(name, Case(size))
                most = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6))
                print_row((8, 20, 8), size, name, f"{kinds.total():,}", f"  {most}")


def count_launches(name: str, case: Case) -> collections.Counter[str]:
    """What one call launches, by kind; what a loop repeats counts once."""
    function, specs = build_function(name, case).compile()
    context.context().ensure_initialized()
    context.context().enable_run_metadata()
    function(*(tf.zeros(spec.shape, spec.dtype) for spec in specs))
    ran = context.context().export_run_metadata().function_graphs
    context.context().disable_run_metadata()
    graphs = [graph for each in ran for graph in each.partition_graphs or [each.post_optimization_graph]]
    found = [collections.Counter(node.op for node in graph.node if _is_launched(node)) for graph in graphs]
    return max(found, key=collections.Counter.total)


def _is_launched(node: tf.compat.v1.NodeDef) -> bool:
    return node.op not in FREE.split() and not (node.op in ON_HOST and node.attr["T"].type == tf.int32.as_datatype_enum)


if __name__ == "__main__":
    run_bench(main)

"""Kernels that a traced function launches without XLA.

Each launch takes a GPU about as long, however little it computes: thousands of small ones keep it from its work.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

FREE = {
    "Placeholder", "Const", "NoOp", "Identity", "IdentityN", "_Arg", "_Retval", "StopGradient", "PreventGradient", "VarHandleOp",
    "ReadVariableOp", "Reshape", "ExpandDims", "Squeeze", "Shape", "ShapeN", "Size", "BroadcastGradientArgs", "ConcatOffset", "Bitcast",
    "InvertPermutation", "Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "If", "StatelessIf", "While",
    "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall",
}  # fmt: skip
"""Names, shapes, constants and calls: nothing that a GPU would be asked for."""
ON_HOST = {"StridedSlice", "Pack", "Range", "ConcatV2", "Prod", "Mul", "AddV2", "Sub"}
"""Of int32, which TensorFlow keeps in host memory."""


def count_launches(traced: Any) -> Counter[str]:
    """What one call of a concrete function launches, by kind, after TensorFlow has optimised its graph. A loop's body counts once,
    and of a condition both branches."""
    # What was asked to be compiled is no different here: the graph is that of every operation by itself.
    meta = export_meta_graph(graph=traced.graph, graph_def=traced.graph.as_graph_def(add_shapes=True))
    # Whatever is not needed for these is pruned; an update that gives nothing back is kept by its side effect.
    kept = [*(tensor.name for tensor in traced.outputs), *(each.name for each in traced.graph.control_outputs)]
    meta.collection_def["train_op"].node_list.value.extend(kept)
    settings = ConfigProto()
    settings.graph_options.rewrite_options.min_graph_nodes = -1
    graph = tf_optimizer.OptimizeGraph(settings, meta)
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return Counter(node.op for nodes in bodies for node in nodes if _is_launched(node))


def _is_launched(node: Any) -> bool:
    is_on_host = node.op in ON_HOST and node.attr["T"].type == tf.int32.as_datatype_enum
    return node.op not in FREE and not is_on_host

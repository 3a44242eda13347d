"""The GPT's decoding for onnxruntime, with products of 8 bits. The network is defined once, in TensorFlow: what is here derives a graph
of the blocks, closing norms and head from its variables, which reads one position of several rows, or many of one.

Shape suffixes: B rows, S positions of the cache, Q positions that are read, C width, H heads, D channels of a head, V vocabulary,
I inputs, O outputs, K blocks of `BLOCK` inputs."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.checkpoints.model_directory import INT8_NAME, MODEL_NAME, ModelDirectory
from myxtts.checkpoints.store import BASE_FOLDER
from myxtts.checkpoints.tensors import encode_safetensors, open_safetensors
from myxtts.errors import MachineError
from myxtts.files import FileError, WriteError, open_file_atomically
from myxtts.inference.rows import HeardRows
from myxtts.models.gpt import GPT
from myxtts.models.layers import NORM_EPSILON, LayerNorm
from myxtts.models.sizes import GPTSize

_log = logging.getLogger(__name__)

FORMAT = 1
"""Changes with what a kept file means."""
BLOCK = 32
"""Inputs that share a scale, of the weights as of what they are multiplied by. Each row has scales of its own, so that what it says does not depend on
the rows beside it."""
ZERO = 128
"""What stands for 0 in a weight of 8 bits."""
KEPT_WEIGHTS = 50_000_000
"""Kernels of fewer are turned so fast that no file is kept."""
MOST_THREADS = 8
"""More wait for each other and for the memory."""
MOST_ERROR = 0.1
"""Of state and logits after a few positions, beside TensorFlow's, as a share of them: products of 8 bits err by a few hundredths at most."""

_OPSET, _IR_VERSION, _OWN = 20, 10, "com.microsoft"
_LAYERS = ("qkv", "project", "expand", "contract", "attention_norm", "forward_norm")
_CACHED = ("keys", "values")
_LAST = {"last.first": -1, "last.end": np.iinfo(np.int64).max, "last.axis": 1}
"""The bounds of the last position, as the graph has them."""
_KERNEL, _SEAL = ".kernel", "seal"
_SHOWN = 200
"""Characters of what onnxruntime says."""

Weights = Mapping[str, NDArray[Any]]
"""Arrays by the name of their layer: `0.qkv.kernel`, `0.attention_norm.gamma`, `audio_head.bias`."""


class EngineError(MachineError):
    """The engine cannot speak with this model on this machine."""


def read_weights(gpt: GPT) -> dict[str, NDArray[Any]]:
    """What the graph is made of, in float32."""
    layers = {f"{index}.{name}": getattr(block, name) for index, block in enumerate(gpt.blocks) for name in _LAYERS}
    layers |= {name: getattr(gpt, name) for name in ("last_norm", "final_norm", "audio_head")}
    weights: dict[str, NDArray[Any]] = {}
    for name, layer in layers.items():
        if isinstance(layer, LayerNorm):
            weights[f"{name}.gamma"], weights[f"{name}.beta"] = _read(layer.gamma), _read(layer.beta)
        else:
            weights[name + _KERNEL], weights[f"{name}.bias"] = _read(layer.kernel), _read(layer.bias)
            if layer.down is not None:
                weights[name + _KERNEL] = _read(layer.kernel) + layer.factor * (_read(layer.down) @ _read(layer.up))
    return weights


def _read(variable: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = np.asarray(variable.value, np.float32)
    return array


def quantise(weights: Weights) -> dict[str, NDArray[Any]]:
    """Of all kernels, what stands for them: their 8 bits, (O, K, `BLOCK`), and scales, (O, K)."""
    narrow: dict[str, NDArray[Any]] = {}
    for name, kernel_IO in weights.items():
        if name.endswith(_KERNEL):
            filled_OI = np.pad(kernel_IO.T, [(0, 0), (0, -len(kernel_IO) % BLOCK)])
            blocks_OKI = filled_OI.reshape(len(filled_OI), -1, BLOCK)
            scales_OK = np.maximum(np.abs(blocks_OKI).max(-1), np.float32(1e-30)) / np.float32(ZERO - 1)
            narrow[name] = (np.rint(blocks_OKI / scales_OK[..., None]) + ZERO).astype(np.uint8)
            narrow[_name_scales(name)] = scales_OK
    return narrow


def _name_scales(kernel: str) -> str:
    return kernel.removesuffix(_KERNEL) + ".scales"


class KeptFile:
    """Kernels of 8 bits in a file, which saves turning them at each start.

    Nothing but numbers is read from it, of the shapes that the model's kernels have, and their digest must be the one in it. What is of
    another model, damaged or of another version is written anew.

    It lies beside the model, or in the user's cache where that folder is closed, or was installed with the package.
    """

    def __init__(self, model: ModelDirectory):
        made_of = repr((FORMAT, model.manifest.files[MODEL_NAME].sha256, model.manifest.facts.base))
        self._key = hashlib.sha256(made_of.encode()).digest()
        caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "myxtts")
        beside = [] if model.path.resolve() == BASE_FOLDER.resolve() else [model.path / INT8_NAME]
        self.places = [*beside, caches / f"{self._key.hex()[:16]}-{INT8_NAME}"]

    def read(self, weights: Weights) -> dict[str, NDArray[Any]]:
        """What stands for the kernels among a model's weights, from the file or made now."""
        # Not `Path.exists`, which raises where the folder may not be looked into: a home of another user, in a container perhaps.
        for path in filter(os.path.exists, self.places):
            try:
                return self._load(path, weights)
            except FileError as error:
                _log.warning("%s It is made again.", error)
        narrow = quantise(weights)
        if sum(each.size for each in weights.values()) >= KEPT_WEIGHTS:
            self._write(narrow)
        return narrow

    def mend(self, narrow: Weights, weights: Weights) -> dict[str, NDArray[Any]] | None:
        """What stands for the kernels, and is now in the file; None where `narrow`, which was read, is that."""
        true = quantise(weights)
        if all(np.array_equal(array, narrow[name]) for name, array in true.items()):
            return None
        _log.warning("The weights of 8 bits that were kept are not those of the model. They are made again.")
        self._write(true)
        return true

    def _write(self, narrow: Weights) -> None:
        for path in self.places:
            try:
                # A model that came from elsewhere may have a link there, to any file of the user's.
                with open_file_atomically(path, follows_link=False) as file:
                    for piece in encode_safetensors({**narrow, _SEAL: self._seal(narrow)}):
                        file.write(piece)
                break
            except WriteError as error:
                _log.info("The weights of 8 bits are not kept there: %s", error)

    def _load(self, path: Path, weights: Weights) -> dict[str, NDArray[Any]]:
        tensors = open_safetensors(path)
        seal = tensors.pop(_SEAL, None)
        expected: dict[str, Any] = {}
        for name in (name for name in weights if name.endswith(_KERNEL)):
            inputs, outputs = weights[name].shape
            expected[_name_scales(name)] = ((outputs, -(-inputs // BLOCK)), np.float32)
            expected[name] = ((*expected[_name_scales(name)][0], BLOCK), np.uint8)
        if seal is None or {name: (each.shape, each.dtype) for name, each in tensors.items()} != expected:
            raise FileError(path, "does not fit the model.")
        narrow = {name: tensor.read() for name, tensor in tensors.items()}
        if not np.array_equal(seal.read(), self._seal(narrow)):
            raise FileError(path, "is of other weights, or damaged.")
        return narrow

    def _seal(self, narrow: Weights) -> NDArray[np.uint8]:
        digest = hashlib.sha256(self._key)
        for name in sorted(narrow):
            digest.update(np.ascontiguousarray(narrow[name]).data)
        return np.frombuffer(digest.digest(), np.uint8)


class _Graph:
    """An ONNX model in the making."""

    def __init__(self, constants: Weights):
        from onnx import helper

        self._helper, self._nodes, self._constants = helper, list[Any](), constants

    def add(self, kind: str, *operands: str, to: str | Sequence[str] = "", **attributes: Any) -> str:
        """Applies an operation, and names the first of its results, `to`."""
        to = [to or f"node.{len(self._nodes)}"] if isinstance(to, str) else list(to)
        self._nodes.append(self._helper.make_node(kind, operands, to, **attributes))
        return to[0]

    def dump(self, inputs: Mapping[str, Sequence[Any]], outputs: Mapping[str, Sequence[Any]]) -> bytes:
        """The model. What goes in and out by name and shape is float32, or int32 where its name is `last` or `total`."""
        from onnx import TensorProto, numpy_helper

        kinds = {"last": TensorProto.INT32, "total": TensorProto.INT32}
        borders = (
            [
                self._helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
                for name, shape in each.items()
            ]
            for each in (inputs, outputs)
        )
        arrays = {name: np.ascontiguousarray(each) for name, each in self._constants.items()}
        constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        graph = self._helper.make_graph(self._nodes, "graph", *borders, constants)
        opsets = [self._helper.make_opsetid("", _OPSET), self._helper.make_opsetid(_OWN, 1)]
        model = self._helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        content: bytes = model.SerializeToString()
        return content


def build_graph(size: GPTSize, weights: Weights) -> bytes:
    """An ONNX model of the blocks. In go x (B, Q, C), where in the cache the last position of each row lies, the most positions of a row, and
    the keys and values (B, H, S, D) of each block, to which it adds in place. Out come the state after the last position (B, 1, C)
    and its logits (B, 1, V).
    """
    graph = _Graph({**weights, **{name: np.array([bound]) for name, bound in _LAST.items()}})
    cache = ["B", size.heads, "S", size.width // size.heads]
    inputs: dict[str, Sequence[Any]] = {"x": ["B", "Q", size.width], "last": ["B"], "total": []}
    outputs: dict[str, Sequence[Any]] = {"state": ["B", 1, size.width], "logits": ["B", 1, size.audio_tokens]}

    def norm(x: str, name: str, to: str = "") -> str:
        return graph.add("LayerNormalization", x, f"{name}.gamma", f"{name}.beta", to=to, epsilon=NORM_EPSILON)

    def multiply(x: str, name: str, to: str = "") -> str:
        if f"{name}.scales" not in weights:
            return graph.add("Add", graph.add("MatMul", x, name + _KERNEL), f"{name}.bias", to=to)
        operands = (x, name + _KERNEL, f"{name}.scales", "", "", f"{name}.bias")
        sizes = {"N": len(weights[f"{name}.bias"]), "K": size.width * (4 if name.endswith("contract") else 1)}
        # 4: what comes in gets 8 bits too. Else the weights would become floats again for each product.
        return graph.add(
            "MatMulNBits", *operands, to=to, domain=_OWN, bits=8, block_size=BLOCK, accuracy_level=4, **sizes
        )

    x = "x"
    for index in range(size.layers):
        heads = [f"{index}.{part}" for part in "qkv"]
        joined = multiply(norm(x, f"{index}.attention_norm"), f"{index}.qkv")
        graph.add("Split", joined, to=heads, axis=-1, num_outputs=3)
        before, after = ([f"{index}.{part}.{when}" for part in _CACHED] for when in ("before", "after"))
        inputs |= dict.fromkeys(before, cache)
        outputs |= dict.fromkeys(after, cache)
        attended = graph.add(
            "GroupQueryAttention", *heads, *before, "last", "total", to=[f"{index}.attended", *after],
            domain=_OWN, num_heads=size.heads, kv_num_heads=size.heads,
        )  # fmt: skip
        x = graph.add("Add", x, multiply(attended, f"{index}.project"))
        expanded = graph.add("FastGelu", multiply(norm(x, f"{index}.forward_norm"), f"{index}.expand"), domain=_OWN)
        x = graph.add("Add", x, multiply(expanded, f"{index}.contract"))
    state = norm(norm(graph.add("Slice", x, *_LAST), "last_norm"), "final_norm", to="state")
    multiply(state, "audio_head", to="logits")
    return graph.dump(inputs, outputs)


def open_session(model: bytes) -> Any:
    """A model in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    # Between two runs others work: threads that wait in a loop would take the processor from them.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def _tell_problems() -> Iterator[None]:
    """Raises `EngineError` for what onnxruntime raises in the block, and where it cannot be loaded."""
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state
    except (ImportError, OSError) as error:
        raise EngineError(f"onnxruntime cannot be loaded: {error}") from error
    # An exception for each of its status codes, without an ancestor of their own.
    found = vars(onnxruntime_pybind11_state).values()
    own = [each for each in found if isinstance(each, type) and issubclass(each, Exception)]
    kinds: tuple[type[Exception], ...] = (*own, ImportError, MemoryError, RuntimeError)
    try:
        yield
    except kinds as error:
        told = next(iter(str(error).splitlines()), "")[:_SHOWN]
        raise EngineError(f"onnxruntime cannot run the model here: {type(error).__name__}: {told}") from error


class DecodingEngine:
    """A GPT's blocks in onnxruntime. Raises `EngineError` where they cannot be opened or run there."""

    def __init__(self, gpt: GPT, weights: Weights):
        with _tell_problems():
            self.gpt, self.session = gpt, open_session(build_graph(gpt.size, weights))
        # Compiled: as single operations it takes as long as the first codes.
        self.embed = tf.function(
            self._trace_embedding,
            input_signature=[tf.TensorSpec([1, None, gpt.size.width]), tf.TensorSpec([1, None], tf.int32)],
            autograph=False,
        )

    def _trace_embedding(self, prompt_1PC: Any, ids_1T: Any) -> Any:
        """What comes before the first code of a row, (1, Q, C)."""
        gpt = self.gpt
        text = gpt.frame_prefix_text(ids_1T)
        start_11C = gpt.embed_audio(tf.constant([[gpt.size.start_audio_token]]))
        return tf.concat([gpt.embed_prefix(prompt_1PC, text.inputs_BL), start_11C], 1)

    def open_cache(self, rows: int) -> NDArray[np.float32]:
        """Room for the keys and values of so many rows, (2, layers, B, H, S, D). The system gives memory for it as it is written."""
        size = self.gpt.size
        positions = size.max_prompt_tokens + size.text_positions + size.audio_positions
        return np.empty((2, size.layers, rows, size.heads, positions, size.width // size.heads), np.float32)

    def find_problem(self) -> str | None:
        """What is wrong where a few positions are not as in TensorFlow: not every processor was tried."""
        x_1QC = self.gpt.embed_audio(tf.range(4)[None])
        state_11C = self.gpt.run_blocks(x_1QC, tf.ones([1, 4], tf.bool))[:, -1:]
        true = self.gpt.audio_head(state_11C).numpy()[0], state_11C.numpy()[0]
        with _tell_problems():
            found = Step(self, self.open_cache(1), 0, 1, 4).run(x_1QC.numpy(), np.array([3]))
        error = max(
            float(np.linalg.norm(own - each) / np.linalg.norm(each)) for own, each in zip(found, true, strict=True)
        )
        return (
            None if error <= MOST_ERROR else f"what this machine computes is {error:.0%} away from what float32 gives."
        )


class Step:
    """Runs of the graph on rows of a cache that lie side by side; what it reads and writes has its place in memory from the start."""

    def __init__(self, engine: DecodingEngine, cache: NDArray[np.float32], first: int, end: int, positions: int = 1):
        size, rows = engine.gpt.size, end - first
        # Kept: the graph knows addresses alone.
        self._cache = cache
        self._session, self._binding = engine.session, engine.session.io_binding()
        self._x_BQC = np.zeros((rows, positions, size.width), np.float32)
        self._last_B, self._total = np.zeros(rows, np.int32), np.zeros((), np.int32)
        self._state_B1C = np.zeros((rows, 1, size.width), np.float32)
        self._logits_B1V = np.zeros((rows, 1, size.audio_tokens), np.float32)
        given = {"x": self._x_BQC, "last": self._last_B, "total": self._total}
        taken = {"state": self._state_B1C, "logits": self._logits_B1V}
        for index in range(size.layers):
            for part, array in zip(_CACHED, cache[:, index, first:end], strict=True):
                given[f"{index}.{part}.before"] = taken[f"{index}.{part}.after"] = array
        for bind, arrays in ((self._binding.bind_input, given), (self._binding.bind_output, taken)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self, x_BQC: NDArray[np.float32], last_B: NDArray[np.integer]) -> HeardRows:
        """What follows the last position read, valid until the next run.

        Args:
            last_B: where in the cache the last position is written. Those of the first run of a row begin at 0.
        """
        self._x_BQC[:], self._last_B[:], self._total[...] = x_BQC, last_B, last_B.max() + 1
        self._session.run_with_iobinding(self._binding)
        return HeardRows(self._logits_B1V[:, 0], self._state_B1C[:, 0])

"""An interpreter for pickles that can build values and do nothing else, and the closed list of names a torch file may use.

It has no import, no attribute access and no call of anything a file names: a name is looked up in the table at the end of this
module, and what comes out is a function written here, or an inert constant. Work and memory are bounded whatever the file says:
every step costs, and every value that a function is given costs again, because two bytes of pickle can ask for a copy of a list
of a million entries. Nothing here recurses."""

from __future__ import annotations

import io
import math
import pickle  # only for the names of its opcodes
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.tensors import MAX_DIMENSIONS, LazyTensor, is_countable
from myxtts.errors import ModelFileError, UnsafeModelFileError

MAX_PICKLE_BYTES = 32 * 2**20
MAX_WORK = 500_000
"""Steps and copied values. A training checkpoint of XTTS v2 takes 100,000."""
MAX_TEXT_BYTES = 2**20
"""Longest text or bytes value. Tensors are not in the pickle."""
MAX_DEPTH = 64
MAX_VALUES = 500_000
"""Values of the result, shared ones counted at every place where they stand: whoever walks over it is done soon."""

SCALAR_TYPES = (str, bytes, int, float, bool, type(None))


class ConfigRecord(dict[str, Any]):
    """The attributes of a configuration object. Its class was never loaded."""


class PickleMachine:
    """One run over one pickle; `load_persistent` turns a persistent id (torch: a storage) into a value."""

    def __init__(self, path: Path, program: bytes, load_persistent: Callable[[Any], Any]):
        self._path = path
        self._program = program
        self._load_persistent = load_persistent
        self._position = 0
        self._work = 0
        self._stack: list[Any] = []
        self._outer_stacks: list[list[Any]] = []
        """What lies below each mark."""
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The value the pickle describes. Raises `ModelFileError`."""
        try:
            if len(self._program) > MAX_PICKLE_BYTES:
                raise ValueError(f"it has {len(self._program)} bytes of structure, more than {MAX_PICKLE_BYTES}")
            value = self._follow()
            check_result(value)
        except ModelFileError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise ModelFileError(
                self._path,
                f"is damaged, or made to do harm: {error} (byte {self._position} of its pickle). Get it again from its publisher.",
            ) from None
        return value

    def _follow(self) -> Any:
        program = io.BytesIO(self._program)
        if program.read(1) != pickle.PROTO or program.read(1) not in (b"\x02", b"\x03", b"\x04", b"\x05"):
            raise ValueError("it is not a pickle of protocol 2 to 5")
        while (code := program.read(1)) != pickle.STOP:
            self._position = program.tell()
            self._spend(1)
            if code not in _OPCODES:
                raise ValueError(f"it uses the pickle opcode {code!r}, which model files do not need, or is cut short")
            name, read_operand = _OPCODES[code]
            operand = None if read_operand is None else read_operand(program)
            _check_operand(operand)
            _STEPS[name](self, operand)
        if self._outer_stacks or len(self._stack) != 1 or program.tell() != len(self._program):
            raise ValueError("it does not end in one value")
        return self._stack[0]

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise ValueError(f"it takes more than {MAX_WORK} steps to read, which may be made to exhaust memory")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop_many(self, count: int) -> list[Any]:
        return [self._stack.pop() for _ in range(count)][::-1]

    def _mark(self) -> None:
        self._outer_stacks.append(self._stack)
        self._stack = []

    def _pop_group(self) -> list[Any]:
        items, self._stack = self._stack, self._outer_stacks.pop()
        return items

    def _fill(self, kind: type, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not kind:
            raise ValueError(f"it fills what is no {kind.__name__}")
        match target:
            case list():
                target.extend(items)
            case set():
                target.update(map(check_key, items))
            case dict():
                target.update(zip(map(check_key, items[::2]), items[1::2], strict=True))

    def _memoize(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _push_global(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise ValueError("it names a Python object by something other than text")
        dotted = f"{module}.{name}"
        if dotted not in TORCH_GLOBALS:
            raise UnsafeModelFileError(self._path, dotted[:200])
        self._push(TORCH_GLOBALS[dotted])

    def _call(self) -> None:
        function, arguments = self._pop_many(2)
        # Only functions of the table below can be called: no value that is made here has a `__call__`.
        if type(arguments) is not tuple or not callable(function):
            raise ValueError("it calls what cannot be called")
        self._spend(len(arguments))
        for argument in arguments:
            if isinstance(argument, str | bytes):
                self._spend(len(argument) // 16)
            elif isinstance(argument, list | tuple | dict | set | frozenset):
                self._spend(len(argument))
        self._push(function(*arguments))

    def _set_state(self) -> None:
        state = self._stack.pop()
        match self._stack[-1], state:
            case ConfigRecord() as record, dict() if all(type(key) is str for key in state):
                self._spend(len(state))
                record.update(state)
            case dict() as mapping, _ if type(mapping) is dict:
                # Its attributes (torch keeps versions of layers there) are of no use outside torch.
                pass
            case np.dtype(), (_, str("<" | "|"), *_):
                # The byte order, which it has already.
                pass
            case _:
                raise ValueError("it gives a state to what has none, or one that does not fit")


def _check_operand(operand: Any) -> None:
    # Encoded, because what cannot be holds half a character.
    content = operand.encode() if isinstance(operand, str) else operand
    if isinstance(content, bytes) and len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"it holds a text of {len(content)} bytes, more than {MAX_TEXT_BYTES}")
    if isinstance(operand, int) and operand.bit_length() > 72:
        # Huge integers can be chosen such that a dictionary of them takes quadratic time.
        raise ValueError("it holds a whole number beyond 64 bits")


def check_key(key: Any) -> Any:
    """The key itself, once it is of a kind whose hash is cheap and runs no code of a file's choosing."""
    if type(key) not in SCALAR_TYPES:
        raise ValueError(f"it uses a {type(key).__name__} as a key, where text or a number should be")
    return key


def check_result(root: Any) -> None:
    """Raises `ValueError` unless the value is finite, not nested too deep, and made of data only."""
    levels: list[Iterator[Any]] = [iter((root,))]
    values = 0
    while levels:
        for value in levels[-1]:
            values += 1
            if values > MAX_VALUES:
                raise ValueError(f"it holds more than {MAX_VALUES} values, which may be made to exhaust memory")
            if isinstance(value, dict | list | tuple):
                if len(levels) > MAX_DEPTH:
                    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
                levels.append(iter(value.values() if isinstance(value, dict) else value))
                break
            if type(value) not in (*SCALAR_TYPES, set, frozenset, LazyTensor):
                raise ValueError("it holds a class or a bare storage where data should be")
        else:
            levels.pop()


_STEPS: Mapping[str, Callable[[PickleMachine, Any], Any]] = {
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
            *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        PickleMachine._push,
    ),
    "NONE": lambda m, _: m._push(None),
    "NEWTRUE": lambda m, _: m._push(True),
    "NEWFALSE": lambda m, _: m._push(False),
    "MARK": lambda m, _: m._mark(),
    "POP": lambda m, _: m._stack.pop(),
    "POP_MARK": lambda m, _: m._pop_group(),
    "FRAME": lambda m, _: None,
    "EMPTY_LIST": lambda m, _: m._push([]),
    "APPEND": lambda m, _: m._fill(list, m._pop_many(1)),
    "APPENDS": lambda m, _: m._fill(list, m._pop_group()),
    "EMPTY_TUPLE": lambda m, _: m._push(()),
    "TUPLE1": lambda m, _: m._push(tuple(m._pop_many(1))),
    "TUPLE2": lambda m, _: m._push(tuple(m._pop_many(2))),
    "TUPLE3": lambda m, _: m._push(tuple(m._pop_many(3))),
    "TUPLE": lambda m, _: m._push(tuple(m._pop_group())),
    "EMPTY_DICT": lambda m, _: m._push({}),
    "SETITEM": lambda m, _: m._fill(dict, m._pop_many(2)),
    "SETITEMS": lambda m, _: m._fill(dict, m._pop_group()),
    "EMPTY_SET": lambda m, _: m._push(set()),
    "ADDITEMS": lambda m, _: m._fill(set, m._pop_group()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), PickleMachine._memoize),
    "MEMOIZE": lambda m, _: m._memoize(len(m._memo)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, index: m._push(m._memo[index])),
    "GLOBAL": lambda m, names: m._push_global(*names),
    "STACK_GLOBAL": lambda m, _: m._push_global(*m._pop_many(2)),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda m, _: m._call()),
    "BUILD": lambda m, _: m._set_state(),
    "BINPERSID": lambda m, _: m._push(m._load_persistent(m._stack.pop())),
}
"""Every opcode that is understood: those of protocol 2, which torch writes, and their newer forms up to protocol 5."""


def _read_names(program: io.BytesIO) -> list[str]:
    lines = program.readline(MAX_TEXT_BYTES), program.readline(MAX_TEXT_BYTES)
    if not all(line.endswith(b"\n") for line in lines):
        raise ValueError("it names a Python object and is cut short")
    return [line[:-1].decode() for line in lines]


_OPCODES: Mapping[bytes, tuple[str, Callable[[io.BytesIO], Any] | None]] = {
    # The standard library's description of pickles says how operands are read, except that it undoes escapes in names.
    opcode.code.encode("latin1"): (opcode.name, opcode.arg.reader if opcode.arg else None)
    for opcode in pickletools.opcodes
    if opcode.name in _STEPS
} | {pickle.GLOBAL: ("GLOBAL", _read_names)}


@dataclass(frozen=True)
class Storage:
    """A run of elements in a record of the file."""

    dtype: np.dtype[Any]
    """Of its elements, unless the tensor says of which type they are."""
    size_bytes: int
    fetch: Callable[[int, int], bytearray]
    """Reads (start, length), both in bytes."""


def _make_tensor(
    dtype: Any, storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, hooks: Any, metadata: Any = None
) -> LazyTensor:
    """A tensor that shows part of a storage, once every element of it is known to lie inside."""
    if not isinstance(storage, Storage) or not isinstance(dtype, np.dtype) or metadata or hooks:
        raise ValueError("it describes a tensor without a storage, or one with code attached")
    if type(shape) is not tuple or type(strides) is not tuple or not len(shape) == len(strides) <= MAX_DIMENSIONS:
        raise ValueError(f"it describes a tensor without a shape, or with more than {MAX_DIMENSIONS} dimensions")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise ValueError("it describes a tensor with a shape, stride or offset that is not a number from 0 up")
    count = storage.size_bytes // dtype.itemsize
    size = math.prod(shape)
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) if size else 0
    # More elements than the storage has would be a view that repeats itself: a few bytes that ask for terabytes.
    if offset + span > count or size > count or not is_countable(shape):
        raise ValueError(f"it describes a tensor of shape {shape} in a storage of only {count} elements")

    def fetch() -> NDArray[Any]:
        if size == 0:
            return np.zeros(shape, dtype)
        content = storage.fetch(offset * dtype.itemsize, span * dtype.itemsize)
        # A byte other than 0 and 1 is no valid boolean in memory.
        flat = np.frombuffer(content, np.uint8) != 0 if dtype == np.bool_ else np.frombuffer(content, dtype)
        view = np.lib.stride_tricks.as_strided(flat, shape, [stride * dtype.itemsize for stride in strides])
        return np.ascontiguousarray(view).reshape(shape)

    return LazyTensor(shape, dtype, fetch)


def _require(is_so: bool, described: str, by: str) -> None:
    if not is_so:
        raise ValueError(f"it describes {described} by something other than {by}")


def _make_parameter(tensor: Any, requires_grad: Any, hooks: Any, state: Any = None) -> LazyTensor:
    _require(isinstance(tensor, LazyTensor) and not hooks, "a parameter", "a tensor without code attached")
    return tensor  # type: ignore[no-any-return]


def _make_dict(pairs: Any = ()) -> dict[Any, Any]:
    if type(pairs) is dict:
        return dict(pairs)
    return {check_key(key): value for key, value in _make_list(pairs)}


def _make_list(elements: Any = ()) -> list[Any]:
    _require(type(elements) in (list, tuple), "a set, a shape or a dictionary", "a list")
    return list(elements)


def _make_set(elements: Any = ()) -> set[Any]:
    return set(map(check_key, _make_list(elements)))


def _make_size(extents: Any = ()) -> tuple[int, ...]:
    _require(all(type(extent) is int for extent in _make_list(extents)), "a shape", "numbers")
    return tuple(extents)


def _make_bytes(text: Any, encoding: Any) -> bytes:
    """Bytes as protocol 2 writes them: text of code points 0 to 255 and the word latin1."""
    _require(type(text) is str and type(encoding) is str and encoding == "latin1", "bytes", "latin1 text")
    return bytes(text, "latin1")


def _make_byte_array(content: Any = b"") -> bytes:
    _require(type(content) is bytes, "a byte array", "bytes")
    return bytes(content)


def _make_numpy_dtype(code: Any, *flags: Any) -> np.dtype[Any]:
    _require(type(code) is str and code in _NUMPY_SCALARS, "a NumPy type", "one of a number")
    return np.dtype(f"<{code}")


def _make_numpy_scalar(dtype: Any, content: Any) -> int | float | bool:
    is_whole = isinstance(dtype, np.dtype) and type(content) is bytes and len(content) == dtype.itemsize
    _require(is_whole, "a NumPy number", "its type and its bytes")
    number: int | float | bool = np.frombuffer(content, dtype)[0].item()
    return number


STORAGE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
"""Names in the module `torch` -> the type of their elements."""

UNTYPED_DTYPES: Mapping[str, np.dtype[Any]] = {
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
}
"""Types for which torch has no typed storage; their tensors are views of bytes."""

CONFIG_CLASSES: Mapping[str, tuple[str, ...]] = {
    "TTS.tts.models.xtts": ("XttsArgs", "XttsAudioConfig"),
    "TTS.tts.configs.xtts_config": ("XttsConfig", "XttsArgs", "XttsAudioConfig"),
    "TTS.tts.configs.shared_configs": ("BaseTTSConfig", "CharactersConfig"),
    "TTS.config.shared_configs": ("BaseAudioConfig", "BaseDatasetConfig", "BaseTrainingConfig"),
    "TTS.tts.layers.xtts.trainer.gpt_trainer": ("GPTArgs", "GPTTrainerConfig", "XttsAudioConfig"),
    "trainer.trainer": ("TrainerConfig",),
}
"""Coqui's configuration classes that are found in XTTS files, by module."""

_NUMPY_SCALARS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
_FACTORY = object()
"""Stands for the default of a defaultdict; cannot be called."""
_BUILTINS = {
    "set": _make_set,
    "frozenset": lambda elements=(): frozenset(_make_set(elements)),
    "bytearray": _make_byte_array,
    **dict.fromkeys(("dict", "list", "int", "float"), _FACTORY),
}

TORCH_GLOBALS: Mapping[str, Any] = {
    **{f"torch.{name}": dtype for name, dtype in {**STORAGE_DTYPES, **UNTYPED_DTYPES}.items()},
    "torch.storage.UntypedStorage": np.dtype(np.uint8),
    "torch._utils._rebuild_tensor_v2": lambda storage, *rest: _make_tensor(
        getattr(storage, "dtype", None), storage, *rest
    ),
    # Says of which type the elements of an untyped storage are.
    "torch._utils._rebuild_tensor_v3": lambda *rest: _make_tensor(rest[6], *rest[:6], *rest[7:]),
    "torch._utils._rebuild_parameter": _make_parameter,
    "torch.Size": _make_size,
    "collections.OrderedDict": _make_dict,
    "collections.Counter": _make_dict,
    # Its default is a name from this table, and is not used: what is missing stays missing.
    "collections.defaultdict": lambda factory=None: {},
    **{f"{module}.{name}": maker for module in ("builtins", "__builtin__") for name, maker in _BUILTINS.items()},
    "_codecs.encode": _make_bytes,
    "numpy.dtype": _make_numpy_dtype,
    "numpy.core.multiarray.scalar": _make_numpy_scalar,
    "numpy._core.multiarray.scalar": _make_numpy_scalar,
    **{f"{module}.{name}": lambda: ConfigRecord() for module, names in CONFIG_CLASSES.items() for name in names},
}
"""Every Python object that a file may name. A function here builds a value, and calls, imports or looks up nothing the file chose."""

"""An interpreter for pickles that can build values and do nothing else, and the closed list of names a torch file may use.

Python's own unpickler is a way to run code: it imports what a file names and calls it. This one has no import, no
attribute access and no call of anything a file names. A name is looked up in a closed table that the caller gives;
what comes out is a `Maker`, written in this project, or an inert constant. An opcode that is not in the table below is
refused, so a new one in a later Python is refused too.

Work and memory are bounded whatever the file says. Every step costs, and every value that a maker copies costs again,
because two bytes of pickle can ask for a copy of a list of a million entries. Nothing here recurses: nesting is checked
afterwards, with a stack of its own.

Of the names, tensors become `LazyTensor`s, Coqui's configuration objects become mappings of their attributes, and everything
else becomes the plain Python value it stands for. Adding a name means adding a function here that builds a value from its
arguments; it must not call, import or look up anything the file chose.
"""

from __future__ import annotations

import math
import pickle  # only for the names of its opcodes
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.tensor import MAX_DIMENSIONS, LazyTensor, is_countable

MAX_PICKLE_BYTES = 32 * 2**20
MAX_WORK = 500_000
"""Steps and copied values. A training checkpoint of XTTS v2 takes 70,000."""
MAX_TEXT_BYTES = 2**20
"""Longest text or bytes value. Tensors are not in the pickle."""
MAX_DEPTH = 64
MAX_VALUES = 500_000
"""Values of the result, shared ones counted at every place where they stand: whoever walks over it is done soon."""

SCALAR_TYPES = (str, bytes, int, float, bool, type(None))


class PickleRefusedError(Exception):
    """The pickle is damaged or asks for what this interpreter does not do. The message follows a file's name."""


class GlobalRefusedError(PickleRefusedError):
    """The pickle names a Python object that is not in the table."""

    def __init__(self, global_name: str):
        self.global_name = global_name
        super().__init__(f"asks for the Python object {global_name!r}.")


def _damaged(what: str) -> PickleRefusedError:
    return PickleRefusedError(f"is damaged: {what}. Get the file again.")


class ConfigRecord(dict[str, Any]):
    """The attributes of a configuration object. Its class was never loaded; only its name is known."""

    def __init__(self, class_name: str):
        super().__init__()
        self.class_name = class_name


Spend = Callable[[int], None]
"""Pays for that many copied values, or raises."""


@dataclass(frozen=True)
class Maker:
    """What stands for a callable name in a pickle: our own function of the arguments."""

    make: Callable[[tuple[Any, ...], Spend], Any]
    set_state: Callable[[Any, Any], None] | None = None
    """Takes the state that may follow (opcode BUILD). None: a state is refused."""


class PickleMachine:
    """One run over one pickle.

    Args:
        program: the pickle.
        globals_table: (module, name) -> `Maker` or an inert constant.
        load_persistent: turns a persistent id (torch: a storage) into a value.
    """

    def __init__(
        self,
        program: bytes,
        globals_table: Mapping[tuple[str, str], Any],
        load_persistent: Callable[[Any], Any],
    ):
        if len(program) > MAX_PICKLE_BYTES:
            raise PickleRefusedError(
                f"has {len(program)} bytes of structure; model files have at most {MAX_PICKLE_BYTES}. "
                "It may be made to exhaust memory."
            )
        self._program = program
        self._globals = globals_table
        self._load_persistent = load_persistent
        self._position = 0
        self._work = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._makers: dict[int, tuple[Any, Maker]] = {}

    def run(self) -> Any:
        """The value the pickle describes."""
        if self._take(1) != b"\x80" or not 2 <= self._take(1)[0] <= 5:
            raise PickleRefusedError("is not a pickle of protocol 2 to 5. Get the file again.")
        while True:
            opcode = self._take(1)
            if opcode == b".":
                break
            self.spend(1)
            step = _STEPS.get(opcode)
            if step is None:
                raise PickleRefusedError(
                    f"uses the pickle opcode {opcode!r} at byte {self._position - 1}, which model files do not need. "
                    "It is damaged, or made to do harm."
                )
            step(self)
        if self._marks or len(self._stack) != 1 or self._position != len(self._program):
            raise _damaged("its pickle does not end in one value")
        result = self._stack.pop()
        check_result(result)
        return result

    def spend(self, work: int) -> None:
        """Counts work; raises when it was too much."""
        self._work += work
        if self._work > MAX_WORK:
            raise PickleRefusedError(f"takes more than {MAX_WORK} steps to read. It may be made to exhaust memory.")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._program):
            raise _damaged("its pickle is cut short")
        taken = self._program[self._position : end]
        self._position = end
        return taken

    def _take_uint(self, length: int) -> int:
        return int.from_bytes(self._take(length), "little")

    def _take_line(self) -> str:
        end = self._program.find(b"\n", self._position, self._position + MAX_TEXT_BYTES)
        if end < 0:
            raise _damaged("a name in its pickle does not end")
        line = self._decode(self._take(end - self._position))
        self._position += 1
        return line

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _damaged("a text in its pickle is not UTF-8") from None

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise _damaged("its pickle takes a value that is not there")
        return self._stack.pop()

    def _peek(self) -> Any:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise _damaged("its pickle ends a group that it never began")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _drop(self) -> None:
        self._pop()

    def _drop_group(self) -> None:
        self._pop_to_mark()

    def _skip_frame_header(self) -> None:
        self._take(8)

    def _push_signed(self) -> None:
        self._push(int.from_bytes(self._take(4), "little", signed=True))

    def _push_long(self) -> None:
        length = self._take_uint(1)
        if length > 9:
            # Huge integers can be chosen such that a dictionary of them takes quadratic time.
            raise PickleRefusedError("holds a whole number beyond 64 bits. It is damaged, or made to do harm.")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def _push_float(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0])

    def _take_sized(self, length_bytes: int) -> bytes:
        length = self._take_uint(length_bytes)
        if length > MAX_TEXT_BYTES:
            raise PickleRefusedError(f"holds a text of {length} bytes; at most {MAX_TEXT_BYTES} are expected.")
        return self._take(length)

    def _append(self) -> None:
        value = self._pop()
        self._list_on_top().append(value)

    def _append_all(self) -> None:
        values = self._pop_to_mark()
        self._list_on_top().extend(values)

    def _list_on_top(self) -> list[Any]:
        target = self._peek()
        if type(target) is not list:
            raise _damaged("its pickle appends to what is no list")
        return target

    def _set_item(self) -> None:
        value = self._pop()
        key = self._pop()
        self._set_items([key, value])

    def _set_all_items(self) -> None:
        self._set_items(self._pop_to_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self._peek()
        if type(target) is not dict or len(items) % 2:
            raise _damaged("its pickle fills what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[check_key(key)] = value

    def _add_items(self) -> None:
        items = self._pop_to_mark()
        target = self._peek()
        if type(target) is not set:
            raise _damaged("its pickle fills what is no set")
        target.update(check_key(item) for item in items)

    def _push_tuple(self, length: int) -> None:
        items = [self._pop() for _ in range(length)]
        self._push(tuple(reversed(items)))

    def _memoize(self, index: int) -> None:
        self._memo[index] = self._peek()

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise _damaged("its pickle recalls what it never kept")
        self._push(self._memo[index])

    def _push_global(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise _damaged("a name in its pickle is not text")
        try:
            self._push(self._globals[module, name])
        except KeyError:
            raise GlobalRefusedError(f"{module}.{name}"[:200]) from None

    def _push_global_from_stack(self) -> None:
        name = self._pop()
        module = self._pop()
        self._push_global(module, name)

    def _make(self) -> None:
        arguments = self._pop()
        maker = self._pop()
        if not isinstance(maker, Maker) or type(arguments) is not tuple:
            raise _damaged("its pickle calls what cannot be called")
        value = maker.make(arguments, self.spend)
        if maker.set_state is not None:
            # Kept with its maker, also so that the object lives and its id stays its own.
            self._makers[id(value)] = (value, maker)
        self._push(value)

    def _set_state(self) -> None:
        state = self._pop()
        target = self._peek()
        _, maker = self._makers.get(id(target), (None, None))
        if maker is None or maker.set_state is None:
            raise _damaged("its pickle gives a state to what has none")
        if isinstance(state, dict):
            self.spend(len(state))
        maker.set_state(target, state)

    def _push_persistent(self) -> None:
        self._push(self._load_persistent(self._pop()))


def check_key(key: Any) -> Any:
    """The key itself, once it is of a kind whose hash is cheap and runs no code of a file's choosing."""
    if type(key) not in SCALAR_TYPES:
        raise PickleRefusedError(f"uses a {type(key).__name__} as a key; keys are text or numbers.")
    return key


def check_result(root: Any) -> None:
    """Raises unless the value is finite, not nested too deep, and made of data only."""
    levels: list[Iterator[Any]] = [iter((root,))]
    values = 0
    while levels:
        for value in levels[-1]:
            values += 1
            if values > MAX_VALUES:
                raise PickleRefusedError(f"holds more than {MAX_VALUES} values. It may be made to exhaust memory.")
            children = _iterate_children(value)
            if children is not None:
                if len(levels) > MAX_DEPTH:
                    raise PickleRefusedError(f"is nested more than {MAX_DEPTH} deep. It may be made to do harm.")
                levels.append(children)
                break
        else:
            levels.pop()


def _iterate_children(value: Any) -> Iterator[Any] | None:
    """The values inside a container, None for a plain value; raises for what is not data."""
    if isinstance(value, dict):
        return iter(value.values())
    if isinstance(value, list | tuple):
        return iter(value)
    if type(value) in SCALAR_TYPES or type(value) in (set, frozenset) or isinstance(value, LazyTensor):
        return None
    raise PickleRefusedError("holds a class or a bare storage where data should be. It is damaged.")


_STEPS: Mapping[bytes, Callable[[PickleMachine], None]] = {
    pickle.NONE: lambda m: m._push(None),
    pickle.NEWTRUE: lambda m: m._push(True),
    pickle.NEWFALSE: lambda m: m._push(False),
    pickle.BININT1: lambda m: m._push(m._take_uint(1)),
    pickle.BININT2: lambda m: m._push(m._take_uint(2)),
    pickle.BININT: PickleMachine._push_signed,
    pickle.LONG1: PickleMachine._push_long,
    pickle.BINFLOAT: PickleMachine._push_float,
    pickle.SHORT_BINUNICODE: lambda m: m._push(m._decode(m._take_sized(1))),
    pickle.BINUNICODE: lambda m: m._push(m._decode(m._take_sized(4))),
    pickle.BINUNICODE8: lambda m: m._push(m._decode(m._take_sized(8))),
    pickle.SHORT_BINBYTES: lambda m: m._push(m._take_sized(1)),
    pickle.BINBYTES: lambda m: m._push(m._take_sized(4)),
    pickle.BINBYTES8: lambda m: m._push(m._take_sized(8)),
    pickle.MARK: lambda m: m._marks.append(len(m._stack)),
    pickle.POP: PickleMachine._drop,
    pickle.POP_MARK: PickleMachine._drop_group,
    pickle.FRAME: PickleMachine._skip_frame_header,
    pickle.EMPTY_LIST: lambda m: m._push([]),
    pickle.APPEND: PickleMachine._append,
    pickle.APPENDS: PickleMachine._append_all,
    pickle.EMPTY_TUPLE: lambda m: m._push(()),
    pickle.TUPLE1: lambda m: m._push_tuple(1),
    pickle.TUPLE2: lambda m: m._push_tuple(2),
    pickle.TUPLE3: lambda m: m._push_tuple(3),
    pickle.TUPLE: lambda m: m._push(tuple(m._pop_to_mark())),
    pickle.EMPTY_DICT: lambda m: m._push({}),
    pickle.SETITEM: PickleMachine._set_item,
    pickle.SETITEMS: PickleMachine._set_all_items,
    pickle.EMPTY_SET: lambda m: m._push(set()),
    pickle.ADDITEMS: PickleMachine._add_items,
    pickle.BINPUT: lambda m: m._memoize(m._take_uint(1)),
    pickle.LONG_BINPUT: lambda m: m._memoize(m._take_uint(4)),
    pickle.MEMOIZE: lambda m: m._memoize(len(m._memo)),
    pickle.BINGET: lambda m: m._recall(m._take_uint(1)),
    pickle.LONG_BINGET: lambda m: m._recall(m._take_uint(4)),
    pickle.GLOBAL: lambda m: m._push_global(m._take_line(), m._take_line()),
    pickle.STACK_GLOBAL: PickleMachine._push_global_from_stack,
    pickle.REDUCE: PickleMachine._make,
    pickle.NEWOBJ: PickleMachine._make,
    pickle.BUILD: PickleMachine._set_state,
    pickle.BINPERSID: PickleMachine._push_persistent,
}
"""Every opcode that is understood: those of protocol 2, which torch writes, and their newer forms up to protocol 5."""


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


@dataclass(frozen=True)
class StorageType:
    """The class of a storage."""

    dtype: np.dtype[Any] | None
    """None: bytes; the tensor says of which type."""


@dataclass(frozen=True)
class Storage:
    """A run of elements in a record of the file."""

    dtype: np.dtype[Any] | None
    """As in `StorageType`."""
    count: int
    fetch: Callable[[int, int], bytearray]
    """Reads (start, length), both in bytes."""
    is_big_endian: bool


@dataclass(frozen=True)
class _TorchDtype:
    dtype: np.dtype[Any]


@dataclass
class _NumpyDtype:
    code: str
    order: str = "<"


def _refuse(problem: str) -> PickleRefusedError:
    return PickleRefusedError(f"{problem} It is damaged, or made to do harm.")


def _take_arguments(arguments: tuple[Any, ...], count: int, name: str) -> tuple[Any, ...]:
    """The arguments, if they are as many as they should be; torch gives some of its functions one more."""
    if not count <= len(arguments) <= count + 1:
        raise _refuse(f"gives {name} {len(arguments)} arguments instead of {count}.")
    return arguments


def _make_tensor(arguments: tuple[Any, ...], spend: Spend) -> LazyTensor:
    storage, offset, shape, strides, _, hooks, *metadata = _take_arguments(arguments, 6, "a tensor")
    if not isinstance(storage, Storage) or storage.dtype is None or any(metadata) or hooks:
        raise _refuse("describes a tensor without a storage, or one with code attached.")
    return _view_storage(storage, storage.dtype, storage.count, offset, shape, strides)


def _make_untyped_tensor(arguments: tuple[Any, ...], spend: Spend) -> LazyTensor:
    storage, offset, shape, strides, _, hooks, dtype, *metadata = _take_arguments(arguments, 7, "a tensor")
    known = isinstance(storage, Storage) and storage.dtype is None and isinstance(dtype, _TorchDtype)
    if not known or any(metadata) or hooks:
        raise _refuse("describes a tensor without a storage, or one with code attached.")
    return _view_storage(storage, dtype.dtype, storage.count // dtype.dtype.itemsize, offset, shape, strides)


def _view_storage(
    storage: Storage, dtype: np.dtype[Any], count: int, offset: Any, shape: Any, strides: Any
) -> LazyTensor:
    """A tensor that shows part of a storage, once every element of it is known to lie inside.

    Args:
        dtype: the type of the elements.
        count: elements the storage holds.
        offset: first element shown.
        shape: elements along each dimension.
        strides: elements to skip from one index to the next, along each dimension.
    """
    if type(shape) is not tuple or type(strides) is not tuple or not len(shape) == len(strides) <= MAX_DIMENSIONS:
        raise _refuse(f"describes a tensor without a shape, or with more than {MAX_DIMENSIONS} dimensions.")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise _refuse("describes a tensor with a shape, stride or offset that is not a number from 0 up.")
    size = math.prod(shape)
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) if size else 0
    # More elements than the storage has would be a view that repeats itself: a few bytes that ask for terabytes.
    if offset + span > count or size > count or not is_countable(shape):
        raise _refuse(f"describes a tensor of shape {shape} in a storage of only {count} elements.")

    def fetch() -> NDArray[Any]:
        if size == 0:
            return np.zeros(shape, dtype)
        content = storage.fetch(offset * dtype.itemsize, span * dtype.itemsize)
        flat = _decode_elements(content, dtype, storage.is_big_endian)
        view = np.lib.stride_tricks.as_strided(flat, shape, [stride * dtype.itemsize for stride in strides])
        return np.ascontiguousarray(view).reshape(shape)

    return LazyTensor(shape, dtype, fetch)


def _decode_elements(content: bytearray, dtype: np.dtype[Any], is_big_endian: bool) -> NDArray[Any]:
    if dtype == np.bool_:
        # A byte other than 0 and 1 is no valid boolean in memory.
        return np.not_equal(np.frombuffer(content, np.uint8), 0)
    unsigned = np.dtype(f"{'>' if is_big_endian else '<'}u{dtype.itemsize}")
    native = np.frombuffer(content, unsigned).astype(unsigned.newbyteorder("="), copy=False)
    elements: NDArray[Any] = native.view(dtype)
    return elements


def _make_parameter(arguments: tuple[Any, ...], spend: Spend) -> LazyTensor:
    tensor, *_ = _take_arguments(arguments, 3, "a parameter")
    if not isinstance(tensor, LazyTensor) or arguments[2]:
        raise _refuse("describes a parameter without a tensor, or one with code attached.")
    return tensor


def _make_dict(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    """An ordered dictionary: empty, or from pairs, as Python writes it with and without `items`."""
    pairs = arguments[0] if len(arguments) == 1 else []
    if len(arguments) > 1 or type(pairs) not in (list, tuple):
        raise _refuse("describes a dictionary by something other than pairs.")
    spend(len(pairs))
    if any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs):
        raise _refuse("describes a dictionary by something other than pairs.")
    return {check_key(key): value for key, value in pairs}


def _make_counter(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    counts = arguments[0] if arguments else {}
    if len(arguments) > 1 or type(counts) is not dict:
        raise _refuse("describes a counter by something other than counts.")
    spend(len(counts))
    return dict(counts)


def _make_default_dict(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    # Its factory, if any, is a name from this table, and is not used: what is missing stays missing.
    if len(arguments) > 1:
        raise _refuse("describes a dictionary with more than a default.")
    return {}


def _list_elements(arguments: tuple[Any, ...], spend: Spend) -> list[Any]:
    elements = arguments[0] if arguments else []
    if len(arguments) > 1 or type(elements) not in (list, tuple):
        raise _refuse("describes a set or a shape by something other than a list.")
    spend(len(elements))
    return list(elements)


def _make_set(arguments: tuple[Any, ...], spend: Spend) -> set[Any]:
    return {check_key(element) for element in _list_elements(arguments, spend)}


def _make_frozen_set(arguments: tuple[Any, ...], spend: Spend) -> frozenset[Any]:
    return frozenset(_make_set(arguments, spend))


def _make_size(arguments: tuple[Any, ...], spend: Spend) -> tuple[int, ...]:
    extents = _list_elements(arguments, spend)
    if any(type(extent) is not int for extent in extents):
        raise _refuse("describes a shape by something other than numbers.")
    return tuple(extents)


def _make_bytes(arguments: tuple[Any, ...], spend: Spend) -> bytes:
    """Bytes as protocol 2 writes them: text of code points 0 to 255 and the word latin1."""
    if len(arguments) != 2 or type(arguments[0]) is not str or arguments[1] != "latin1":
        raise _refuse("describes bytes by something other than latin1 text.")
    spend(1 + len(arguments[0]) // 16)
    try:
        return arguments[0].encode("latin1")
    except UnicodeEncodeError:
        raise _refuse("describes bytes by text beyond latin1.") from None


def _make_byte_array(arguments: tuple[Any, ...], spend: Spend) -> bytes:
    content = arguments[0] if arguments else b""
    if len(arguments) > 1 or type(content) is not bytes:
        raise _refuse("describes a byte array by something other than bytes.")
    return content


def _make_numpy_dtype(arguments: tuple[Any, ...], spend: Spend) -> _NumpyDtype:
    code = arguments[0] if arguments else None
    if type(code) is not str or code not in _NUMPY_SCALARS:
        raise _refuse(f"uses the NumPy type {code!r}.")
    return _NumpyDtype(code)


def _set_numpy_byte_order(target: _NumpyDtype, state: Any) -> None:
    if type(state) is not tuple or len(state) < 2 or state[1] not in ("<", ">", "|"):
        raise _refuse("describes a NumPy type in an unknown way.")
    target.order = state[1]


def _make_numpy_scalar(arguments: tuple[Any, ...], spend: Spend) -> int | float | bool:
    dtype, content = _take_arguments(arguments, 2, "a NumPy number")[:2]
    if not isinstance(dtype, _NumpyDtype) or type(content) is not bytes or len(content) != int(dtype.code[1]):
        raise _refuse("describes a NumPy number in an unknown way.")
    number: int | float | bool = np.frombuffer(content, np.dtype(dtype.order.replace("|", "<") + dtype.code))[0].item()
    return number


def _ignore_state(target: Any, state: Any) -> None:
    """Attributes of a dictionary (torch keeps versions of layers there) are of no use outside torch."""


def _set_config_state(target: ConfigRecord, state: Any) -> None:
    if type(state) is not dict or any(type(key) is not str for key in state):
        raise _refuse(f"gives {target.class_name} attributes that have no names.")
    target.update(state)


def _name_config_class(module: str, name: str) -> Maker:
    def make(arguments: tuple[Any, ...], spend: Spend) -> ConfigRecord:
        if arguments:
            raise _refuse(f"gives {module}.{name} arguments.")
        return ConfigRecord(f"{module}.{name}")

    return Maker(make, _set_config_state)


def _list_globals() -> Iterator[tuple[tuple[str, str], Any]]:
    for name, dtype in STORAGE_DTYPES.items():
        yield ("torch", name), StorageType(dtype)
    for name, dtype in UNTYPED_DTYPES.items():
        yield ("torch", name), _TorchDtype(dtype)
    yield ("torch.storage", "UntypedStorage"), StorageType(None)
    yield ("torch._utils", "_rebuild_tensor_v2"), Maker(_make_tensor)
    yield ("torch._utils", "_rebuild_tensor_v3"), Maker(_make_untyped_tensor)
    yield ("torch._utils", "_rebuild_parameter"), Maker(_make_parameter)
    yield ("torch", "Size"), Maker(_make_size)
    yield ("collections", "OrderedDict"), Maker(_make_dict, _ignore_state)
    yield ("collections", "Counter"), Maker(_make_counter)
    yield ("collections", "defaultdict"), Maker(_make_default_dict)
    for builtins in ("builtins", "__builtin__"):
        yield (builtins, "set"), Maker(_make_set)
        yield (builtins, "frozenset"), Maker(_make_frozen_set)
        yield (builtins, "bytearray"), Maker(_make_byte_array)
        for factory in ("dict", "list", "int", "float"):
            yield (builtins, factory), _FACTORY
    yield ("_codecs", "encode"), Maker(_make_bytes)
    yield ("numpy", "dtype"), Maker(_make_numpy_dtype, _set_numpy_byte_order)
    for core in ("numpy.core.multiarray", "numpy._core.multiarray"):
        yield (core, "scalar"), Maker(_make_numpy_scalar)
    for module, names in CONFIG_CLASSES.items():
        for name in names:
            yield (module, name), _name_config_class(module, name)


_FACTORY = object()
"""Stands for the default of a defaultdict; cannot be called."""

TORCH_GLOBALS: Mapping[tuple[str, str], Any] = dict(_list_globals())

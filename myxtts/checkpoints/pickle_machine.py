"""An interpreter for pickles that can build values and do nothing else.

Python's own unpickler is a way to run code: it imports what a file names and calls it. This one has no import, no
attribute access and no call of anything a file names. A name is looked up in a closed table that the caller gives;
what comes out is a `Maker`, written in this project, or an inert constant. An opcode that is not in the table below is
refused, so a new one in a later Python is refused too.

Work and memory are bounded whatever the file says. Every step costs, and every value that a maker copies costs again,
because two bytes of pickle can ask for a copy of a list of a million entries. Nothing here recurses: nesting is checked
afterwards, with a stack of its own.
"""

from __future__ import annotations

import pickle  # only for the names of its opcodes
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from myxtts.checkpoints.tensor import LazyTensor

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

"""Pickles made to run code, or to exhaust time and memory, are refused; nothing they name is ever touched."""

import os
import pickle
import pickletools
import struct

import pytest

from myxtts.checkpoints.torch_files import read_torch_file
from myxtts.checkpoints.unpickling import CONFIG_CLASSES, MAX_DEPTH, MAX_TEXT_BYTES, MAX_WORK
from myxtts.errors import ModelFileError, UnsafeModelFileError
from tests.checkpoints.builders import (
    BUILD,
    REDUCE,
    call,
    group,
    integer,
    name,
    storage,
    tensor,
    text,
    zip_program,
    zip_records,
)
from tests.support.processes import run_code


def read(tmp_path, content):
    (tmp_path / "hostile.pth").write_bytes(content)
    return read_torch_file(tmp_path / "hostile.pth")


def read_program(tmp_path, program, storages=None):
    return read(tmp_path, zip_program(program, storages))


class Payload:
    """Pickles as a call."""

    def __init__(self, marker):
        self.command = f"touch {marker}"

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_call_that_would_have_worked_is_refused_by_name_and_not_made(tmp_path, protocol):
    marker = tmp_path / "touched"
    raw = pickle.dumps({"model": {"a": [Payload(marker)]}}, protocol)
    with pytest.raises(UnsafeModelFileError, match="Nothing was executed") as caught:
        read(tmp_path, zip_records({"archive/data.pkl": raw}))
    assert caught.value.global_name == "posix.system"
    assert not marker.exists()
    run_code(f"import pickle\npickle.loads(bytes.fromhex({raw.hex()!r}))\nreport(0)")
    assert marker.exists()


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen"), ("builtins", "eval"),
        ("builtins", "exec"), ("builtins", "getattr"), ("__builtin__", "eval"), ("builtins", "type"), ("builtins", "object"),
        ("builtins", "dict.update"), ("operator", "attrgetter"), ("functools", "partial"), ("importlib", "import_module"),
        ("torch", "load"), ("torch.hub", "load"), ("torch.serialization", "_load"), ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("collections", "OrderedDict.__init__"), ("numpy", "fromfile"), ("TTS.tts.models.xtts", "Xtts"),
        ("TTS.tts.models.xtts", "XttsArgs.__init__"), ("", ""), ("torch", ""), ("torch\x00", "FloatStorage"), ("io", "open"),
        ("builtins", "__import__"), ("collections", "namedtuple"), ("os", "_exit"), ("numpy", "load"),
    ],
)  # fmt: skip
def test_names_outside_the_list_are_refused_in_both_spellings(tmp_path, module, attribute):
    for program in (name(module, attribute), text(module) + text(attribute) + b"\x93"):
        with pytest.raises(UnsafeModelFileError) as caught:
            read_program(tmp_path, program + group(text("x")) + REDUCE)
        assert caught.value.global_name == f"{module}.{attribute}"


def test_nothing_in_the_list_can_be_called_into_something_else(tmp_path):
    # A chain of calls, each on what the one before gave: the usual way around a list of names.
    for made in (call("collections", "OrderedDict"), call("torch", "Size", b"]"), text("x"), b"}", b"]", b"N"):
        with pytest.raises(ModelFileError, match="calls what cannot be called"):
            read_program(tmp_path, made + group(text("x")) + REDUCE)


@pytest.mark.parametrize(
    "program",
    [
        b"]" + b"}" + BUILD,
        text("x") + b"}" + BUILD,
        call("torch", "Size", b"]") + b"}" + BUILD,
        name("torch", "FloatStorage") + b"}" + BUILD,
        name("TTS.tts.models.xtts", "XttsArgs") + b"}" + text("__init__") + text("x") + b"s" + BUILD,
        b"}" + text("k") + tensor("0", 1, (1,), (1,)) + b"}" + BUILD + b"s",
    ],
)
def test_a_state_is_given_only_to_what_has_one(tmp_path, program):
    with pytest.raises(ModelFileError, match="gives a state to what has none"):
        read_program(tmp_path, program, {"0": bytes(4)})


def test_a_state_changes_nothing_but_the_mapping(tmp_path):
    state = b"}(" + text("__class__") + text("x") + text("__setstate__") + text("y") + text("update") + text("z") + b"u"
    record = read_program(tmp_path, name("TTS.tts.models.xtts", "XttsArgs") + b")\x81" + state + BUILD)
    assert record == {"__class__": "x", "__setstate__": "y", "update": "z"}
    assert callable(record.update)


@pytest.mark.parametrize(("module", "attribute"), [(m, a) for m, names in CONFIG_CLASSES.items() for a in names])
def test_every_configuration_class_is_inert(tmp_path, module, attribute):
    record = read_program(tmp_path, name(module, attribute) + b")\x81}" + text("a") + integer(1) + b"s" + BUILD)
    assert record == {"a": 1}
    with pytest.raises(ModelFileError, match="arguments"):
        read_program(tmp_path, name(module, attribute) + group(text("x")) + b"\x81")
    with pytest.raises(ModelFileError, match="gives a state"):
        read_program(tmp_path, name(module, attribute) + b")\x81}" + integer(1) + integer(1) + b"s" + BUILD)


SUPPORTED = set("N\x88\x89KMJ\x8aG\x8cX\x8dCB\x8e(01\x95]ae)\x85\x86\x87t}su\x8f\x90qr\x94hjc\x93R\x81bQ.\x80")


@pytest.mark.parametrize(
    "opcode", [op for op in pickletools.opcodes if op.code not in SUPPORTED], ids=lambda op: op.name
)
def test_every_other_opcode_is_refused(tmp_path, opcode):
    with pytest.raises(ModelFileError, match="uses the pickle opcode"):
        read_program(
            tmp_path, b"(" + text("os") + text("system") + opcode.code.encode("latin1") + b"os\nsystem\n\x01\x01"
        )


@pytest.mark.parametrize(
    "program",
    [
        b"", b"0", b"1", b"t", b"e", b"a", b"s", b"u", b"(", b"((", b"NN", b"h\x00", b"j\x00\x00\x00\x00", b"q\x00", b"R", b"b", b"\x81", b"Q",
        b"\x93", b"}(Nu", b"](Na(t", b"(N0(0t", b"NNs", b"NNa", b"](N\x90", b"X\xff\xff\xff\x7fabc", b"\x8d" + b"\xff" * 8, b"K", b"J\x01",
        b"G\x00", b"\x8a\x09\x00", b"cos", b"X\x02\x00\x00\x00\xff\xfe", b"N\x80\x02", b"NQ", text("storage") + b"Q", b"\x8e" + b"\xff" * 8,
        name("torch", "FloatStorage"), storage("0", 1), name("builtins", "dict"), name("collections", "OrderedDict"), b"\x94", b"]\x94)R",
        b"}(NNNu", b"}(]Nu", b"}]Ns", b"})Ns", b"\x8f(]\x90",
        # Arguments that do not fit.
        group(text("storage"), text("FloatStorage"), text("0"), text("cpu"), integer(1)) + b"Q",
        group(text("module"), name("torch", "FloatStorage"), text("0"), text("cpu"), integer(1)) + b"Q",
        group(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), integer(-1)) + b"Q",
        group(text("storage"), name("torch", "FloatStorage"), integer(0), text("cpu"), integer(1)) + b"Q",
        call("torch._utils", "_rebuild_tensor_v2"),
        # One argument more is torch's own; many more would be copied at every call.
        tensor("0", 1, (1,), (1,)).removesuffix(b"t" + REDUCE) + b"NN" + b"t" + REDUCE,
        call("torch._utils", "_rebuild_tensor_v2", text("x"), integer(0), group(), group(), b"\x89", b"N"),
        call("torch._utils", "_rebuild_tensor_v2", storage("0", 1), text("0"), group(), group(), b"\x89", b"N"),
        call("torch._utils", "_rebuild_tensor_v2", storage("0", 1), integer(0), b"]", group(), b"\x89", b"N"),
        call("torch._utils", "_rebuild_tensor_v2", storage("0", 1), integer(0), group(), group(), b"\x89", b"}NNs"),
        call("torch._utils", "_rebuild_tensor_v3", storage("0", 1), integer(0), group(), group(), b"\x89", b"N", text("uint16")),
        call("torch._utils", "_rebuild_parameter", text("x"), b"\x89", b"N"),
        call("collections", "OrderedDict", b"](" + text("abc") + b"e"),
        call("collections", "OrderedDict", b"](" + group(b"]", b"N") + b"e"),
        call("collections", "Counter", text("abc")),
        call("builtins", "set", b"](]e"),
        call("builtins", "bytearray", integer(2**40)),
        call("_codecs", "encode", text("x"), text("rot13")),
        call("_codecs", "encode", text("\u0100"), text("latin1")),
        call("numpy", "dtype", text("O")),
        call("numpy", "dtype", text("f8")) + b"}" + BUILD,
        call("numpy._core.multiarray", "scalar", call("numpy", "dtype", text("f8")), b"C\x01x"),
        call("torch", "Size", b"](" + text("x") + b"e"),
    ],
)  # fmt: skip
def test_broken_programs_and_arguments_that_do_not_fit_are_refused(tmp_path, program):
    with pytest.raises(ModelFileError):
        read_program(tmp_path, program, {"0": bytes(4)})


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "count"),
    [
        ((5,), (1,), 0, 4), ((4,), (1,), 1, 4), ((2, 2), (3, 1), 0, 4), ((-1,), (1,), 0, 4), ((2,), (-1,), 3, 4), ((2,), (1,), -1, 4),
        ((2**40, 2**40), (0, 0), 0, 4), ((2**62,), (2**62,), 0, 4), ((1000,), (0,), 0, 4), ((2,), (1, 1), 0, 4),
        ((1,) * 33, (1,) * 33, 0, 4), ((4,), (1,), 0, 5), ((4,), (1,), 0, 2**62), ((0,), (1,), 5, 4), ((0, 2**62), (1, 1), 0, 4),
    ],
)  # fmt: skip
def test_a_tensor_outside_its_storage_is_refused(tmp_path, shape, strides, offset, count):
    with pytest.raises(ModelFileError, match=r"describes a tensor|fewer than the"):
        read_program(tmp_path, tensor("0", count, shape, strides, offset), {"0": bytes(16)})


@pytest.mark.parametrize("key", ["1", "../data.pkl", "/etc/passwd", "0/../0", "", "\0"])
def test_a_storage_that_is_not_a_record_is_refused(tmp_path, key):
    with pytest.raises(ModelFileError, match="lacks the record"):
        read_program(tmp_path, tensor(key, 1, (1,), (1,)), {"0": bytes(4)})


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 150_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"", b"\x85"), (b"(", b"t"), (b"]", b"a"), (b"}N", b"s")])
def test_deep_nesting_is_refused_without_recursion(tmp_path, opening, closing, depth):
    with pytest.raises(ModelFileError, match=r"nested more than|more than .* steps"):
        read_program(tmp_path, opening * depth + b"N" + closing * depth)
    assert repr(read_program(tmp_path, b"]" * MAX_DEPTH + b"N" + b"a" * MAX_DEPTH)).count("[") == MAX_DEPTH


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"]q\x00h\x00a", "nested more than"),
        # 40 levels of [x, x]: a few hundred bytes, a million million values for whoever walks over it.
        (b"(]q\x00" + b"".join(b"](h%ch%ceq%c" % (level, level, level + 1) for level in range(40)) + b"t", r"more than .* values"),
        (b"N0" * (17 * 2**20), "bytes of structure"),
        (text("x" * (MAX_TEXT_BYTES + 1)), "holds a text of"),
        (b"\x8a\xff" + b"\x7f" * 255, "beyond 64 bits"),
    ],
    ids=["itself", "doubling", "structure", "text", "number"],
)  # fmt: skip
def test_what_is_without_end_or_beyond_a_limit_is_refused(tmp_path, program, message):
    with pytest.raises(ModelFileError, match=message):
        read_program(tmp_path, program)


def list_hungry_programs():
    """What each of some pickles of a few MB multiplies -> the pickle, without its first two and its last byte."""
    entries = b"".join(text(f"{index:06}") + b"N" for index in range(MAX_WORK // 20))
    numbers = b"K\x01" * (MAX_WORK // 10)
    return {
        "sets": b"(" + b"\x8f" * 10 * MAX_WORK + b"t",
        "dictionaries": b"(" + b"}" * 10 * MAX_WORK + b"t",
        "groups": b"(" * 10 * MAX_WORK,
        "calls": b"(" + name("collections", "OrderedDict") + b"q\x00" + b"h\x00)R" * MAX_WORK + b"t",
        "memory": b"N" + b"".join(b"r" + struct.pack("<I", index) for index in range(MAX_WORK + 5)),
        # The following copy one long value again and again, for a few bytes each.
        "lists": b"](" + numbers + b"eq\x000" + name("builtins", "set") + b"q\x010(" + b"h\x01h\x00\x85R" * 1000 + b"t",
        "pairs": b"](" + b"NN\x86" * (MAX_WORK // 10) + b"eq\x000" + name("collections", "OrderedDict") + b"q\x010("
        + b"h\x01h\x00\x85R" * 1000 + b"t",
        "text": text("x" * MAX_TEXT_BYTES) + b"q\x000" + text("latin1") + b"q\x010" + name("_codecs", "encode") + b"q\x020("
        + b"h\x02h\x00h\x01\x86R" * 5000 + b"t",
        "arguments": b"(" + text("f8") + numbers + b"tq\x000" + name("numpy", "dtype") + b"q\x010(" + b"h\x01h\x00R" * 1000 + b"t",
        "counters": b"}(" + entries + b"uq\x000" + name("collections", "Counter") + b"q\x010(" + b"h\x01h\x00\x85R" * 1000 + b"t",
        "states": b"}(" + entries + b"uq\x000(" + (name("TTS.tts.models.xtts", "XttsArgs") + b")\x81h\x00b") * 1000 + b"t",
    }  # fmt: skip


def test_work_and_memory_are_bounded(tmp_path):
    # In a process that has 1 GiB in all: what would take more ends there as a MemoryError, which is no ModelFileError.
    results = run_code(f"""
import resource, time
from pathlib import Path
from myxtts.errors import ModelFileError
from myxtts.checkpoints.torch_files import read_torch_file
from tests.checkpoints.builders import zip_program
from tests.checkpoints.test_hostile_pickles import list_hungry_programs

programs = {{label: zip_program(program) for label, program in list_hungry_programs().items()}}
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
results = {{}}
for label, content in programs.items():
    path = Path({str(tmp_path)!r}, "hungry.pth")
    path.write_bytes(content)
    started = time.process_time()
    try:
        read_torch_file(path)
    except ModelFileError as error:
        results[label] = [str(error).partition(": ")[2], time.process_time() - started]
report(results)
""", environ=os.environ | {"OPENBLAS_NUM_THREADS": "1"})  # fmt: skip
    assert results.keys() == list_hungry_programs().keys()
    for label, (message, seconds) in results.items():
        assert f"takes more than {MAX_WORK} steps" in message, label
        assert seconds < 10, label

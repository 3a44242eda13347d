"""Model files and folders that lie about their sizes, hold what no model holds, or ask for more memory than they have bytes.

Run as a program in a process of its own, it tries each on a command and prints what came of it:
`python -m tests.checkpoints.hostile_models {import|synthesize} FOLDER`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import resource
import shutil
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.tensors import encode_safetensors
from myxtts.config import XTTSConfig
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import OPTIONAL, Weight, list_dvae_weights, list_xtts_weights
from tests.checkpoints.builders import tensor, text, write_torch_file, zip_program
from tests.support.shared_files import ASSETS

VOCABULARY = ASSETS / "tiny_vocab.json"
CONFIG = XTTSConfig(
    model={
        "size": "tiny", "gpt_layers": 2, "gpt_width": 64, "gpt_heads": 2, "dvae_width": 16, "decoder_width": 32,
        "audio_codes": 30, "text_tokens": 188, "max_text_tokens": 40, "max_audio_tokens": 50,
    },
    data={"max_text_length": 40, "max_clip_seconds": 2},
)  # fmt: skip
SPARE_BYTES = 1 << 30
"""What a command may take beyond what it has when all is imported."""
SPARSE_BYTES = 3 << 30
MOST_SAID = 4000
"""Characters: a message that goes on longer is not read."""


def draw_tensors(weights: list[Weight], seed: int) -> dict[str, np.ndarray]:
    """Random tensors of these shapes, without the constants that an import leaves out."""
    rng = np.random.default_rng(seed)
    return {
        weight.key: 0.02 * rng.standard_normal(weight.shape, dtype=np.float32)
        for weight in weights
        if not OPTIONAL.search(weight.key)
    }


def draw_model() -> dict[str, np.ndarray]:
    return {**draw_tensors(list_xtts_weights(read_sizes(CONFIG.model).gpt), 1), "mel_stats": np.ones(80, np.float32)}


def draw_dvae() -> dict[str, np.ndarray]:
    return draw_tensors(list_dvae_weights(read_sizes(CONFIG.model).dvae), 2)


def write_whole_model(target: Path, **more: Any) -> None:
    """A model directory with every part."""
    sizes = read_sizes(CONFIG.model)
    model = draw_tensors(list_xtts_weights(sizes.gpt, sizes.decoder, sizes.speaker), 1)
    vocabulary = VOCABULARY.read_text(encoding="utf-8")
    write_model_directory(target, config=CONFIG, model=model, dvae=draw_dvae(), vocabulary=vocabulary, **more)


def draw_voice() -> dict[str, np.ndarray]:
    return {"gpt_cond_latent": np.ones((1, 32, 64), np.float32), "speaker_embedding": np.ones((1, 512, 1), np.float32)}


def change_weights(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Sets of tensors that are those of a model but for one thing."""
    name = "gpt.final_norm.bias"
    for label, value in {"nan": np.nan, "inf": np.inf, "1e38": 1e38, "-1e38": -1e38}.items():
        bad = arrays[name].copy()
        bad[-1] = value
        yield label, {**arrays, name: bad}
    yield "half infinite", {**arrays, name: np.full(64, np.inf, np.float16)}
    yield "double too large", {**arrays, name: np.full(64, 1e300)}
    for dtype in (np.bool_, np.int8, np.int64):
        yield f"as {np.dtype(dtype)}", {**arrays, name: np.zeros(64, dtype)}
    yield "another rank", {**arrays, name: np.zeros((64, 1), np.float32)}
    yield "empty", {**arrays, name: np.zeros((0, 2**30), np.float32)}
    yield "scalar", {**arrays, "gpt.text_embedding.weight": np.zeros((), np.float32)}
    yield "nothing", {"gpt.x": np.zeros(0, np.float32)}


def list_block_names() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Models with a block whose number is not to be believed."""
    block = np.ones(64, np.float32)
    for label in ("1000000000", "30000000", "9" * 5000, "999999", "٣", "-1", "02"):
        yield f"block {label[:12]}", {**draw_model(), f"gpt.gpt.h.{label}.ln_1.weight": block}
        yield f"only block {label[:12]}", {f"gpt.gpt.h.{label}.ln_1.weight": block}


def write(path: Path, content: Any) -> str:
    """Writes bytes as they are, anything else as safetensors or as torch does. Returns the path, for a command line."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".safetensors":
        path.write_bytes(b"".join(encode_safetensors(content)))
    else:
        write_torch_file(path, content)
    return str(path)


def pack_safetensors(header: Any, body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def entry(shape: list[Any], start: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def list_safetensors() -> dict[str, bytes]:
    """Headers that contradict themselves or the bytes behind them."""
    name, body = "gpt.final_norm.bias", bytes(256)
    good = entry([64], 0, 256)
    twice = json.dumps({name: good})[:-1] + f", {json.dumps(name)}: {json.dumps(good)}" + "}"
    return {
        "nothing": b"",
        "length beyond the file": struct.pack("<Q", 2**62) + b"{}",
        "deep": pack_safetensors(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "metadata as a tensor": pack_safetensors({"__metadata__": good}, body),
        "same name twice": pack_safetensors(twice.encode(), body),
        "overlap": pack_safetensors({name: good, "gpt.other": entry([64], 0, 256)}, body),
        "hole": pack_safetensors({name: entry([64], 64, 320)}, bytes(320)),
        "cut short": pack_safetensors({name: good}, bytes(255)),
        "dtype unknown": pack_safetensors({name: entry([64], 0, 256, "F3")}, body),
        "dtype of no use": pack_safetensors({name: entry([256], 0, 256, "F8_E4M3")}, body),
        "negative": pack_safetensors({name: entry([-64], 0, 256)}, body),
        "5,000 digits": pack_safetensors(
            b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'
        ),
        "2**64 elements": pack_safetensors({name: entry([2**32, 2**32], 0, 256)}, body),
        "empty of 2**31 x 2**31 x 2**31": pack_safetensors({name: entry([2**31, 2**31, 2**31, 0], 0, 0)}),
        "zero first": pack_safetensors({name: entry([0, 2**62, 2**62], 0, 0)}),
        "100 dimensions": pack_safetensors({name: entry([1] * 100, 0, 4)}, bytes(4)),
        "200,000 empty tensors": pack_safetensors({f"gpt.{index}": entry([0], 0, 0) for index in range(200_000)}),
        "metadata of 40 MB": pack_safetensors({"__metadata__": {"a": "x" * 40_000_000}, name: good}, body),
        "escapes": pack_safetensors({"gpt.\x1b[31m\x00": good}, body),
    }  # fmt: skip


def list_vocabularies() -> Iterator[tuple[str, Any]]:
    """Vocabularies whose parts take memory, panic in the library, or are of another kind."""
    # Whatever is not as XTTS has it is refused in one way, so that a key has few values here.
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    merges = [[5], [["a", "b", "c"]], [["", ""]], ["a b", ["a", "b"]], None, [["x" * 100, "y"]], [["\ud800", "a"]]]
    tables: Mapping[tuple[Any, ...], Mapping[str, list[Any]]] = {
        (): {
            "padding": [padding, 5],
            "truncation": [{"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5}],
            "normalizer": [{"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}, "NFC", []],
            "pre_tokenizer": [{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}, 7],
            "post_processor": [{"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}],
            "decoder": [{"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}],
            "version": ["2.0", 1.0, None],
            "surprise": [1],
        },
        ("model",): {
            "type": ["WordPiece"],
            "dropout": [0.5],
            "unk_token": ["nowhere", {}],
            "merges": merges,
            "vocab": [{}, [], {"a": -1}, {"a": 2**40}, {"a": True}, {"a": 1.5}, {"a": 10**4000}],
            "surprise": [1],
        },
        ("added_tokens", -1): {"id": [-1, 2**40, "3"], "content": ["", "x" * 100_000, "\ud800", 5], "special": [1]},
    }
    whole = VOCABULARY.read_text(encoding="utf-8")
    for where, table in tables.items():
        for part, index, value in ((part, *each) for part, values in table.items() for each in enumerate(values)):
            document = target = json.loads(whole)
            for step in where:
                target = target[step]
            target[part] = value
            yield f"{'.'.join(map(str, (*where, part)))} {index}", document
    for label, token, number in (("a surrogate", "\ud800", 187), ("nothing", "", 187), ("a high id", "zzz", 999_999)):
        document = json.loads(whole)
        document["model"]["vocab"][token] = number
        yield f"vocab of {label}", document
    for label, times in {"many added": 10_000, "added twice": 1}.items():
        document = json.loads(whole)
        document["added_tokens"] += document["added_tokens"][:1] * times
        yield label, document
    yield "a list", []
    yield "a number", 5


def list_imports(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Labels and words behind `myxtts import` for every hostile file, written into a folder."""
    (folder / "good").mkdir()
    good, anything = folder / "good" / "model.pth", ("--allow-missing", "--allow-unexpected")
    write(good, {"model": draw_model()})
    yield "good", [str(good)]
    for label, arrays in (*change_weights(draw_model()), *list_block_names()):
        path = write(folder / "model.pth", {"model": arrays})
        yield f"pth: {label}", [path]
        yield f"pth, all allowed: {label}", [path, *anything]
        yield f"safetensors: {label}", [write(folder / "model.safetensors", arrays), "--allow-unexpected"]
    for name in ("__metadata__", "gpt.\ud7ff", "", "/", "gpt.\x00", "x" * 10_000):
        path = write(folder / "model.pth", {"model": {**draw_model(), name: np.zeros(3, np.float32)}})
        yield f"name {name[:12]!r}", [path, "--allow-unexpected"]
    for label, content in list_safetensors().items():
        path = write(folder / "model.safetensors", content)
        yield f"header: {label}", [path, *anything]
        yield f"header of the DVAE: {label}", [str(good), "--dvae", path]
    for value in (-3, 0, 2.5, 10**6, 10**30, True, "16", [16], None, float("inf"), float("nan")):
        config = json.dumps({"model_args": {"gpt_n_heads": value, "gpt_max_prompt_tokens": value}})
        yield f"heads {value!r}", [write(folder / "model.pth", {"model": draw_model(), "config": config})]
    for label, config in list_configs():
        yield f"config: {label}", [write(folder / "model.pth", pack_config(config)), *anything]
    # One storage of 1 MB, shown as every weight of a network.
    program = b"".join(text(f"gpt.{index}") + tensor("0", 2**18, (2**18,), (1,)) for index in range(2000))
    content = zip_program(b"}(" + program + b"u", {"0": bytes(2**20)})
    yield "shared storage", [write(folder / "model.pth", content), *anything]
    statistics = {
        "nan": np.full(80, np.nan, np.float32), "79": np.ones(79, np.float32), "integers": np.ones(80, np.int64),
        "empty": np.zeros(0, np.float32), "matrix": np.ones((80, 1), np.float32),
    }  # fmt: skip
    codecs = {
        "nan": {**draw_dvae(), "codebook.embed": np.full((16, 30), np.nan, np.float32)},
        "other codes": {**draw_dvae(), "codebook.embed": np.ones((16, 2**20), np.float32)},
        "half": {"codebook.embed": np.ones((16, 30), np.float32)},
    }
    vocabularies = ((label, json.dumps(document).encode()) for label, document in list_vocabularies())
    for part, flag, name, contents in (
        ("speakers", "--speakers", "speakers.pth", list_speakers()),
        ("mel statistics", "--mel-stats", "mel_stats.pth", statistics.items()),
        ("DVAE", "--dvae", "dvae.pth", codecs.items()),
        ("vocabulary", "--vocab", "vocab.json", vocabularies),
    ):
        for label, content in contents:
            yield f"{part}: {label}", [str(good), flag, write(folder / name, content)]
    write_sparse_speakers(folder / "sparse.safetensors")
    yield "speakers: sparse", [str(good), "--speakers", str(folder / "sparse.safetensors")]


def pack_config(config: Any) -> bytes:
    """A torch file with a tensor and this configuration, whose shared values stay shared."""
    model = b"}(" + text("gpt.unknown") + tensor("0", 64, (64,), (1,)) + b"u"
    program = b"}(" + text("model") + model + text("config") + pickle.dumps(config, 2)[2:-1] + b"u"
    return zip_program(program, {"0": bytes(256)})


def list_configs() -> Iterator[tuple[str, Any]]:
    """Configurations in a torch file that JSON cannot hold, or that grow when they are written."""
    long = "x" * 2**20
    deep: Any = 1
    for _ in range(60):
        deep = {"a": deep}
    yield "a long text often", {"model_args": {}, "more": {str(index): long for index in range(3000)}}
    yield "a long text often in a list", {"more": [long] * 3000}
    yield "bytes as keys", {"more": {b"a": 1}}
    yield "deep", deep
    yield "deep JSON", '{"a":' * 900 + "1" + "}" * 900
    yield "deeper JSON", '{"a":' * 100_000 + "1" + "}" * 100_000
    yield "endless", {"max_audio_len": float("inf"), "more": [float("nan")]}
    yield "5,000 digits", '{"a": ' + "9" * 5000 + "}"
    yield "arguments a list", {"model_args": [1]}
    yield "a number", 5


def list_speakers() -> Iterator[tuple[str, Any]]:
    """Files of voices that are none."""
    voice = draw_voice()
    for label, changes in {
        "long prompt": {"gpt_cond_latent": np.ones((1, 2**16, 64), np.float32)},
        "two prompts": {"gpt_cond_latent": np.ones((3, 32, 64), np.float32)},
        "another width": {"gpt_cond_latent": np.ones((1, 32, 65), np.float32)},
        "flat": {"gpt_cond_latent": np.ones(64, np.float32)},
        "scalar": {"gpt_cond_latent": np.ones((), np.float32)},
        "nan": {"gpt_cond_latent": np.full((1, 32, 64), np.nan, np.float32)},
        "integers": {"speaker_embedding": np.ones((1, 512, 1), np.int64)},
        "wide embedding": {"speaker_embedding": np.ones((1, 2**20, 1), np.float32)},
        "no embedding": {"speaker_embedding": np.ones((1, 0, 1), np.float32)},
    }.items():
        yield label, {"Ana": {**voice, **changes}}
    yield "name a number", {1: voice, "1": voice}
    yield "no name", {"": voice}
    # Views of one storage: 500 voices of 1 MB each in a file of 1 MB.
    parts = text("gpt_cond_latent") + tensor("0", 2**18, (1, 2**12, 64), (2**18, 64, 1))
    parts += text("speaker_embedding") + tensor("0", 2**18, (1, 512, 1), (512, 1, 1))
    program = b"".join(text(str(index)) + b"}(" + parts + b"u" for index in range(500))
    yield "shared storage", zip_program(b"}(" + program + b"u", {"0": bytes(2**20)})
    for shape in ((2**31, 2**31, 0), (0, 2**31, 2**31, 2**31), (0, 2**62), (0, *([2] * 60))):
        parts = text("gpt_cond_latent") + tensor("0", 1, shape, (1,) * len(shape))
        parts += text("speaker_embedding") + tensor("0", 1, (1,), (1,))
        yield f"empty {shape[:4]}", zip_program(b"}(" + text("Ana") + b"}(" + parts + b"uu", {"0": bytes(4)})


def write_sparse_speakers(path: Path) -> None:
    """Voices of 3 GB, of which the disk holds a few bytes. With a name by which `read_coqui_file` takes them for a model."""
    count = SPARSE_BYTES // 4 // 64
    with path.open("wb") as file:
        file.write(pack_safetensors({"gpt.text_embedding.weight": entry([count, 64], 0, count * 256)}))
        file.truncate(file.tell() + count * 256)


def seal(folder: Path) -> None:
    """Makes the manifest true of the files again."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    contents = {name: (folder / name).read_bytes() for name in manifest["files"]}
    manifest["files"] = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    path.write_text(json.dumps(manifest))


def list_models(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Labels and words behind `myxtts synthesize` for every hostile model directory."""
    good, bad = folder / "good", folder / "bad"
    parts = {"vocabulary": VOCABULARY.read_text(encoding="utf-8"), "speakers": {"Ana": draw_voice()}}
    write_model_directory(good, config=CONFIG, model=draw_model(), dvae=draw_dvae(), **parts)
    config = (good / "config.yaml").read_text()

    def speak(model: Path, voice: str) -> list[str]:
        return ["--checkpoint", str(model), "--voice", voice, "--text", "hello", "--out", str(folder / "out.wav")]

    def change(name: str, content: Any, voice: str = "Ana") -> list[str]:
        """The words for a copy of the good model with another file of that name."""
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        write(bad / name, content)
        seal(bad)
        return speak(bad, voice)

    for line in ("text_tokens: 1000000", "gpt_width: 16384", "gpt_layers: 256", "max_text_tokens: 16384",
                 "max_audio_tokens: 16384", "audio_codes: 32767", "dvae_width: 16384", "gpt_layers: 1", "gpt_layers: -1",
                 "gpt_width: " + "9" * 5000, "gpt_width: true", "gpt_width: .inf", "gpt_width: 64.5", "gpt_width: [64]"):  # fmt: skip
        changed, count = re.subn(rf"(?m)^  {line.partition(':')[0]}:.*$", f"  {line}", config)
        assert count == 1, line
        yield f"config {line[:30]}", change("config.yaml", changed.encode())
    for label, arrays in change_weights(draw_model()):
        yield f"weights: {label}", change("model.safetensors", arrays)
    for label, content in list_safetensors().items():
        # The other files are opened in the same way.
        yield f"voices, header: {label}", change("speakers.safetensors", content)
    for label, content in list_speakers():
        if isinstance(content, bytes) or label in ("no embedding", "name a number"):
            continue
        ((name, voice),) = content.items()
        arrays = {f"{part}/{name}": each for part, each in voice.items()}
        yield f"voices: {label}", change("speakers.safetensors", arrays, name)
        if name:
            yield f"voice: {label}", speak(good, write(folder / "voice.safetensors", voice))
    write_sparse_speakers(folder / "voice.safetensors")
    yield "voice: sparse", speak(good, str(folder / "voice.safetensors"))


def count_mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def try_all(command: str, folder: Path) -> None:
    """Prints a line of JSON for each case: its label, the exit code or None for a traceback, and what was said."""
    from myxtts.cli.main import main

    cases = {"import": list_imports, "synthesize": list_models}[command](folder)
    if command == "synthesize":
        import tensorflow as tf

        tf.constant(1)  # starts its threads, each of which maps memory
        import myxtts.inference.synthesizer
    else:
        import myxtts.checkpoints.coqui  # noqa: F401
    limit = count_mapped_bytes() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number, (label, words) in enumerate(cases):
        said = io.StringIO()
        code: int | None = None
        extra = ["--out", str(folder / f"out-{number}")] if command == "import" else []
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            # Whatever is not turned into a message is what is looked for.
            try:
                code = main([command, *words, *extra])
                if extra and code == 0:
                    read_model_directory(extra[1])
            except BaseException:  # noqa: BLE001  a panic of a library is no Exception
                traceback.print_exc()
        shutil.rmtree(folder / f"out-{number}", ignore_errors=True)
        print(json.dumps([label, code, said.getvalue()[:MOST_SAID]]), flush=True)


if __name__ == "__main__":
    try_all(sys.argv[1], Path(sys.argv[2]))

"""The engine for CPUs beside TensorFlow, whose network it derives."""

import dataclasses
import importlib.util
import logging
import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from onnxruntime.capi import onnxruntime_pybind11_state

from myxtts.checkpoints.model_directory import INT8_NAME, MODEL_NAME, read_model_directory
from myxtts.checkpoints.store import BASE_FOLDER
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.inference import engine as engine_module
from myxtts.inference.engine import DecodingEngine, EngineError, KeptFile, Step, quantise, read_weights
from myxtts.inference.engine_rows import EngineGenerator, EngineRows, open_decoders
from myxtts.inference.generation import CodeGenerator, Row
from myxtts.inference.rows import TensorRows
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.inference.voices import Voice
from myxtts.models.attention import make_causal_bias
from myxtts.models.gpt import frame_audio
from tests.inference.builders import build_reference_xtts, write_small_model

TEXTS = [[5, 9, 30, 7], [11, 4, 80, 81, 20, 33, 6, 19, 2], [3, 60]]


@pytest.fixture(scope="module")
def xtts():
    return build_reference_xtts()


@pytest.fixture(scope="module")
def engine(xtts):
    """With products in float32."""
    return DecodingEngine(xtts.gpt, read_weights(xtts.gpt))


@pytest.fixture(scope="module")
def voice(xtts):
    prompt = np.random.default_rng(0).standard_normal((32, xtts.gpt.size.width)).astype(np.float32)
    return Voice(prompt, np.zeros(xtts.decoder.size.speaker_width, np.float32))


def make_int8(gpt):
    weights = read_weights(gpt)
    return DecodingEngine(gpt, weights | quantise(weights))


def run_to_each_depth(xtts, voice, weights):
    """After no block, the first, the first two ...: state and logits of the engine, and of TensorFlow."""
    gpt = xtts.gpt
    text = gpt.frame_prefix_text(tf.constant([TEXTS[1]]))
    x_1QC = gpt.embed_prefix(tf.constant(voice.prompt_PC[None]), text.inputs_BL)
    x_NC, bias = x_1QC[0], make_causal_bias(tf.ones(x_1QC.shape[:2], tf.bool))
    for index, block in enumerate([None, *gpt.blocks]):
        x_NC = block(x_NC, bias) if block else x_NC
        # As if the network ended here.
        part = SimpleNamespace(size=dataclasses.replace(gpt.size, layers=index))
        engine = DecodingEngine(part, weights)
        last = np.array([len(x_NC) - 1])
        logits_1V, found_1C = Step(engine, engine.open_cache(2), 1, 2, len(x_NC)).run(x_1QC.numpy(), last)
        state_1C = gpt.finish(x_NC[-1:])
        yield (found_1C, logits_1V), (state_1C.numpy(), gpt.audio_head(state_1C).numpy())


def test_after_each_block_there_is_what_is_in_tensorflow(xtts, voice):
    for found, true in run_to_each_depth(xtts, voice, read_weights(xtts.gpt)):
        for mine, theirs in zip(found, true, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_after_each_block_int8_is_as_near_as_8_bits_are(xtts, voice):
    weights = read_weights(xtts.gpt)
    steps = run_to_each_depth(xtts, voice, weights | quantise(weights))
    errors = [
        [np.linalg.norm(mine - theirs) / np.linalg.norm(theirs) for mine, theirs in zip(*step, strict=True)]
        for step in steps
    ]
    for depth, (state, logits) in enumerate(errors):
        # Where nothing is multiplied nothing is rounded; each block and the head add a hundredth.
        assert state <= 0.015 * depth + 1e-5, (depth, errors)
        assert logits <= 0.015 * (depth + 1), (depth, errors)


@pytest.mark.parametrize("settings", [SpeechSettings(repetition_penalty=2.0), SpeechSettings(greedy=True, max_codes=9)])
def test_codes_and_latents_are_tensorflows(xtts, engine, voice, settings):
    rows = [Row(tuple(ids), voice, (4, index)) for index, ids in enumerate(TEXTS)]
    true = CodeGenerator(xtts.gpt).generate(rows, settings)
    fast = EngineGenerator(engine, usual_penalty=5.0)
    for said, expected, row in zip(fast.generate(rows, settings), true, rows, strict=True):
        *parts, streamed = fast.stream(row, settings, 4)
        np.testing.assert_array_equal(said.codes_M, expected.codes_M)
        np.testing.assert_array_equal(streamed.codes_M, expected.codes_M)
        np.testing.assert_allclose(said.latents_MC, expected.latents_MC, atol=1e-3)
        assert (said.stopped, said.is_last, streamed.is_last) == (expected.stopped, True, True)
        assert [len(part.codes_M) for part in parts] == [*range(4, len(expected.codes_M), 4)]


def test_rows_come_and_go_without_a_trace_in_others(xtts, voice):
    engine = make_int8(xtts.gpt)

    def follow(rows, number, codes):
        return [rows.step([number], [code])[0][0] for code in codes]

    alone = EngineRows(engine, 1)
    alone.start(0, voice.prompt_PC, TEXTS[1])
    expected = follow(alone, 0, [3, 8, 2, 21])
    together = EngineRows(engine, 3)
    for number, ids in zip((2, 0, 1), (TEXTS[0], TEXTS[2], TEXTS[1]), strict=True):
        together.start(number, voice.prompt_PC, ids)
    first = together.step([2, 1], [5, 3])[0][1]
    together.release(2)
    second = follow(together, 1, [8])
    together.start(2, voice.prompt_PC, TEXTS[0])
    together.release(0)
    np.testing.assert_allclose([first, *second, *follow(together, 1, [2, 21])], expected, atol=1e-4)


def test_int8_would_say_the_same_codes_as_float32():
    """On the voice that comes with the package, led through what float32 says."""
    synthesizer = load_synthesizer("base", engine="float32")
    gpt, voice = synthesizer.xtts.gpt, synthesizer.find_voice()
    lines = (demo_corpus_path() / "metadata.csv").read_text(encoding="utf-8").splitlines()[1:17]
    texts = [line.split("|")[1] for line in lines]
    rows = [Row(tuple(synthesizer.tokenizer.encode(text, "en")), voice, (1, index)) for index, text in enumerate(texts)]
    settings, fast, equal = SpeechSettings(max_codes=120), EngineRows(make_int8(gpt), 1), list[bool]()
    for row, said in zip(rows, CodeGenerator(gpt, usual_penalty=1.0).generate(rows, settings), strict=True):
        text, codes_1M = gpt.frame_prefix_text(tf.constant([row.ids])), tf.constant(said.codes_M[None])
        audio = frame_audio(codes_1M, tf.shape(codes_1M)[1:], gpt.size)
        _, true_1MV = gpt.compute_logits(tf.constant(voice.prompt_PC[None]), text, audio)
        chosen = [int(fast.start(0, voice.prompt_PC, row.ids)[0].argmax())]
        chosen += [int(fast.step([0], [code])[0].argmax()) for code in said.codes_M[:-1]]
        fast.release(0)
        equal += list(chosen == true_1MV.numpy()[0, : len(chosen)].argmax(-1))
    print(f"the same in {np.mean(equal):.1%} of {len(equal)} places")
    assert len(equal) > 500
    assert np.mean(equal) >= 0.97


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(engine_module, "KEPT_WEIGHTS", 1000)
    return write_small_model(tmp_path / "model")


def load(folder):
    return load_synthesizer(folder, engine="int8")


def test_kernels_are_turned_once_and_kept_beside_the_model(folder, monkeypatch):
    with monkeypatch.context() as usual:
        usual.setattr(engine_module, "KEPT_WEIGHTS", 10**6)
        load(folder)
    assert not (folder / INT8_NAME).exists()
    load(folder)
    before = (folder / INT8_NAME).read_bytes()
    monkeypatch.setattr(engine_module, "quantise", lambda weights: pytest.fail("made again"))
    load(folder)
    assert (folder / INT8_NAME).read_bytes() == before
    assert not (folder.parent / "caches").exists()


@pytest.mark.parametrize("wrong", ["damaged", "cut", "foreign", "of another shape"])
def test_a_file_that_is_not_this_models_is_made_again(folder, wrong, caplog):
    load(folder)
    path = folder / INT8_NAME
    right = path.read_bytes()
    changed = bytearray(right)
    changed[-1000] ^= 1
    directory = read_model_directory(folder)
    if wrong == "foreign":
        # Whole, of the same shapes, but made of other weights.
        directory.manifest.files[MODEL_NAME] = directory.manifest.files["config.yaml"]
        weights = read_weights(load_synthesizer(folder, engine="float32").xtts.gpt)
        path.unlink()
        KeptFile(directory).read({name: -array for name, array in weights.items()})
        changed = path.read_bytes()
    elif wrong == "of another shape":
        changed = (folder / MODEL_NAME).read_bytes()
    path.write_bytes(right[:-5] if wrong == "cut" else changed)
    assert path.read_bytes() != right
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert "It is made again." in caplog.text
    assert path.read_bytes() == right


def test_a_link_in_a_model_is_replaced_and_not_what_it_leads_to(folder, tmp_path):
    precious = tmp_path / "notes.txt"
    precious.write_text("mine")
    (folder / INT8_NAME).symlink_to(precious)
    load(folder)
    assert precious.read_text() == "mine"
    assert not (folder / INT8_NAME).is_symlink()


def test_where_a_model_cannot_be_written_to_the_users_cache_is(folder, monkeypatch):
    write = engine_module.open_file_atomically

    def refuse(path, **how):
        if path.parent == folder:
            raise engine_module.WriteError(path, "read-only")
        return write(path, **how)

    monkeypatch.setattr(engine_module, "open_file_atomically", refuse)
    load(folder)
    assert not (folder / INT8_NAME).exists()
    assert len([*(folder.parent / "caches" / "myxtts").iterdir()]) == 1
    assert all(place.parent != BASE_FOLDER for place in KeptFile(read_model_directory(BASE_FOLDER)).places)


def test_a_cache_that_may_not_be_looked_into_is_none(folder, monkeypatch):
    look = os.stat

    def refuse(path, **how):
        if "caches" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **how)

    monkeypatch.setattr(os, "stat", refuse)
    assert load(folder).engine_note.startswith("Engine: int8 by onnxruntime.")


def test_which_engine_decodes_is_said(folder, xtts, monkeypatch):
    assert load_synthesizer(folder).engine_note.startswith("Engine: int8 by onnxruntime.")
    assert load_synthesizer(folder, engine="float32").engine_note == "Engine: float32 by TensorFlow."
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else found(name))
    generator, _, note = open_decoders(xtts.gpt, "auto", usual_penalty=1.0)
    assert isinstance(generator, CodeGenerator)
    assert "pip install -c constraints.txt '.[fast]'" in note
    with pytest.raises(EngineError, match=r"onnx is not installed: pip install -c constraints\.txt '\.\[fast\]'"):
        open_decoders(xtts.gpt, "int8", usual_penalty=1.0)


def test_weights_that_do_not_compute_what_the_model_does_are_refused(xtts):
    weights = read_weights(xtts.gpt)
    for scales in ("audio_head.scales", "0.qkv.scales"):
        narrow = quantise(weights)
        narrow[scales] = narrow[scales] * 3
        assert "away from what float32 gives" in DecodingEngine(xtts.gpt, weights | narrow).find_problem()
    file = SimpleNamespace(read=lambda weights: narrow, mend=lambda narrow, weights: None)
    generator, _, note = open_decoders(xtts.gpt, "auto", usual_penalty=1.0, file=file)
    assert isinstance(generator, CodeGenerator)
    assert "away from what float32 gives" in note
    with pytest.raises(EngineError, match="away from what float32 gives"):
        open_decoders(xtts.gpt, "int8", usual_penalty=1.0, file=file)


def test_a_file_that_is_sealed_but_wrong_is_made_again(folder, monkeypatch, caplog):
    load(folder)
    path = folder / INT8_NAME
    right = path.read_bytes()
    path.unlink()
    with monkeypatch.context() as usual:
        # As another version might have turned them.
        usual.setattr(
            engine_module, "quantise", lambda weights: {name: each * 3 for name, each in quantise(weights).items()}
        )
        KeptFile(read_model_directory(folder)).read(read_weights(load_synthesizer(folder, engine="float32").xtts.gpt))
    assert path.read_bytes() != right
    assert load_synthesizer(folder).engine_note.startswith("Engine: int8 by onnxruntime.")
    assert "They are made again." in caplog.text
    assert path.read_bytes() == right


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("open_session", onnxruntime_pybind11_state.NotImplemented("no kernel\nfor it")),
        ("open_session", onnxruntime_pybind11_state.InvalidGraph("an operation is unknown")),
        ("build_graph", ImportError("of another version")),
        ("Step", RuntimeError("illegal instruction")),
        ("Step", MemoryError("bad allocation")),
    ],
)
def test_where_onnxruntime_cannot_run_the_model_tensorflow_speaks(xtts, monkeypatch, place, error):
    def fail(*given):
        raise error

    monkeypatch.setattr(engine_module, place, fail)
    generator, rows, note = open_decoders(xtts.gpt, "auto", usual_penalty=1.0)
    assert isinstance(generator, CodeGenerator)
    assert isinstance(rows, TensorRows)
    told = f"onnxruntime cannot run the model here: {type(error).__name__}: {str(error).splitlines()[0]}"
    assert note == f"Engine: float32 by TensorFlow. int8 is several times as fast on a CPU, but {told}"
    with pytest.raises(EngineError, match=str(error).splitlines()[0]):
        open_decoders(xtts.gpt, "int8", usual_penalty=1.0)


def test_a_mistake_of_ours_is_not_taken_for_one_of_the_machine(xtts, monkeypatch):
    monkeypatch.setattr(engine_module, "open_session", lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_decoders(xtts.gpt, "auto", usual_penalty=1.0)

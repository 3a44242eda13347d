import numpy as np
import tensorflow as tf

from myxtts.data.loading_tf import load_batch
from myxtts.data.pcm_wav import PCM_SCALE, find_samples
from tests.data.wav_files import OTHER, PLAIN, SAMPLES

WIDTH = 6144


def load_contents(folder, contents):
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"{number}.wav")
        paths[-1].write_bytes(content)
    lengths = [1 if content is PLAIN["one sample"] else len(SAMPLES) for content in contents]
    _, wav_BS, is_loaded_B = load_batch(
        tf.constant(0, tf.int64),
        tf.constant([str(path) for path in paths]),
        tf.constant(lengths, tf.int32),
        tf.constant([len(content) for content in contents], tf.int64),
        tf.constant(WIDTH, tf.int32),
    )
    return wav_BS.numpy(), is_loaded_B.numpy()


def test_plain_files_are_read_by_tensorflow_itself(tmp_path):
    wav_BS, is_loaded_B = load_contents(tmp_path, list(PLAIN.values()))

    assert is_loaded_B.all()
    for row, content in zip(wav_BS, PLAIN.values(), strict=True):
        samples = find_samples(content)
        assert np.array_equal(row, np.pad(samples * PCM_SCALE, (0, WIDTH - len(samples))))


def test_other_files_are_left_alone(tmp_path):
    wav_BS, is_loaded_B = load_contents(tmp_path, list(OTHER.values()))

    assert not is_loaded_B.any()
    assert not wav_BS.any()


def test_no_python_runs_in_the_graph():
    signature = [
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([], tf.int32),
    ]
    graph = tf.function(load_batch, input_signature=signature).get_concrete_function().graph.as_graph_def()
    operations = {node.op for node in graph.node} | {
        node.op for function in graph.library.function for node in function.node_def
    }
    assert "ReadFile" in operations
    assert not {op for op in operations if "PyFunc" in op}

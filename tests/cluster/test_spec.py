"""From a file or `TF_CONFIG` to the cluster, and what is said of one that cannot be."""

import json

import pytest

from myxtts.cluster.spec import find_cluster
from myxtts.config.settings import Address
from myxtts.errors import ClusterError, ConfigError

TWO = "workers: [10.0.0.1:5000, 10.0.0.2:5000]\n"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "cluster.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def make_tf_config(index=1, kind="worker", **jobs):
    cluster = jobs or {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_a_file_lists_the_workers(write):
    spec = find_cluster(write(TWO), 1, {})
    assert spec.workers == (Address("10.0.0.1", 5000), Address("10.0.0.2", 5000))
    assert (spec.index, spec.is_chief, spec.size) == (1, False, 2)
    assert spec.control == Address("10.0.0.1", 5001), "one port above the chief's"
    assert spec.bind is None, "nothing listens on more than the named interface unless told so"
    text = TWO + "control: chief:77\nbind: 0.0.0.0\nrendezvous_seconds: 20\nsilence_seconds: 4\n"
    spec = find_cluster(write(text), 0, {})
    assert (spec.control, spec.bind, spec.rendezvous_s, spec.silence_s) == (Address("chief", 77), "0.0.0.0", 20, 4)


def test_the_index_may_come_from_the_environment_and_what_is_given_wins(write):
    assert find_cluster(write(TWO), None, {"MYXTTS_WORKER_INDEX": "1"}).index == 1
    assert find_cluster(write(TWO), 0, {"MYXTTS_WORKER_INDEX": "1"}).index == 0
    assert find_cluster(write(TWO), 0, make_tf_config(0, worker=["x:1", "y:2"])).workers[0].host == "10.0.0.1"


def test_tf_config_with_and_without_a_chief():
    assert find_cluster(None, None, make_tf_config()).index == 1
    assert find_cluster(None, 1, make_tf_config()).index == 1
    spec = find_cluster(None, None, make_tf_config(0, chief=["a:1"], worker=["b:2", "c:3"]))
    assert [str(each) for each in spec.workers] == ["a:1", "b:2", "c:3"]
    assert spec.index == 1, "the first worker behind the chief"


def test_a_process_by_itself_is_no_cluster():
    for environ in ({}, {"TF_CONFIG": "{}"}, make_tf_config(0, worker=["a:1"])):
        assert find_cluster(None, None, environ) is None


@pytest.mark.parametrize(
    ("text", "index", "environ", "words"),
    [
        (TWO, None, {}, ["Give --worker-index 0 to 1", "MYXTTS_WORKER_INDEX"]),
        (TWO, 2, {}, ["from 0 to 1", "but is 2"]),
        (TWO, None, {"MYXTTS_WORKER_INDEX": "one"}, ["whole number", "'one'"]),
        ("workers: [10.0.0.1:5000]\n", 0, {}, ["at least two workers", "Leave out --cluster"]),
        ("workers: [10.0.0.1:5000, 10.0.0.2]\n", 0, {}, ["worker 1", "'10.0.0.2'"]),
        ("workers: [a:5000, a:5000]\n", 0, {}, ["a:5000 is used twice"]),
        ("workers: [a:5000, a:5001]\n", 0, {}, ["a:5001 is used twice", "one port above"]),
        ("workers: [a:65535, b:5000]\n", 0, {}, ["above a:65535 there is none", "Give it a lower one"]),
        (TWO + "worker: 3\n", 0, {}, ["worker is not a setting"]),
        (TWO + "silence_seconds: 0\n", 0, {}, ["silence_seconds must be from 1 to 86400"]),
    ],
)
def test_what_cannot_be_is_named(write, text, index, environ, words):
    with pytest.raises(ClusterError) as failure:
        find_cluster(write(text), index, environ)
    for word in words:
        assert word in str(failure.value)


@pytest.mark.parametrize(
    ("index", "environ", "words"),
    [
        (None, {"TF_CONFIG": "{"}, "must be JSON"),
        (None, make_tf_config(7), "which is none of them"),
        (None, make_tf_config(0, worker=["a:1", "b:2"], ps=["c:3"]), "ps"),
        (None, make_tf_config(0, "chief", chief=["a:1"], ps=["c:3"]), r"no use for \(ps\)"),
        (None, make_tf_config(0, worker=["a:1", 5000]), "addresses must be texts.*5000"),
        (None, make_tf_config(0, worker=["a:65535", "b:1"]), "above a:65535 there is none"),
        (0, make_tf_config(), "--worker-index is 0, but TF_CONFIG says that this is worker 1"),
        (1, {}, "no cluster"),
    ],
)
def test_an_environment_that_cannot_be_used_is_named(index, environ, words):
    with pytest.raises(ClusterError, match=words):
        find_cluster(None, index, environ)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        find_cluster(str(tmp_path / "none.yaml"), 0, {})

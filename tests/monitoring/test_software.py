"""Driver, libraries and TensorFlow as installed, and what is said about them."""

from pathlib import Path

import pytest

from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan
from myxtts.devices.topology import Connection, Link
from myxtts.monitoring import software_facts
from myxtts.monitoring.health import Issue, Severity, has_serious, rank_issues
from myxtts.monitoring.software_checks import (
    check_devices,
    check_environment,
    check_links,
    check_software,
    check_tensorflow,
)
from myxtts.monitoring.software_facts import (
    Library,
    SoftwareFacts,
    TensorFlowBuild,
    check_libraries,
    read_tensorflow_build,
)

GPU_BUILD = TensorFlowBuild("2.21.0", True, "12.5.1", "9")
CARD = Card(0, "NVIDIA GeForce RTX 4090", "GPU-0", "bus", 24564, 24000)
NO_CARDS = CardScan((), (), None)


def make_facts(**changes):
    facts = {
        "python": "3.11", "system": "Linux", "tensorflow": GPU_BUILD, "driver": "570", "driver_problem": None, "libraries": (),
    }  # fmt: skip
    return SoftwareFacts(**{**facts, **changes})


def make_machine(*cards, environ=None, **scan):
    return Machine(CardScan(cards, scan.get("lost", ()), scan.get("problem")), 1000, environ or {})


def test_the_build_is_read_from_files_and_tensorflow_is_not_imported():
    from tests.support.processes import run_code

    code = """
from myxtts.monitoring.software_facts import read_tensorflow_build
build = read_tensorflow_build()
report([build.version, build.is_cuda_build is not None, "tensorflow" in sys.modules])
"""
    version, is_known, is_imported = run_code(code)
    assert (version[0], is_known, is_imported) == ("2", True, False)


@pytest.mark.parametrize(
    "text", ["", "build_info = {", "import collections\nbuild_info = 5\n", "build_info = make(x)\n"]
)
def test_a_build_that_does_not_describe_itself_is_unknown(tmp_path, monkeypatch, text):
    home = tmp_path / "tensorflow" / "python" / "platform"
    home.mkdir(parents=True)
    (home / "build_info.py").write_text(text)
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise ImportError('no matter')\n")
    monkeypatch.setattr(software_facts.importlib.util, "find_spec", lambda name: _Spec(tmp_path / name / "__init__.py"))
    assert read_tensorflow_build().is_cuda_build is None


class _Spec:
    def __init__(self, path):
        self.origin = str(path)


def test_every_library_that_is_missing_is_named_and_those_of_pip_are_found(tmp_path):
    folder = tmp_path / "cudnn" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcudnn.so.9").touch()
    loaded = []

    def load(path):
        loaded.append(path)
        if "cublas" in path:
            raise OSError(f"{path}: cannot open shared object file")

    libraries = {library.file: library.problem for library in check_libraries(GPU_BUILD, [folder], load)}
    assert [file for file, problem in libraries.items() if problem] == ["libcublas.so.12", "libcublasLt.so.12"]
    assert libraries["libcublas.so.12"] == "libcublas.so.12: cannot open shared object file"
    assert str(folder / "libcudnn.so.9") in loaded
    assert loaded[0] == "libcuda.so.1"


def test_a_build_without_cuda_needs_no_library():
    assert check_libraries(TensorFlowBuild("2.21.0", False), []) == []


def test_without_a_card_only_that_is_an_issue():
    facts = make_facts(libraries=(Library("CUDA runtime", "libcudart.so.12", "missing"),), driver_problem="no library")
    (issue,) = check_software(facts, make_machine())
    assert issue.severity is Severity.SERIOUS
    assert "no NVIDIA GPU" in issue.observation
    (issue,) = check_software(facts, make_machine(problem="Driver/library version mismatch"))
    assert "does not answer" in issue.observation
    assert "restart" in issue.remedy


def test_with_a_card_every_missing_piece_has_its_fix():
    libraries = (
        Library("NVIDIA driver", "libcuda.so.1", None),
        Library("cuDNN", "libcudnn.so.9", "libcudnn.so.9: cannot open"),
    )
    (issue,) = check_software(make_facts(libraries=libraries), make_machine(CARD))
    assert issue.evidence == "libcudnn.so.9 (libcudnn.so.9: cannot open)"
    assert issue.remedy == "pip install 'tensorflow[and-cuda]'"
    (issue,) = check_software(make_facts(tensorflow=TensorFlowBuild("2.21.0", False)), make_machine(CARD))
    assert "cannot use a GPU" in issue.observation
    assert "uninstall" in issue.remedy
    assert list(check_software(make_facts(), make_machine(CARD))) == []


def test_a_missing_tensorflow_is_named_with_the_command_for_this_machine():
    (issue,) = check_tensorflow(make_facts(tensorflow=None), make_machine(CARD))
    assert (issue.severity, issue.remedy) == (Severity.SERIOUS, "pip install 'tensorflow[and-cuda]'")
    assert "not installed" in issue.observation
    (issue,) = check_tensorflow(make_facts(tensorflow=None), make_machine())
    assert issue.remedy == "pip install tensorflow"
    assert list(check_tensorflow(make_facts(), make_machine())) == []


def test_hidden_lost_and_busy_cards_are_found():
    assert list(check_devices(make_machine(CARD))) == []
    (issue,) = check_devices(make_machine(CARD, environ={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert (issue.severity, issue.remedy) == (Severity.SERIOUS, "unset CUDA_VISIBLE_DEVICES")
    other = Card(1, "NVIDIA GeForce RTX 3080", "GPU-1", "bus", 10240, 2000)
    (issue,) = check_devices(make_machine(CARD, other, environ={"CUDA_VISIBLE_DEVICES": "0"}))
    assert (issue.severity, issue.observation) == (Severity.NOTE, "CUDA_VISIBLE_DEVICES hides GPU 1")
    (issue,) = check_devices(make_machine(CARD, other))
    assert issue.evidence == "2000 MB of 10240 MB are free"
    (issue,) = check_devices(make_machine(CARD, lost=((1, "GPU is lost"),)))
    assert issue.observation == "GPU 1 does not answer"
    unknown = Card(0, "card", "GPU-0", "bus", None, None)
    assert list(check_devices(make_machine(unknown))) == []


def test_variables_that_slow_tensorflow_down_are_found():
    assert list(check_environment({"TF_ENABLE_ONEDNN_OPTS": "1"})) == []
    issues = list(check_environment({"TF_GPU_ALLOCATOR": "cuda_malloc_async", "CUDA_LAUNCH_BLOCKING": "1"}))
    assert [issue.remedy for issue in issues] == ["unset TF_GPU_ALLOCATOR", "unset CUDA_LAUNCH_BLOCKING"]


def test_only_slow_links_are_issues():
    links = [Link(0, 1, connection) for connection in Connection]
    issues = list(check_links(links, used=[1, 0], given="--data-gpu and --model-gpu"))
    assert [issue.observation for issue in issues] == [
        "GPU 0 and GPU 1 are far apart (NODE)",
        "GPU 0 and GPU 1 are far apart (SYS)",
    ]
    assert {issue.severity for issue in issues} == {Severity.WORTH_CHANGING}
    assert issues[0].remedy == "train on one card: leave out --data-gpu and --model-gpu"
    # What is not given cannot be left out.
    for issue in check_links(links, used=[0], given="--data-gpu and --model-gpu"):
        assert issue.severity is Severity.NOTE
        assert "--data-gpu" not in issue.remedy


def test_issues_are_ranked_by_severity_and_then_by_what_they_cost():
    def make(severity, share, name):
        return Issue(severity, name, "", "", "", share)

    ranked = rank_issues(
        [
            make(Severity.NOTE, 0.9, "note"),
            make(Severity.WORTH_CHANGING, 0.1, "small"),
            make(Severity.WORTH_CHANGING, 0.4, "large"),
            make(Severity.SERIOUS, 0.0, "serious"),
        ]
    )
    assert [issue.observation for issue in ranked] == ["serious", "large", "small", "note"]
    assert has_serious(ranked)
    assert not has_serious(ranked[1:])


def test_library_folders_are_those_of_pip(tmp_path, monkeypatch):
    for name in ("cublas", "cudnn"):
        (tmp_path / "nvidia" / name / "lib").mkdir(parents=True)
    spec = _Spec(tmp_path)
    spec.submodule_search_locations = [str(tmp_path / "nvidia")]
    monkeypatch.setattr(software_facts.importlib.util, "find_spec", lambda name: spec)
    assert [Path(folder).parent.name for folder in software_facts.find_library_folders()] == ["cublas", "cudnn"]
    monkeypatch.setattr(software_facts.importlib.util, "find_spec", lambda name: None)
    assert software_facts.find_library_folders() == []

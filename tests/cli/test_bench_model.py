"""`myxtts bench model`: what it asks of a peer, what it concludes, what it prints. The work itself is not done here."""

import sys
from pathlib import Path

import pytest

from myxtts.cli.bench_model import PEER_PYTHON, find_peer, format_result, format_sizes, run
from myxtts.cli.model_speed import LABELS, PEER_CAN, Shape, SpeedResult, Timing, time_in_turn
from myxtts.cli.peer_process import Peer, PeerError
from myxtts.errors import CommandLineError

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def make_result(*, ours=1.0, peer=2.0, load=0.0):
    measured = dict.fromkeys(LABELS, Timing((ours, ours, 2 * ours)))
    measured["read memory"] = Timing((0.01,))
    return SpeedResult(measured, dict.fromkeys(PEER_CAN, Timing((peer, 3 * peer))) if peer else {}, 10**8, (load, load))


def test_contenders_take_turns_until_the_time_is_up():
    turns = []

    def make(name):
        def work():
            turns.append(name)
            return float(len(turns))

        return work

    timings = time_in_turn({"a": make("a"), "b": make("b")}, 0.0)
    assert turns == ["a", "b"] * 3
    assert timings["b"].seconds == (2.0, 4.0, 6.0)
    assert (timings["b"].best, timings["b"].median) == (2.0, 4.0)


def test_weights_read_per_code_are_those_of_the_blocks_and_the_head():
    assert Shape(8, 512, 8).bytes_per_code == pytest.approx(103e6, rel=0.01)


def test_targets_are_judged():
    verdicts = {verdict.text: verdict for verdict in make_result().judge()}
    assert len(verdicts) == 6
    steps = [verdict for text, verdict in verdicts.items() if text.startswith("step")]
    assert [verdict.value for verdict in steps] == [0.5, 0.5]
    assert all(verdict.is_met for verdict in steps)
    assert next(verdict for text, verdict in verdicts.items() if "four sentences" in text).value == 8.0
    slow = make_result(ours=2.0)
    assert not any(verdict.is_met for verdict in slow.judge() if "0.75" in verdict.text)
    assert slow.ratio("dvae") == 1.0


def test_without_a_peer_only_the_roof_is_judged():
    result = make_result(peer=None)
    # 10 GB/s by 103 MB per code.
    assert result.roof_codes_per_s == pytest.approx(97, abs=1)
    assert [verdict.is_met for verdict in result.judge()] == [True]
    assert "peer" not in format_result(result)


def test_the_table_shows_both_and_their_ratio():
    shown = format_result(make_result())
    assert (
        "training step, 8 layers x 512 wide x 8 heads      1.000s   1.000s            2.000s             0.50" in shown
    )
    assert (
        "decode 200 codes, four sentences                  1.000s   1.000s      800   2.000s      400    0.50" in shown
    )
    assert "busy" not in shown
    assert "The machine was busy" in format_result(make_result(load=3.0))


def test_sizes_are_printed_with_their_parameters():
    rows = {line.split()[0]: line.split()[-1] for line in format_sizes().splitlines()[1:]}
    assert rows == {"tiny": "24.0", "small": "72.5", "base": "230.6", "big": "519.6"}


def test_a_peer_answers_line_by_line():
    with Peer([sys.executable, "-c", ECHO], {}) as peer:
        assert peer.ask({"run": "dvae"}) == {"run": "dvae"}
        with pytest.raises(PeerError, match="cannot do this: no torch"):
            peer.ask({"error": "no torch"})


def test_a_peer_that_dies_is_an_error_with_its_code():
    with pytest.raises(PeerError, match="ended with code 7"), Peer([sys.executable, "-c", "exit(7)"], {}) as peer:
        peer.ask({"prepare": "dvae"})


def test_a_peer_that_is_no_program_is_named(tmp_path):
    with pytest.raises(PeerError, match="cannot be run"):
        Peer([tmp_path / "python"], {})


def test_a_peers_python_must_be_given_and_be_there(monkeypatch, tmp_path):
    monkeypatch.delenv(PEER_PYTHON, raising=False)
    with pytest.raises(CommandLineError, match="--peer-python PATH or MYXTTS_PEER_PYTHON"):
        find_peer(None)
    monkeypatch.setenv(PEER_PYTHON, str(tmp_path / "nowhere"))
    with pytest.raises(CommandLineError, match=r"no file .*nowhere"):
        find_peer(None)
    python, script = find_peer(Path(sys.executable))
    assert python == Path(sys.executable)
    assert script.name == "peer_coqui.py"


def test_seconds_must_be_a_length_of_time():
    with pytest.raises(CommandLineError, match="--seconds must be a number from 0 to 3600, but is 0"):
        run(["--seconds", "0"], "myxtts bench model")

"""Each bench runs with tiny numbers, in a process of its own, and its figures make sense. Not how fast this machine is."""

import re
import subprocess

import pytest
import soundfile

from myxtts.data.ljspeech import demo_corpus_path
from tests.support.processes import ROOT, run_python


def run_bench(name, *flags):
    result = run_python(["-m", f"benchmarks.{name}", *flags])
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.startswith("Machine  ")
    return result.stdout


def read_rows(text, head):
    """Of the table below a line that contains `head`: its rows, name -> numbers."""
    lines = text.partition(head)[2].partition("\n\n")[0].splitlines()[1:]
    found = (re.fullmatch(r"(\D.*?)  +(\d[\d.s ]*?)(?:  [^\d ].*)?", line) for line in lines)
    return {row[1]: [float(word.strip("s")) for word in row[2].split()] for row in found if row}


def test_reading_is_measured_beside_what_one_would_write_first():
    text = run_bench("data", "--seconds", "0.01", "--rounds", "1", "--buffer-size", "2", "--num-workers", "2")
    rows = read_rows(text, "x plain loop")
    assert list(rows) == [
        "plain loop, one thread", "naive tf.data", "one pinned process, decoding", "all pinned processes, decoding", "ours, reader processes",
    ]  # fmt: skip
    assert rows["plain loop, one thread"][2] == 1.0
    assert all(min(numbers) > 0 for numbers in (*rows.values(), *read_rows(text, "stage (one thread, alone)").values()))
    assert "resample                            not needed" in text


@pytest.mark.soak
def test_the_network_is_measured_beside_a_peer_and_the_speed_of_memory(tmp_path):
    peer = tmp_path / "python"
    # In the place of a Python with torch: whatever it is asked, it took a hundred seconds.
    peer.write_text('#!/bin/sh\nwhile read line; do echo "{\\"seconds\\": 100}"; done\n')
    peer.chmod(0o755)
    flags = [word for name in ("step 4x256", "decode", "read memory") for word in ("--part", name)]
    text = run_bench("model", *flags, "--seconds", "0.01", "--codes", "3", "--peer-python", str(peer))
    assert "tiny       11.1      3.6      1.2      8.1     24.0" in text
    rows = read_rows(text, "codes/s")
    best, median, rate, *theirs = rows["decode"]
    assert best <= median
    assert rate == pytest.approx(3 / best, rel=0.1)
    assert theirs == [100.0, 0.0, 0.0]
    assert len(rows["read memory"]) == 2
    assert re.search(r"step 4x256 at most 0.75 of the peer's time: 0\.\d\d, met", text)
    assert "one sentence at least 0.8 of the roof" in text


def test_hand_offs_and_ring_are_measured():
    text = run_bench("pipeline", "--part", "a", "--part", "c", "--batches", "4")
    pattern = r"^(?:idle|2 busy) +(?:dual|isolated) +(50|10) +[\d.]+ +([\d.]+) +([\d.]+) +[\d.]+ +[\d.]+"
    cases = re.findall(pattern, text, re.MULTILINE)
    assert len(cases) == 24
    # No sleep is too short, so no stage alone is faster than its pace.
    assert all(float(alone) >= float(slowest) and float(batch) > 0 for slowest, alone, batch in cases)
    assert re.search(r"^ +variation below 0.05: \d+ (met|missed|noisy)", text, re.MULTILINE)
    assert all(speed > 0 for (speed,) in read_rows(text, "c  The ring").values())


@pytest.mark.soak
def test_learning_with_shared_prompts_is_measured_beside_a_prompt_for_each_clip():
    rows = read_rows(run_bench("learning", "--rounds", "1"), "clips/s")
    assert list(rows) == ["a prompt for each clip", "shared prompts", "shared prompts, bfloat16"]
    assert all(rate == pytest.approx(1000 / clip_ms, rel=0.02) for rate, clip_ms, *_ in rows.values())


def test_the_planner_s_choice_is_compared_with_every_mode():
    text = run_bench("planner", "--workloads", "1", "--batches", "2")
    (row,) = re.findall(r"^  60    55    1    20   2  (\S+) +([\d.]+) +([\d.]+)  (\S+) +([\d.]+)%", text, re.MULTILINE)
    taken, _, reached, fastest, lost = row
    assert {taken, fastest} <= {mode + star for mode in ("sing", "dual", "isol") for star in ("", "*")}
    assert float(reached) > 0
    assert (float(lost) == 0) == (taken == fastest)


@pytest.mark.soak
def test_two_trainers_are_measured_against_one():
    text = run_bench("cluster", "--steps", "14", "--rounds", "1")
    titles = ("one trainer", "two that share their batches", "two that do not know each other")
    one, two, apart = (float(re.findall(rf"^{title} +([\d.]+) s/s$", text, re.MULTILINE)[0]) for title in titles)
    gains = [float(gain) for gain in re.findall(r"speed-up   ([\d.]+)x, where two cores have ([\d.]+)x", text)[0]]
    assert gains == pytest.approx([two / one, apart / one], abs=0.1)
    assert "six numbers by the coordination service" in text
    assert re.search(r"SIMULATED, not measured.*^ +2 +0\.13x +0\.83x +1\.75x$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.soak
def test_engines_are_compared_in_codes_and_in_speech():
    text = run_bench("engine", "--rounds", "1", "--codes", "3", "--model", "tiny")
    assert len(re.findall(r"^8 x 512, [14] rows +int8 \d+/s +float32 \d+/s$", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^tiny, decoder +(?:int8|float32) +[\d.]+ s/s +first [\d.]+ s$", text, re.MULTILINE)) == 2
    assert "Engine: int8 by onnxruntime." in text
    assert "a second of speech in at most 0.125 s" in text


@pytest.mark.soak
def test_serving_is_measured_one_by_one_and_together():
    text = run_bench("serving", "--rounds", "1", "--codes", "4")
    for name in ("one by one, now", "together, now", "codes alone, one by one", "codes alone, together"):
        assert float(re.findall(rf"^{name} +([\d.]+) codes/s$", text, re.MULTILINE)[0]) > 0
    assert re.search(r"^first sound, now +[\d.]+ s$", text, re.MULTILINE)


def test_words_misheard_and_times_of_words_are_measured(tmp_path):
    said = "The kettle whistled while the rain beat on the roof."
    (tmp_path / "texts.txt").write_text(f"slt_01|{said}\n")
    folder = tmp_path / "out" / "festival"
    folder.mkdir(parents=True)
    # As if Festival had said it, with words of one length each.
    samples, rate_hz = soundfile.read(demo_corpus_path() / "wavs" / "slt_01.flac")
    soundfile.write(folder / "slt_01.wav", samples, rate_hz)
    words, step = said.strip(".").split(), len(samples) / rate_hz / 10
    labels = [f"{word}\t{place * step}\t{(place + 1) * step}\n" for place, word in enumerate(words)]
    (folder / "slt_01.words").write_text("".join(labels))
    recogniser = f"""sh -c 'echo "{said.replace("rain", "train")}"' {{wav}}"""
    text = run_bench(
        "speech", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out"), "--engine", "float32", "--takes", "0.5,0,0",
        "--recogniser-command", recogniser, "--word-times",
    )  # fmt: skip
    assert (
        "temperature 0.5, retries 0, seed 0: misheard 0.100 of 10 words; above .5: 0.000 of 1; doubtful 0, not ended 0"
        in text
    )
    assert "recordings, codes read: 10 words of 1 sentences, 0 left out; begin: half within" in text
    assert soundfile.info(tmp_path / "out" / "float32_0.5_0_0" / "slt_01.wav").duration > 1


def test_make_lists_every_bench():
    text = subprocess.run(["make", "bench"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    listed = {line.split()[0].removeprefix("NAME=") for line in text.splitlines()}
    runs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "run_bench(main)" in path.read_text()}
    # The last needs an environment of its own, which `make gpu-proof` makes.
    assert listed == runs - {"gpu_proof"}

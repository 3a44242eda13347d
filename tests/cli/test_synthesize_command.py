"""`myxtts synthesize` from the command line."""

import contextlib
import io
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from myxtts.cli.devices import describe_single_device
from myxtts.cli.main import make_parser
from myxtts.cli.output import show_progress
from myxtts.cli.speaking import tell_code_limit
from myxtts.cli.synthesize import Written, write_file, write_times
from myxtts.devices.plan import DeviceUse, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import CommandLineError
from myxtts.inference.speech import SpeechChunk, SpeechSettings, SpokenPiece, TimedWord
from myxtts.inference.synthesizer import load_synthesizer
from tests.devices.test_plan import make_machine
from tests.inference.builders import CONFIG, write_small_model
from tests.support.processes import ROOT, clean_environ, run_python

TEXT = "Hello there. This is the second sentence."


def run_synthesize(*words):
    return run_python(["-m", "myxtts.cli.main", "synthesize", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model from scratch and a recording."""
    folder = tmp_path_factory.mktemp("synthesize")
    write_small_model(folder / "model")
    (folder / "words.tsv").write_text("[en]\nno tab")
    soundfile.write(folder / "voice.wav", np.random.default_rng(1).normal(0, 0.1, 2 * 22050), 22050)
    soundfile.write(folder / "short.wav", np.random.default_rng(1).normal(0, 0.1, 2205), 22050)
    (folder / "noise.wav").write_bytes(b"not a sound")
    return folder


@pytest.fixture(scope="module")
def spoken(folder):
    return run_synthesize(
        "--checkpoint", folder / "model", "--text", TEXT, "--reference", folder / "voice.wav", "--reference",
        folder / "voice.wav", "--out", folder / "out.wav", "--save-voice", folder / "voice.safetensors", "--max-codes", 12,
        "--retries", 0, "--word-times", folder / "times.json",
    )  # fmt: skip


def test_a_file_is_written_and_everything_is_said(folder, spoken):
    assert spoken.returncode == 0, spoken.stderr
    assert not any(word in spoken.stderr for word in ("WARNING", "cuda", "oneDNN")), "TensorFlow says nothing"
    info = soundfile.info(folder / "out.wav")
    assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
    assert info.duration > 0.3
    for words in ("Device: /", "no trained waveform decoder", "no speaker embedding is heard", "at 22050 Hz", "out.wav", "consent"):  # fmt: skip
        assert spoken.stderr.count(words) == 1, words
    assert ("Warning: the model did not come to an end within 12 codes" in spoken.stderr) == (
        "cut off" in spoken.stderr
    )


def test_a_stream_from_standard_input_is_the_sound_of_the_file(folder, spoken):
    result = subprocess.run(
        [
            sys.executable, "-m", "myxtts.cli.main", "synthesize", "--checkpoint", folder / "model", "--text-file", "-",
            "--voice", folder / "voice.safetensors", "--stream", "--max-codes", "12",
        ],
        input=TEXT.encode(), capture_output=True, env=clean_environ(PYTHONPATH=str(ROOT), MYXTTS_REHEARSAL="yes"), cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    for words in (
        b"Device: /CPU:1. Rehearsal: no GPU is used.",
        b"aplay -r 22050 -f S16_LE -c 1",
        b"First sound after",
    ):
        assert result.stderr.count(words) == 1, words
    streamed = np.frombuffer(result.stdout, "<i2").astype(np.int32)
    written = soundfile.read(folder / "out.wav", dtype="int16")[0].astype(np.int32)
    assert streamed.shape == written.shape
    first, second, last = json.loads((folder / "times.json").read_text())["pieces"]
    assert [word["word"] for word in second["words"]] == ["This", "is", "the"]
    assert first["end"] + 0.2 == pytest.approx(second["start"], abs=0.002)
    assert second["start"] <= second["words"][0]["start"] <= second["words"][-1]["end"] <= second["end"]
    assert last["end"] == pytest.approx(len(written) / 22050, abs=0.002)
    assert np.max(np.abs(streamed - written)) <= 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.srt", "1\n01:01:01,500 --> 01:01:02,000\nA&B<c\n\n2\n01:01:02,000 --> 01:01:02,010\nyou.\n"),
        (
            "a.VTT",
            "WEBVTT\n\n1\n01:01:01.500 --> 01:01:02.000\nA&amp;B&lt;c\n\n2\n01:01:02.000 --> 01:01:02.010\nyou.\n",
        ),
    ],
)
def test_word_times_are_subtitles_counted_from_the_beginning_of_the_sound(tmp_path, name, expected):
    words = (TimedWord("A&B<c", 0.5, 1.0), TimedWord("you.", 1.0, 1.0))
    piece = SpokenPiece("A&B<c you.", 30, True, 1.5, (), words)
    rate_hz = 1000
    write_times(tmp_path / name, Written(3_662_500 + 300, [(3_662_500, piece)], None), rate_hz)
    assert (tmp_path / name).read_text() == expected


def test_a_recogniser_chooses_the_take(folder):
    hear = f"{sys.executable} -c 'print(\"hello there\")' {{wav}}"
    result = run_synthesize(
        "--checkpoint", folder / "model", "--text", "Hello there.", "--reference", folder / "voice.wav", "--out",
        folder / "heard.wav", "--max-codes", 12, "--check-speech", hear,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "doubtful" not in result.stderr, "all words were heard"
    hear = hear.replace("hello there", "good night to you")
    result = run_synthesize(
        "--checkpoint", folder / "model", "--text", "Hello there.", "--reference", folder / "voice.wav", "--out",
        folder / "heard.wav", "--max-codes", 12, "--check-speech", hear, "--retries", 1,
    )  # fmt: skip
    assert (
        "doubtful, also in the best take: by the recogniser its word error rate is 200%: 'Hello there.'"
        in result.stderr
    )


@pytest.mark.soak
def test_a_named_voice_says_the_text_of_a_file(folder):
    draw = np.random.default_rng(5)
    voices = {
        name: {
            "gpt_cond_latent": np.zeros((1, 32, CONFIG.model.gpt_width), np.float32),
            "speaker_embedding": draw.normal(size=(1, 512, 1)).astype(np.float32),
        }
        for name in ("Ana", "Ben")
    }
    model = write_small_model(folder / "named", decoder=True, speakers=voices)
    (folder / "text.txt").write_text(f"\ufeff{TEXT}\n", encoding="utf-8")
    result = run_synthesize(
        "--checkpoint", model, "--text-file", folder / "text.txt", "--voice", "Ben", "--out", folder / "ben.flac",
        "--max-codes", 12, "--seed", 3,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    written, rate_hz = soundfile.read(folder / "ben.flac", dtype="float32")
    synthesizer = load_synthesizer(model)
    assert rate_hz == synthesizer.rate_hz
    settings = SpeechSettings(seed=3, max_codes=12)
    ben, ana = (synthesizer.speak(TEXT, synthesizer.find_voice(name), "en", settings) for name in ("Ben", "Ana"))
    np.testing.assert_allclose(written, np.clip(ben.samples, -1, 1), atol=1e-4)
    assert np.abs(ana.samples - ben.samples).max() > 1e-3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"--text": "  "}, "something to say"),
        ({"--word-times": "times.txt"}, "--word-times must end in .json or .srt or .vtt, but is times.txt"),
        ({"--check-speech": "listen", "--retries": "0"}, "leave out --greedy and --retries 0"),
        ({"--check-speech": "no-such-program"}, "--check-speech must be a program, but there is no"),
        (
            {"--text": None, "--text-file": "no.txt"},
            "no.txt: there is no such file. Check the path, and the case of its letters. Give a file of UTF-8",
        ),
        ({"--text": "a" * 100_001}, "100000 characters at most, but has 100001"),
        ({"--language": "xx"}, "must be one of"),
        ({"--lexicon": "{folder}/words.tsv"}, "words.tsv:2: A line must be a word, a tab and how it is read"),
        ({"--text": "Hello [pause 11s]"}, "A pause must be from 0 to 10 seconds"),
        ({"--paragraph-pause": "-1"}, "--paragraph-pause must be from 0 to 10, but is -1.0"),
        ({"--reference": "{folder}/noise.wav"}, "Give another recording."),
        ({"--reference": "{folder}/short.wav"}, "at least 0.33 s, but lasts 0.10 s"),
        ({"--reference": None, "--voice": "{folder}/noise.wav"}, "A voice file is what --save-voice writes"),
        ({"--top-k": "many"}, "--top-k must be a whole number, but is 'many'"),
        ({"--top-k": "-1"}, "--top-k must be from 0 to 2147483647, but is -1. The usual value is 50."),
        ({"--speed": "90"}, "--speed must be from 0.25 to 4, but is 90.0. The usual value is 1."),
        ({"--max-codes": "0"}, "--max-codes must be at least 1, but is 0. Leave it out to get what suits the model."),
        ({"--checkpoint": "nowhere"}, "nowhere: does not exist. Give a model directory"),
        ({"--out": "x.mp3"}, ".wav or .flac"),
        ({"--out": "nowhere/x.wav"}, "nowhere is not"),
    ],
)
def test_bad_input_is_one_message_before_anything_is_loaded(folder, flags, message, refuse):
    words = {
        "--checkpoint": folder / "model",
        "--text": "Hello.",
        "--reference": folder / "voice.wav",
        "--out": "x.wav",
    }
    given = [
        str(word).format(folder=folder) for pair in {**words, **flags}.items() if pair[1] is not None for word in pair
    ]
    said = refuse("synthesize", *given)
    assert message in said
    assert not any(word in said for word in ("Device:", "metadata"))


def test_a_text_is_all_that_is_needed():
    with pytest.raises(CommandLineError, match=r"One of the arguments --text --text-file is required. "):
        make_parser("synthesize", "myxtts synthesize").parse_all(["--greedy"])


@pytest.mark.parametrize(("asked", "heard"), [(606, "Warning: --max-codes 606 is more than this model can say in a piece: 605 is used.\n"), (605, ""), (None, "")])  # fmt: skip
def test_more_codes_than_the_model_can_say_are_not_lowered_in_silence(asked, heard, capsys):
    tell_code_limit(SpeechSettings(max_codes=asked), 605)
    assert capsys.readouterr().err == heard


def test_sigterm_leaves_no_half_of_a_file(tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def say():
        yield SpeechChunk(np.zeros(100, np.float32), None)
        assert "o.wav" in [path.name for path in tmp_path.glob("*/*")]
        signal.raise_signal(signal.SIGTERM)
        yield SpeechChunk(np.zeros(100, np.float32), None)

    with pytest.raises(SystemExit, match=r"^143$"):
        write_file(say(), tmp_path / "o.wav", 22050)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def describe(cards, **asked):
    return describe_single_device(
        plan_devices(PlanRequest(mode="single", task=DeviceUse.SPEAK, **asked), make_machine(cards))
    )


def test_the_device_is_named_with_the_reason_and_the_way_to_another():
    assert describe(0) == "Device: /CPU:0. Speaking on the CPU: this machine has no NVIDIA GPU."
    assert describe(2, rehearsal=True) == "Device: /CPU:1. Rehearsal: no GPU is used."
    said = describe(2)
    assert said.startswith("Device: /GPU:0, physical GPU 0, ")
    assert "Speaking on GPU 0 alone; other cards stay unused (GPU 1 " in said
    assert said.endswith("For another one set CUDA_VISIBLE_DEVICES=1.")
    assert "--data-gpu" not in said


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_samples_are_not_written_to_a_terminal(monkeypatch, refuse):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = ["--checkpoint", "nowhere", "--text", "Hello.", "--voice", "nowhere.safetensors", "--stream"]
    said = refuse("synthesize", *words)
    for part in ("standard output is a terminal", "-r 22050", "-r 24000", "--out FILE"):
        assert part in said


@pytest.mark.parametrize(("stream", "said"), [(Terminal, "\rSentence 1 of 2\rSentence 2 of 2\n"), (io.StringIO, "")])
def test_progress_is_counted_on_one_line_of_a_terminal_and_nowhere_else(stream, said):
    with contextlib.redirect_stderr(stream()) as heard:
        for done in (1, 2):
            show_progress("Sentence", done, 2)
    assert heard.getvalue() == said

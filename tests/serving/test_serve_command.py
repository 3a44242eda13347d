"""`myxtts serve` with a real, tiny model: what it says, to whom, and how it ends."""

import contextlib
import importlib.util
import io
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import soundfile

from myxtts.cli import serve
from myxtts.cli.main import main, make_parser
from myxtts.cli.serve import read_settings
from myxtts.inference import synthesizer
from myxtts.serving import server
from myxtts.serving.request import ServerStartError
from myxtts.serving.server import TOKEN_VARIABLE, ServerSettings, bind_socket, run_server
from tests.serving.command import start_server, write_recording
from tests.serving.hosting import GatedSynthesizer

TEXT = "Hello there, you. Good morning to us."
"""Two pieces, of a length that the server has compiled before it was ready."""


def read_sound(data):
    return soundfile.read(io.BytesIO(data), dtype="int16")


def test_what_speaks_is_said_at_the_start(running):
    told = "\n".join(running.told)
    sound = ("no trained waveform decoder", "no speaker embedding is heard")
    for words in (*sound, "Claribel, narrator", "consent", "/v1/audio"):
        assert words in told
    assert running.log.read_text().count("Device: /CPU:1. Rehearsal: no GPU is used.") == 1


def test_a_stream_comes_in_chunks_and_joined_is_the_whole(running):
    order = {"input": TEXT, "voice": "narrator", "seed": 5, "response_format": "wav"}
    parts = []
    with contextlib.closing(running.client.open("POST", "/v1/audio/speech", order)) as response:
        while part := response.read1(1 << 20):
            parts.append(part)
    assert len(parts) > 2
    streamed, rate = read_sound(b"".join(parts))
    whole, _ = read_sound(running.client.ask("POST", "/v1/audio/speech", {**order, "stream": False}).body)
    assert rate == 22_050
    assert len(streamed) > rate
    assert streamed.shape == whole.shape
    assert np.max(np.abs(streamed.astype(int) - whole)) <= 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_pause_in_a_request_is_heard(running, stream):
    fields = {"voice": "Claribel", "response_format": "pcm", "stream": stream, "max_codes": 4}
    lengths = [
        len(running.client.ask("POST", "/v1/audio/speech", {**fields, "input": f"Hello. [pause {pause}] Hello."}).body)
        for pause in ("0s", "1s")
    ]
    assert lengths[1] - lengths[0] == 2 * 24_000


def test_two_clients_at_once_get_what_each_gets_alone(running):
    def speak(seed):
        return running.client.speak("Hello there.", "narrator", seed=seed, stream=True).body

    alone = [speak(1), speak(2)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(speak, [1, 2, 1, 2]))
    assert alone[0] != alone[1]
    assert together == alone * 2
    faster, _ = read_sound(running.client.speak("Hello there.", "narrator", seed=1, speed=2.0, stream=True).body)
    assert len(faster) == pytest.approx(len(read_sound(alone[0])[0]) / 2, rel=0.05)


def test_a_voice_can_be_uploaded_and_is_its_owners_alone(running, tmp_path):
    recording = write_recording(tmp_path / "mine.wav").read_bytes()
    kind = {"Content-Type": "audio/wav"}
    answer = running.client.ask("POST", "/v1/audio/voices?consent=yes", recording, **kind)
    assert answer.status == 201, answer.body
    name = json.loads(answer.body)["id"]
    assert running.client.speak(voice=name, max_codes=8).status == 200
    listed = json.loads(running.client.ask("GET", "/v1/audio/voices").body)
    assert [voice["id"] for voice in listed["data"]] == ["Claribel", "narrator"]


@pytest.mark.parametrize(
    ("path", "seconds", "kind", "status", "message"),
    [
        ("/v1/audio/voices?consent=yes", 0.1, "audio/wav", 400, "The recording: a reference must last at least 0.33 s"),
        ("/v1/audio/voices?consent=yes", 301.0, "audio/wav", 400, "The recording: must last at most 300 s"),
        ("/v1/audio/voices?consent=yes", 0.0, "audio/wav", 400, "The recording: cannot be read as sound"),
        ("/v1/audio/voices?consent=yes", 2.0, "text/plain", 415, "audio/*"),
    ],
)
def test_uploads_that_give_no_voice_are_refused(running, tmp_path, path, seconds, kind, status, message):
    recording = b"no sound at all"
    if seconds:
        recording = tmp_path / "r.flac"
        soundfile.write(recording, np.sin(np.arange(round(seconds * 8000)) / 9), 8000)
        recording = recording.read_bytes()
    answer = running.client.ask("POST", path, recording, **{"Content-Type": kind})
    assert answer.status == status
    assert message in answer.error["message"]
    assert not any(word in answer.error["message"] for word in ("/proc", "metadata"))


def test_a_server_told_to_stop_in_mid_sentence_leaves_nothing_behind(serving_folder):
    with start_server(serving_folder) as server:
        process = psutil.Process(server.process.pid)
        response = server.client.open(
            "POST", "/v1/audio/speech", {"input": TEXT * 20, "voice": "narrator", "stream": True}
        )
        assert len(response.read(44)) == 44
        children = process.children(recursive=True)
        code, out = server.stop(signal.SIGTERM)
        response.close()
    log = server.log.read_text()
    assert code == 0, log
    assert out.strip().endswith("Stopped.")
    assert not any(child.is_running() for child in children)
    assert "POST /v1/audio/speech" in log
    assert TEXT[:20] not in log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "a token must be given"),
        (["--token", ""], "visible ASCII"),
        (["--rate", "0"], "--rate must be from 1"),
        (["--port", "99999"], "--port must be from 0"),
        (["--voices", "{folder}/model/nowhere"], "must be a folder that can be read"),
        (["--tokn", "x"], "Did you mean --token?"),
        (["--lexicon", "{folder}/words.tsv"], "there is no such file"),
        (["--checkpoint", "nowhere"], "nowhere: does not exist"),
    ],
)
def test_a_server_that_cannot_start_says_why(serving_folder, flags, message, capsys, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    words = [flag.format(folder=serving_folder) for flag in flags]
    assert main(["serve", "--checkpoint", str(serving_folder / "model"), "--rehearsal", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_voices_asks_for_some():
    settings = ServerSettings(port=0)
    with bind_socket(settings) as listener, pytest.raises(ServerStartError, match="Give --voices DIR"):
        run_server(listener, settings, lambda: contextlib.nullcontext(GatedSynthesizer()), lambda *_: None)


def test_of_two_servers_at_an_address_the_one_that_listens_later_is_told():
    with bind_socket(ServerSettings(port=0)) as first:
        settings = ServerSettings(port=first.getsockname()[1], allow_upload=True)
        with bind_socket(settings) as second:
            first.listen()
            with pytest.raises(ServerStartError, match="cannot be used: Address already"):
                run_server(second, settings, lambda: contextlib.nullcontext(GatedSynthesizer()), lambda *_: None)


def test_without_its_packages_the_command_says_what_to_install(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else real(name, *rest)
    )
    assert main(["serve", "--checkpoint", "x"]) == 1
    assert "pip install -c constraints.txt '.[serve]'" in capsys.readouterr().err


def test_how_it_speaks_is_what_the_flags_say(serving_folder, monkeypatch, tmp_path):
    given = {}

    def run(listener, settings, open_synthesizer, tell_ready):
        with open_synthesizer():
            pass

    monkeypatch.setattr(serve, "open_speaking_device", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(synthesizer, "load_synthesizer", lambda model, **how: given.update(how))
    monkeypatch.setattr(server, "run_server", run)
    (tmp_path / "words.tsv").write_text("[en]\nNguyen\twin\n")
    flags = ["--lexicon", str(tmp_path / "words.tsv"), "--engine", "float32", "--vocoder", "griffin-lim", "--port", "0"]
    assert main(["serve", "--checkpoint", str(serving_folder / "model"), *flags]) == 0
    assert given.pop("lexicon").apply("Nguyen", "en") == "win"
    assert given == {"engine": "float32", "vocoder": "griffin-lim"}


def test_flags_are_those_of_the_server_and_a_token_comes_from_one_or_the_environment(monkeypatch):
    def read(*flags):
        return read_settings(make_parser("serve", "serve").parse_all(["--checkpoint", "model", *flags]))

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read() == ServerSettings()
    assert read().host == "127.0.0.1", "nobody but this machine is let in unless asked"
    asked = read("--first-chunk", "9", "--max-text", "7", "--rate", "5", "--queue", "3")
    limits = asked.limits
    assert (asked.first_codes, limits.text_characters, limits.requests_per_minute, limits.queue) == (9, 7, 5, 3)
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-environment")
    assert read().token == "of-the-environment"
    assert read("--token", "of-the-flag").token == "of-the-flag"

"""OpenAI's own client, unchanged, against a real server: formats, streams, voices, and errors as its exceptions."""

import io

import numpy as np
import openai
import pytest
import soundfile

from myxtts.serving.sounds import FORMATS
from tests.serving.hosting import CHUNK_SAMPLES, VOICE, GatedSynthesizer, host

TEXT = "Hello there, you. Good morning to us."


def make_client(port, token="none"):
    """A client; a context, so that its connections end."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=token, max_retries=0)


@pytest.fixture(scope="module")
def client(running):
    with make_client(running.client.port) as client:
        yield client


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_that_is_offered_is_a_sound_file(client, name):
    speech = client.audio.speech.create(model="tts-1", voice="narrator", input=TEXT, response_format=name)
    data = speech.content
    assert speech.response.headers["content-type"] == FORMATS[name].media_type
    if name == "pcm":
        samples = np.frombuffer(data, "<i2")
    else:
        samples, _ = soundfile.read(io.BytesIO(data), dtype="int16")
    assert len(samples) > 20_000
    assert np.abs(samples.astype(int)).max() > 50


def test_without_a_format_the_file_is_what_openais_clients_name_it(client, tmp_path):
    speech = client.audio.speech.create(model="tts-1", voice="narrator", input=TEXT)
    assert speech.response.headers["content-type"] == "audio/mpeg"
    path = tmp_path / "speech.mp3"
    speech.write_to_file(path)
    assert soundfile.info(path).format == "MP3"
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="narrator", input=TEXT, extra_body={"stream": True}
    ) as response:
        assert response.headers["content-type"] == "audio/wav"
        assert response.read()[:4] == b"RIFF"


def test_a_stream_comes_as_it_is_made_and_can_be_written_to_a_file(client, tmp_path):
    whole = client.audio.speech.create(
        model="tts-1", voice="narrator", input=TEXT, response_format="wav", extra_body={"stream": False, "seed": 3}
    )
    path = tmp_path / "speech.wav"
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="narrator", input=TEXT, response_format="wav", extra_body={"seed": 3}
    ) as response:
        assert response.headers["transfer-encoding"] == "chunked"
        response.stream_to_file(path)
    streamed, rate = soundfile.read(path, dtype="int16")
    expected, _ = soundfile.read(io.BytesIO(whole.content), dtype="int16")
    assert (rate, streamed.shape) == (22_050, expected.shape)
    assert np.max(np.abs(streamed.astype(int) - expected)) <= 4
    # Sound is there while more is made.
    synthesizer = GatedSynthesizer()
    with host(synthesizer, {"Ana": VOICE}) as server, make_client(server.port) as other:
        synthesizer.gate.release()
        with other.audio.speech.with_streaming_response.create(
            model="myxtts", voice="Ana", input="Hello.", response_format="wav"
        ) as response:
            parts = response.iter_bytes(44 + 2 * CHUNK_SAMPLES)
            assert len(next(parts)) == 44 + 2 * CHUNK_SAMPLES
            assert synthesizer.made == 1
            synthesizer.open_gate()
            assert sum(map(len, parts)) == 4 * 2 * CHUNK_SAMPLES


def test_models_are_listed_and_fields_of_ours_pass_through(client):
    assert [model.id for model in client.models.list()] == ["myxtts", "tts-1", "tts-1-hd"]
    lengths = [
        len(client.audio.speech.create(model="myxtts", voice="Claribel", input="Hello.", speed=speed).content)
        for speed in (1.0, 2.0)
    ]
    assert lengths[1] < 0.7 * lengths[0]
    assert client.audio.speech.create(
        model="myxtts", voice={"id": "Claribel"}, input="Hello.", extra_body={"max_codes": 4, "language": "en"}
    ).content


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"voice": "alloy"}, openai.BadRequestError, "voice"),
        ({"response_format": "aac"}, openai.BadRequestError, "response_format"),
        ({"stream_format": "sse"}, openai.BadRequestError, "stream_format"),
        ({"instructions": "Speak like a pirate."}, openai.BadRequestError, "instructions"),
        ({"speed": 9.0}, openai.BadRequestError, "speed"),
        ({"input": ""}, openai.BadRequestError, "input"),
        ({"model": "gpt-4o-mini-tts"}, openai.NotFoundError, "model"),
        ({"input": "a" * 5000}, openai.APIStatusError, "input"),
    ],
)
def test_what_is_wrong_is_the_exception_of_that_name_and_says_what_to_change(client, fields, error, param):
    with pytest.raises(error) as caught:
        client.audio.speech.create(**{"model": "tts-1", "voice": "narrator", "input": "Hello.", **fields})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert (param if fields.get("input") != "" else "The text must") in caught.value.message
    assert caught.value.status_code == (404 if param == "model" else 413 if fields.get("input") else 400)


@pytest.mark.parametrize(
    ("chosen", "token", "error", "words"),
    [
        ({"token": "right"}, "wrong", openai.AuthenticationError, "brings another one"),
        ({"requests_per_minute": 1}, "any", openai.RateLimitError, "1 requests a minute"),
        ({"queue": 1}, "any", openai.InternalServerError, "Try again in a moment"),
        ({}, "any", openai.InternalServerError, "its log says why"),
    ],
)
def test_tokens_limits_and_failures_have_their_exceptions_too(chosen, token, error, words):
    asked = {"model": "tts-1", "voice": "Ana", "input": "Hello."}
    synthesizer = GatedSynthesizer(error=None if chosen else OSError("broken"), chunks=5 if chosen else 0)
    with host(synthesizer, {"Ana": VOICE}, **chosen) as server, make_client(server.port, token) as client:
        waiting = (
            server.start("POST", "/v1/audio/speech", {"input": "Hello.", "voice": "Ana"}) if "queue" in chosen else None
        )
        if waiting:
            server.wait_for_requests(1)
        else:
            synthesizer.open_gate()
        if "requests_per_minute" in chosen:
            assert client.audio.speech.create(**asked, response_format="wav").content[:4] == b"RIFF"
        with pytest.raises(error, match=words):
            client.audio.speech.create(**asked)
        synthesizer.open_gate()
        if waiting:
            assert waiting.getresponse().read()
            waiting.close()

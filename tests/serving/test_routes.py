"""What a server answers, with a model whose chunks the test hands out: streams, queues, limits, errors, farewells."""

import contextlib
import http.client
import json
import logging
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from myxtts.errors import SpeechRequestError
from myxtts.serving import metrics
from myxtts.serving.model_thread import MODEL_DIED
from myxtts.serving.request import SpeechFacts, read_request, speak
from tests.serving.hosting import CHUNK_SAMPLES, VOICE, WAIT_S, GatedSynthesizer, give_up, host, run_thread

SPEECH = "/v1/audio/speech"
VOICES = {"Ana": VOICE, "Claribel": VOICE}
ORDER = {"input": "Hello.", "voice": "Ana", "stream": True}


@pytest.fixture
def synthesizer():
    return GatedSynthesizer()


@pytest.fixture
def client(synthesizer):
    with host(synthesizer, VOICES) as client:
        yield client


def test_sound_is_sent_while_more_is_made(synthesizer, client):
    synthesizer.gate.release()
    response = client.open("POST", SPEECH, ORDER)
    assert (response.status, response.headers["Content-Type"]) == (200, "audio/wav")
    assert response.headers["Transfer-Encoding"] == "chunked"
    assert response.headers["X-Sample-Rate"] == "22050"
    for index in range(5):
        # One chunk is made, it comes, and only then the next one may be made.
        header = response.read(44) if index == 0 else b""
        assert header[:4] == (b"RIFF" if index == 0 else b"")
        samples = np.frombuffer(response.read(2 * CHUNK_SAMPLES), "<i2")
        np.testing.assert_array_equal(samples, round((index + 1) / 10 * 32767))
        assert synthesizer.made == index + 1
        synthesizer.gate.release()
    assert response.read() == b""
    # One that is whole has a length.
    synthesizer.open_gate()
    answer = client.speak(stream=False, response_format="wav")
    assert int(answer.headers["Content-Length"]) == len(answer.body) == 44 + 5 * 2 * CHUNK_SAMPLES
    assert int.from_bytes(answer.body[40:44], "little") == len(answer.body) - 44


def test_a_recording_that_is_not_allowed_or_without_its_speakers_consent_is_refused_and_never_heard(synthesizer):
    # It has no way to clone: one that were asked to would be an error of the server.
    with host(synthesizer, VOICES) as client:
        answer = client.ask("POST", "/v1/audio/voices?consent=yes", b"x", **{"Content-Type": "audio/wav"})
    assert answer.status == 403
    assert "--allow-upload" in answer.error["message"]
    with host(synthesizer, VOICES, allow_upload=True) as client:
        for query in ("", "?consent=no", "?consent="):
            answer = client.ask("POST", f"/v1/audio/voices{query}", b"sound", **{"Content-Type": "audio/wav"})
            assert (answer.status, answer.error["param"]) == (400, "consent"), query
            assert "A voice belongs to its speaker: ask for consent first" in answer.error["message"]
            assert "?consent=yes" in answer.error["message"]


def test_a_client_that_goes_ends_its_speech_at_the_next_chunk(synthesizer, client):
    synthesizer.gate.release()
    response = client.open("POST", SPEECH, ORDER)
    response.read(44)
    give_up(response)
    client.wait_for_requests(0)
    synthesizer.open_gate()
    assert synthesizer.ended.wait(WAIT_S)
    assert not synthesizer.was_forgotten
    assert synthesizer.made <= 2
    # And the model is there for others.
    assert client.speak().status == 200


def test_a_client_that_goes_while_it_waits_is_never_spoken_for(synthesizer, client):
    speaking = threading.Thread(target=client.speak)
    speaking.start()
    client.wait_for_requests(1)
    waiting = client.start("POST", SPEECH, ORDER)
    client.wait_for_requests(2)
    waiting.close()
    client.wait_for_requests(1)
    assert not synthesizer.was_forgotten
    synthesizer.open_gate()
    speaking.join(WAIT_S)
    assert client.speak().status == 200
    assert synthesizer.made == 10
    assert 'myxtts_requests_total{outcome="left"} 1' in client.ask("GET", "/metrics").body.decode()


def test_a_full_queue_says_when_to_ask_again(synthesizer):
    with host(synthesizer, VOICES, queue=3) as client:
        waiting = [client.start("POST", SPEECH, ORDER) for _ in range(2)]
        client.wait_for_requests(2)
        answer = client.speak()
        assert (answer.status, answer.error["code"]) == (503, "server_busy")
        assert int(answer.headers["Retry-After"]) > 0
        assert "the last place is for another client" in answer.error["message"]
        other = client.move("127.0.0.2")
        waiting.append(other.start("POST", SPEECH, ORDER))
        client.wait_for_requests(3)
        # Told before its body comes.
        answer = other.ask("POST", SPEECH, None, **{"Content-Type": "application/json", "Content-Length": "40"})
        assert (answer.status, answer.error["code"]) == (503, "server_busy")
        assert "3 requests at a time, and that many are there" in answer.error["message"]
        synthesizer.open_gate()
        for connection in waiting:
            response = connection.getresponse()
            assert response.status == 200
            assert len(response.read()) == 44 + 5 * 2 * CHUNK_SAMPLES
            connection.close()
        client.wait_for_requests(0)
        assert client.speak().status == 200


@pytest.mark.parametrize(
    ("path", "body", "statuses"),
    [(SPEECH, ORDER, [200, 200, 429]), ("/v1/audio/voices", b"x", [403, 403, 429])],
    ids=["speech", "refused recordings"],
)
def test_a_header_cannot_make_one_client_many(synthesizer, path, body, statuses):
    synthesizer.open_gate()
    kind = {"Content-Type": "audio/wav"} if isinstance(body, bytes) else {}
    with host(synthesizer, VOICES, requests_per_minute=2) as client:
        answers = [client.ask("POST", path, body, **kind, **{"X-Forwarded-For": f"10.0.0.{n}"}) for n in range(3)]
        # Looking is free.
        assert client.ask("GET", "/v1/audio/voices").status == 200
    assert [answer.status for answer in answers] == statuses
    assert answers[2].error["type"] == "rate_limit_error"
    assert 0 < int(answers[2].headers["Retry-After"]) <= 60


def test_half_of_a_character_is_told_and_not_tripped_over(client):
    for fields in ({"\ud800": 1}, {**ORDER, "voice": "\ud800"}, {**ORDER, "language": "\ud800"}):
        answer = client.ask("POST", SPEECH, fields)
        assert answer.status in (400, 404), fields
        assert "ud800" in answer.body.decode()


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({"input": "a" * 11, "voice": "Ana"}, {}, 413, "request_too_large"),
        (b" " * 5000, {}, 413, "request_too_large"),
        (b"1388\r\n" + b" " * 5000 + b"\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"}, 413, "request_too_large"),
        (None, {"Content-Length": str(1 << 40)}, 413, "request_too_large"),
        (None, {"Content-Length": "9"}, 408, "request_timeout"),
    ],
    ids=["text", "body", "chunks", "announced", "never comes"],
)
def test_what_is_too_large_or_does_not_come_is_refused(synthesizer, body, headers, status, code):
    with host(synthesizer, VOICES, text_characters=10, body_s=0.05) as client:
        answer = client.ask("POST", SPEECH, body, **{"Content-Type": "application/json", **headers})
    assert (answer.status, answer.error["code"]) == (status, code)


def test_bad_requests_are_answered_and_never_reach_the_model(synthesizer, client):
    for fields, param in (({"input": ""}, "input"), ({"voice": "Nobody"}, "voice"), ({"speed": 100}, "speed")):
        answer = client.ask("POST", SPEECH, {**ORDER, **fields})
        assert answer.status == 400
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] == param
    assert client.speak(model="gpt-9").status == 404
    assert "Did you mean 'Claribel'?" in client.speak(voice="Claribell").error["message"]
    assert "There are: Ana, Claribel." in client.speak(voice="zzzzzz").error["message"]
    for method, path, status in (("GET", "/nothing", 404), ("GET", SPEECH, 405), ("PUT", "/", 405)):
        answer = client.ask(method, path)
        assert (answer.status, "POST /v1/audio/speech" in answer.error["message"]) == (status, True)
    assert synthesizer.made == 0


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (SpeechRequestError("Of 'a private text' it knows none."), 400, None, "Of 'a private text' it knows none."),
        (OSError("/secret/path is broken"), 500, "internal_error", "its log says why"),
    ],
)
def test_what_the_model_cannot_say_is_told_and_what_breaks_only_to_the_log(caplog, error, status, code, message):
    with caplog.at_level(logging.INFO), host(GatedSynthesizer(chunks=0, error=error), VOICES) as client:
        answer = client.speak()
        assert client.ask("GET", "/healthz").status == 200
    assert (answer.status, answer.error["code"]) == (status, code)
    assert message in answer.error["message"]
    assert "secret" not in answer.body.decode()
    assert any("/secret/path is broken" in str(record.exc_info) for record in caplog.records) == (status == 500)
    assert answer.error["param"] == ("input" if status == 400 else None)
    assert "a private text" not in caplog.text


def test_a_model_that_has_died_is_told_to_clients_and_to_who_asks_for_health(caplog):
    synthesizer = GatedSynthesizer(chunks=1, error=SystemExit("broken"))
    with caplog.at_level(logging.CRITICAL), host(synthesizer, VOICES) as client, ThreadPoolExecutor() as pool:
        assert json.loads(client.ask("GET", "/healthz").body) == {"status": "ok", "requests": 0}
        # One that is under way, one that waits, and one that comes later.
        asked = [pool.submit(client.speak, stream=False) for _ in range(2)]
        client.wait_for_requests(2)
        synthesizer.open_gate()
        for answer in (*(each.result() for each in asked), client.speak()):
            assert (answer.status, answer.error["message"]) == (500, MODEL_DIED)
            health = client.ask("GET", "/healthz")
            assert (health.status, json.loads(health.body)["status"]) == (503, "failed")
    (record,) = caplog.records
    assert str(record.exc_info[1]) == "broken"


def test_what_breaks_in_the_middle_cuts_the_answer_off():
    synthesizer = GatedSynthesizer(chunks=2, error=OSError("broken"))
    synthesizer.open_gate()
    with host(synthesizer, VOICES) as client:
        response = client.open("POST", SPEECH, ORDER)
        assert response.status == 200
        with pytest.raises(http.client.IncompleteRead):
            response.read()
        client.wait_for_requests(0)
        assert 'outcome="failed"} 1' in client.ask("GET", "/metrics").body.decode()


def test_the_log_has_a_line_for_each_request_without_its_text(synthesizer, client, caplog):
    synthesizer.open_gate()
    with caplog.at_level(logging.INFO, logger="myxtts.serving"):
        client.speak("A secret sentence.", response_format="pcm")
        client.ask("GET", "/v1/models")
        client.ask("GET", "/a%0Ab")
        client.wait_for_requests(0)
    lines = [record.getMessage() for record in caplog.records if record.name == "myxtts.serving.app"]
    speech = next(line for line in lines if SPEECH in line)
    assert speech.startswith(f"127.0.0.1 POST {SPEECH} 200 in ")
    for words in ("18 characters", "en", "pcm, streamed", "0.50 s of speech", "first sound after", "pieces cut off: 1"):
        assert words in speech
    assert not any("secret" in line for line in lines)
    assert any("GET /v1/models 200" in line for line in lines)
    assert any("GET /a%0Ab 404" in line for line in lines)


def test_models_and_voices_are_listed(client):
    models = json.loads(client.ask("GET", "/v1/models").body)
    assert [model["id"] for model in models["data"]] == ["myxtts", "tts-1", "tts-1-hd"]
    voices = json.loads(client.ask("GET", "/v1/audio/voices").body)
    assert [voice["id"] for voice in voices["data"]] == ["Ana", "Claribel"]
    assert (voices["languages"], voices["can_upload"], voices["max_text"]) == (["en", "fa"], False, 4096)


def test_a_server_that_stops_ends_what_is_being_said_and_tells_who_waits_in_json(synthesizer, caplog):
    with caplog.at_level(logging.INFO), run_thread(synthesizer) as thread:
        with host(synthesizer, VOICES, thread=thread) as client:
            synthesizer.gate.release()
            spoken = client.open("POST", SPEECH, ORDER)
            assert spoken.status == 200
            waiting = client.start("POST", SPEECH, ORDER)
            client.wait_for_requests(2)
        # The server has gone though the answer has not ended; the model's thread stops at its next chunk.
        with contextlib.closing(waiting):
            response = waiting.getresponse()
            assert (response.status, int(response.headers["Retry-After"]) > 0) == (503, True)
            assert "about to stop" in json.loads(response.read())["error"]["message"]
        synthesizer.gate.release()
    assert synthesizer.ended.is_set()
    assert synthesizer.made <= 2
    # It has heard of no error: there was nobody left to hand the chunk to.
    assert not thread.has_died
    with pytest.raises(http.client.IncompleteRead):
        spoken.read()
    assert "Traceback" not in caplog.text


def test_the_page_loads_nothing_but_itself(client):
    answer = client.ask("GET", "/")
    assert answer.headers["Content-Type"].startswith("text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "://" not in answer.body.decode()


def test_prometheus_is_told_what_was_spoken_and_how_requests_ended(synthesizer, client):
    def read():
        answer = client.ask("GET", "/metrics")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.body.decode().splitlines()
        kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE ")}
        figures = {name: float(figure) for name, figure in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
        for name in figures:
            plain = name.partition("{")[0]
            assert plain in kinds or kinds[plain.rpartition("_")[0]] == "histogram"
        return figures

    synthesizer.gate.release()
    response = client.open("POST", SPEECH, ORDER)
    response.read(44)
    assert read()["myxtts_requests_in_hand"] == 1
    give_up(response)
    client.wait_for_requests(0)
    synthesizer.open_gate()
    assert synthesizer.ended.wait(WAIT_S)
    statuses = [client.speak().status, client.speak(voice="Nobody").status, client.ask("POST", SPEECH, b"{").status]
    assert statuses == [200, 400, 415]
    figures = read()
    ends = {name: figures[f'myxtts_requests_total{{outcome="{name}"}}'] for name in metrics.OUTCOMES}
    assert ends == {"spoken": 1, "refused": 2, "failed": 0, "left": 0, "cut_off": 1}
    assert figures["myxtts_first_sound_seconds_count"] == 2
    assert figures['myxtts_first_sound_seconds_bucket{le="+Inf"}'] == 2
    assert (
        figures['myxtts_first_sound_seconds_bucket{le="0.05"}']
        <= figures['myxtts_first_sound_seconds_bucket{le="30.0"}']
    )
    assert 0.6 <= figures["myxtts_speech_seconds_total"] <= 0.7
    assert figures["myxtts_requests_in_hand"] == 0
    assert figures["myxtts_private_memory_bytes"] > 10_000_000
    batch = types.SimpleNamespace(codes=70, saying=[1, 2], waiting=[3])
    for line in ("codes_total 70", "rows_in_flight 2", "rows_waiting 1", "requests_in_hand 4"):
        assert f"\nmyxtts_{line}\n" in metrics.ServingMetrics().write(batch, 4)
    for most_s, count in ((0.05, 1), (0.1, 1), (0.2, 2)):
        facts, own = SpeechFacts(first_sound_s=0.11), metrics.ServingMetrics()
        own.count("spoken", SpeechFacts(first_sound_s=0.01))
        own.count("spoken", facts)
        assert f'bucket{{le="{most_s}"}} {count}\n' in own.write(synthesizer.batch, 0)
        assert "first_sound_seconds_sum 0.120000\n" in own.write(synthesizer.batch, 0)


@pytest.mark.parametrize(("format_name", "parts"), [("mp3", 1), ("wav", 5)])
def test_the_first_sound_has_come_when_it_can_be_sent(synthesizer, format_name, parts):
    body = json.dumps({**ORDER, "stream": format_name == "wav", "response_format": format_name}).encode()
    speech, facts, sent = read_request(body, languages=("en",), most_characters=100), SpeechFacts(), 0
    synthesizer.open_gate()
    for part in speak(synthesizer, speech, VOICE, facts, first_codes=6):
        sent += part is not None
        assert (facts.first_sound_s is not None) == (sent > 0)
    assert sent == parts


def test_a_stream_begins_with_as_many_codes_as_the_server_was_started_with(synthesizer):
    synthesizer.open_gate()
    with host(synthesizer, VOICES, first_codes=9) as client:
        client.speak(stream=True)
        assert synthesizer.first_codes == 9
        client.speak(stream=False)
        assert synthesizer.first_codes is None

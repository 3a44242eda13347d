"""Bodies of requests: what they may say, and what is said to those that may not."""

import json

import pytest

from myxtts.inference.speech import SpeechSettings
from myxtts.serving.request import FIELDS, ApiError, read_request
from myxtts.serving.sounds import FORMATS

LEAST = {"input": "Hello.", "voice": "Ana"}


def read(fields, languages=("en", "fa"), most=100):
    return read_request(json.dumps(fields).encode(), languages=languages, most_characters=most)


def test_the_least_and_the_most_that_can_be_said():
    order = read(LEAST)
    assert (order.text, order.voice, order.language) == ("Hello.", "Ana", "en")
    assert (order.format_name, order.is_streamed, order.settings.speed) == ("mp3", False, 1.0)
    # Fields that are null are as if left out.
    assert read({**LEAST, **dict.fromkeys(set(FIELDS) - set(LEAST))}) == order
    assert read(LEAST, languages=("de", "fa")).language == "de", "a model without English speaks its own"
    settings = {
        "speed": 2, "temperature": 0.5, "top_k": 7, "top_p": 0.5, "repetition_penalty": 2.0, "greedy": True, "seed": 3,
        "max_codes": 9, "sentence_pause": 0.5, "paragraph_pause": 0,
    }  # fmt: skip
    fields = {"model": "tts-1", "input": "سلام.", "voice": {"id": "Ana"}, "language": "fa-IR", "stream_format": "audio"}
    order = read({**fields, "response_format": "flac", "stream": False, **settings})
    assert (order.voice, order.language, order.format_name, order.is_streamed) == ("Ana", "fa", "flac", False)
    assert order.settings == SpeechSettings(**settings)


def test_only_what_can_be_streamed_is():
    assert {name for name in FORMATS if read({**LEAST, "response_format": name}).is_streamed} == {"wav", "pcm"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, ("mp3", False)), ({"stream": False}, ("mp3", False)), ({"stream": True}, ("wav", True))],
)
def test_without_a_format_it_is_openais_or_one_that_can_be_streamed(fields, expected, monkeypatch):
    order = read({**LEAST, **fields})
    assert (order.format_name, order.is_streamed) == expected
    # An old libsndfile writes none.
    monkeypatch.delitem(FORMATS, "mp3")
    assert read({**LEAST, **fields}).format_name == "wav"


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"input": None}, "input", "must have input"),
        ({"voice": None}, "voice", "must have voice"),
        ({"input": ""}, "input", "something to say"),
        ({"input": " … "}, "input", "something to say"),
        ({"input": "Wait [pause 60s] here."}, "input", "A pause must be from 0 to 10 seconds"),
        ({"sentence_pause": 60}, "sentence_pause", "from 0 to 10"),
        ({"input": "\ud800 abc"}, "input", "half of a character"),
        pytest.param({"seed": 10**400}, "seed", "seed must be from 0 to", id="seed-of-400-digits"),
        ({"input": "a" * 101}, "input", "100 characters at most, but has 101"),
        ({"input": 5}, "input", "input must be a text, but is a number"),
        ({"model": "gpt-9"}, "model", "model must be one of myxtts"),
        ({"language": "xx"}, "language", "must be one of"),
        ({"language": "de"}, "language", r"trained on \(en, fa\), but is 'de'"),
        ({"response_format": "aac"}, "response_format", "one of wav, pcm, flac"),
        ({"response_format": "flac", "stream": True}, "stream", "must be wav or pcm, but is flac"),
        ({"stream": "yes"}, "stream", "stream must be true or false"),
        ({"stream_format": "sse"}, "stream_format", "must be audio"),
        ({"speed": 9}, "speed", "speed must be from 0.25 to 4"),
        ({"speed": "fast"}, "speed", "speed must be a number"),
        ({"speed": True}, "speed", "speed must be a number"),
        ({"speed": float("nan")}, "speed", "speed must be from"),
        ({"top_k": 1.5}, "top_k", "top_k must be a whole number, but is the number 1.5"),
        ({"top_k": 10**30}, "top_k", "top_k must be from 0"),
        ({"retries": 9}, "retries", "retries must be at most 8 here, but is 9"),
        ({"seed": -1}, "seed", "seed must be from 0"),
        ({"langauge": "en"}, "langauge", "Did you mean language"),
        ({"instructions": "whisper"}, "instructions", "no field 'instructions'"),
    ],
)
def test_what_is_wrong_is_named_with_the_field(change, param, message):
    with pytest.raises(ApiError, match=message) as caught:
        read({**LEAST, **change})
    assert caught.value.param == param
    assert 400 <= caught.value.kind.status < 500


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"input": "\\ud'])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(ApiError, match=r"must be (a )?JSON"):
        read_request(body, languages=["en"], most_characters=100)

"""What one asks for does not hold up others: a short sentence is heard beside whatever takes long."""

import contextlib

import pytest

SHORT = {"input": "No.", "voice": "Claribel", "response_format": "pcm", "max_codes": 40}
SENTENCE, LONG = "Good morning to us all. ", {"voice": "Claribel", "seed": 3}


@pytest.mark.parametrize(
    ("sentences", "fields"),
    # With retries few: had each but one turn, all would be over before the short one.
    [(60, {"stream": False}), (12, {"stream": False, "retries": 8}), (12, {"retries": 8})],
    ids=["whole", "whole with retries", "stream with retries"],
)
def test_a_short_stream_is_heard_beside_a_long_answer(running, sentences, fields):
    client = running.client
    client.wait_for_requests(0)
    long = client.start("POST", "/v1/audio/speech", {**LONG, "input": SENTENCE * sentences, **fields})
    client.wait_for_requests(1)
    with contextlib.closing(client.open("POST", "/v1/audio/speech", SHORT)) as response:
        assert response.status == 200
        assert len(response.read(2)) == 2
        response.read()
    client.wait_for_requests(1)
    long.close()
    client.wait_for_requests(0)

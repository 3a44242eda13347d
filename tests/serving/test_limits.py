"""How much, how often, how many at once."""

import pytest

from myxtts.serving.errors import BusyError, RateLimitError, ServerStartError
from myxtts.serving.limits import Places, RateLimiter, ServingLimits, name_client


def test_a_client_has_so_many_requests_a_minute_and_others_have_theirs():
    now = [0.0]
    limiter = RateLimiter(2, clock=lambda: now[0])
    limiter.count("10.0.0.1")
    now[0] = 20.0
    limiter.count("10.0.0.1")
    limiter.count("10.0.0.2")
    with pytest.raises(RateLimitError, match="2 requests a minute") as caught:
        limiter.count("10.0.0.1")
    assert caught.value.headers == {"Retry-After": "40"}
    now[0] = 60.0
    limiter.count("10.0.0.1")
    with pytest.raises(RateLimitError):
        limiter.count("10.0.0.1")


def test_clients_of_the_past_are_forgotten():
    now = [0.0]
    limiter = RateLimiter(2, clock=lambda: now[0])
    for number in range(100):
        limiter.count(f"10.0.0.{number}")
    now[0] = 61.0
    limiter.count("10.0.1.1")
    assert list(limiter._times) == ["10.0.1.1"]


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_client(address, client):
    assert name_client(address) == client


def test_places_are_given_back_whatever_happens():
    places = Places(1)

    def fail():
        with places.take():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert places.taken == 0
    with places.take(), pytest.raises(BusyError) as caught, places.take():
        pass
    assert int(caught.value.headers["Retry-After"]) > 0
    with places.take():
        assert places.taken == 1


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [("text_characters", 0, "--max-text"), ("requests_per_minute", -1, "--rate"), ("queue", 0, "--queue")],
)
def test_a_limit_of_nothing_is_refused(field, value, flag):
    with pytest.raises(ServerStartError, match=f"{flag} must be from 1 to"):
        ServingLimits(**{field: value})


def test_the_largest_body_holds_the_longest_text():
    limits = ServingLimits(text_characters=100)
    assert limits.body_bytes > 100 * len("\\ud83d\\ude00")

"""Who may ask: addresses, names and tokens."""

import pytest

from myxtts.serving.request import ServerStartError
from myxtts.serving.server import ServerSettings, bind_socket, name_address
from tests.serving.hosting import VOICE, GatedSynthesizer, host

TOKEN = "correct-horse"


@pytest.fixture(scope="module")
def guarded():
    synthesizer = GatedSynthesizer()
    synthesizer.open_gate()
    with host(synthesizer, {"Ana": VOICE}, token=TOKEN) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/audio/speech"), ("GET", "/x")])
@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer é"])
def test_without_the_token_nothing_is_told(guarded, method, path, given):
    answer = guarded.ask(method, path, **({} if given is None else {"Authorization": given}))
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.error["code"] == "invalid_api_key"
    assert "Authorization: Bearer TOKEN" in answer.error["message"]
    assert TOKEN not in answer.body.decode()


def test_with_the_token_everything_is_there_and_the_page_and_the_health_check_without_one(guarded):
    for scheme in ("Bearer", "bearer", "BEARER", "Bearer "):
        assert guarded.ask("GET", "/v1/models", Authorization=f"{scheme} {TOKEN}").status == 200
    order, token = {"input": "Hello.", "voice": "Ana"}, {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.ask("POST", "/v1/audio/speech", order, **token).status == 200
    assert [guarded.ask("GET", path).status for path in ("/", "/healthz")] == [200, 200]


def test_wrong_tokens_are_told_to_wait_and_lock_nobody_out():
    with host(GatedSynthesizer(), {"Ana": VOICE}, token=TOKEN, requests_per_minute=3) as client:
        answers = [
            client.ask("GET", "/v1/models", Authorization=f"Bearer {word}")
            for word in (TOKEN, TOKEN, TOKEN, TOKEN, 1, 2, 3, 4, TOKEN)
        ]
        elsewhere = client.move("127.0.0.2").ask("GET", "/v1/models", Authorization=f"Bearer {TOKEN}")
    assert [answer.status for answer in answers] == [200] * 4 + [401, 401, 401, 429, 200]
    assert elsewhere.status == 200
    assert "3 wrong tokens a minute" in answers[7].error["message"]
    assert int(answers[7].headers["Retry-After"]) > 0


def test_a_web_page_cannot_point_its_own_name_here():
    with host(GatedSynthesizer(), {"Ana": VOICE}) as client:
        for name in ("127.0.0.1", "localhost:8020", "[::1]:8020", "LOCALHOST"):
            assert client.ask("GET", "/v1/models", Host=name).status == 200, name
        evil = ("evil.example", "evil.example:8020", "127.0.0.1.evil.example", "", "localhost.", "[::1].evil.example")
        for name in evil:
            answer = client.ask("GET", "/v1/models", Host=name)
            assert answer.status == 421, name
            assert "127.0.0.1" in answer.error["message"]
    # Where a token or a word lets others in, names do not count.
    for settings in ({"token": TOKEN}, {"allow_anyone": True}):
        with host(GatedSynthesizer(), {"Ana": VOICE}, **settings) as client:
            token = {"Authorization": f"Bearer {TOKEN}"}
            assert client.ask("GET", "/v1/models", Host="tts.example", **token).status == 200


def test_a_web_page_cannot_send_what_needs_no_leave():
    with host(GatedSynthesizer(), {"Ana": VOICE}) as client:
        body = b'{"input": "Hello.", "voice": "Ana"}'
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = client.ask("POST", "/v1/audio/speech", body, **{"Content-Type": kind})
            assert answer.status == 415
            assert "application/json" in answer.error["message"]
        assert client.ask("OPTIONS", "/v1/audio/speech", Origin="http://evil.example").status == 405


def test_other_machines_are_let_in_only_with_a_token_or_a_word():
    with pytest.raises(ServerStartError, match=r"a token must be given.*--allow-anyone"):
        bind_socket(ServerSettings(host="0.0.0.0", port=0))
    for settings in (
        ServerSettings(host="0.0.0.0", port=0, token=TOKEN),
        ServerSettings(host="0.0.0.0", port=0, allow_anyone=True),
        ServerSettings(host="localhost", port=0),
    ):
        bind_socket(settings).close()


def test_an_address_that_is_taken_or_none_is_said():
    with bind_socket(ServerSettings(port=0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert name_address(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(ServerStartError, match=f"--port {port} cannot be used: .*another --port"):
            bind_socket(ServerSettings(port=port))
    with pytest.raises(ServerStartError, match="--host must be an address"):
        bind_socket(ServerSettings(host="not a host", port=0, token=TOKEN))


@pytest.mark.parametrize("token", ["", "  ", "ü", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused(token):
    with pytest.raises(ServerStartError, match="visible ASCII"):
        ServerSettings(token=token)

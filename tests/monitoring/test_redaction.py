"""What is private does not come through, whatever stands around it."""

import getpass
import platform
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.monitoring.machine_facts import redact

AROUND = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def machine():
    """The machine of somebody with a name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "home", lambda: Path("/somewhere/anna.k"))
        patch.setattr(getpass, "getuser", lambda: "anna.k")
        patch.setattr(platform, "node", lambda: "blackbox")
        yield


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "GIT_AUTH"])
@settings(max_examples=30, deadline=None)
@given(AROUND, AROUND)
def test_the_value_of_a_secret_variable_never_comes_through(name, before, after):
    assert "hunter2-hunter2" not in redact(f"{before}hunter2-hunter2{after}", {name: "hunter2-hunter2"})


def test_a_secret_does_not_come_through_in_json_and_a_short_or_plain_value_is_none():
    assert redact(r'{"x": "pa\"ss w\u00f6rd"}', {"A_TOKEN": 'pa"ss wörd'}) == '{"x": "<secret>"}'
    assert redact("0 and --somewhere", {"A_TOKEN": "0", "TF_XLA_FLAGS": "--somewhere"}) == "0 and --somewhere"


@settings(deadline=None)
@given(st.text("abc/.- \n'\"", max_size=30), st.text("/ \n'\":,)", max_size=30))
def test_home_and_names_never_come_through_as_words(before, after):
    cleaned = redact(f"{before} /somewhere/anna.k{after} anna.k@blackbox {after}", {})
    assert not [name for name in ("/somewhere/anna.k", "anna.k", "blackbox") if name in cleaned]
    assert redact(cleaned, {}) == cleaned


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("GPU-0a1b2c3d-1111-2222-3333-444455556666", "GPU-<id>"),
        ("/ho" + "me/bob/corpus", "/ho" + "me/<user>/corpus"),
        ("/somewhere/anna.k/run and /somewhere/anna.ks", "~/run and /somewhere/anna.ks"),
        ("/data/annabelle/wavs, GPU 0 - GPU 1: PHB", "/data/annabelle/wavs, GPU 0 - GPU 1: PHB"),
    ],
)
def test_ids_of_cards_and_homes_are_replaced_and_nothing_else(text, clean):
    assert redact(text, {}) == clean

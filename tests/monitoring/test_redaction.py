"""What is private does not come through, whatever stands around it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.monitoring.markdown import fence
from myxtts.monitoring.redaction import Redactor, is_secret_name, list_secrets, select_variables

HOME = Path("/somewhere") / "anna.k"
REDACTOR = Redactor(
    home=HOME, user="anna.k", host="blackbox", secrets=("hunter2-hunter2",), texts=("He said so yesterday.",)
)
AROUND = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(AROUND, AROUND)
def test_a_secret_never_comes_through(before, after):
    cleaned = REDACTOR.clean(f"{before}hunter2-hunter2{after}")
    assert "hunter2-hunter2" not in cleaned


@given(AROUND, AROUND)
def test_a_text_of_the_corpus_never_comes_through(before, after):
    assert "He said so yesterday." not in REDACTOR.clean(f"{before}He said so yesterday.{after}")


@given(st.text("abc/.- \n'\"", max_size=30), st.text("/ \n'\":,)", max_size=30))
def test_home_and_user_never_come_through_as_words(before, after):
    cleaned = REDACTOR.clean(f"{before} {HOME}{after} anna.k@blackbox {after}")
    assert str(HOME) not in cleaned
    assert "anna.k" not in cleaned
    assert "blackbox" not in cleaned


@given(st.text(max_size=200))
def test_cleaning_twice_changes_nothing_more(text):
    once = REDACTOR.clean(text)
    assert REDACTOR.clean(once) == once


# Put together here so that no scanner takes them for real.
@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a1" * 12,
        "gh" + "p_" + "A1" * 12,
        "sk-" + "a1" * 12,
        "AK" + "IA" + "ABCDEFGHIJKLMNOP",
        "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIabcdef\n-----END RSA PRIVATE KEY-----",
        "eyJ" + "a" * 12 + "." + "b" * 12 + ".c",
    ],
)
def test_what_looks_like_a_secret_does_not_come_through(text):
    cleaned = Redactor().clean(f"key {text} end")
    assert text not in cleaned
    assert cleaned.endswith(" end")
    assert "<secret>" in cleaned


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("--serve-token abcdefgh --x", "--serve-token <secret> --x"),
        ("MY_API_KEY=abcdefgh", "MY_API_KEY=<secret>"),
        ("['--token', 'abcdefgh']", "['--token', '<secret>']"),
        ('{"password": "abcdefgh"}', '{"password": "<secret>"}'),
        ("https://me:abc@host/x", "https://<secret>@host/x"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer <secret>"),
        ("GPU-0a1b2c3d-1111-2222-3333-444455556666", "GPU-<id>"),
        ("/ho" + "me/bob/corpus", "/ho" + "me/<user>/corpus"),
    ],
)
def test_secrets_are_known_by_what_stands_before_them(text, clean):
    assert Redactor().clean(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "model.text_tokens: 6681",
        "max_text_tokens=402000",
        "GPU 0 - GPU 1: PHB, on one PCIe root",
        "a secret thing happened to the token",
        "/data/annabelle/wavs",
    ],
)
def test_what_is_not_private_stays(text):
    assert Redactor(home=Path("/root"), user="root", host="localhost").clean(text) == text
    assert Redactor(user="anna").clean(text) == text


def test_the_home_folder_is_shown_as_such_and_its_neighbours_are_not_touched():
    redactor = Redactor(home=Path("/data/people/x"))
    assert redactor.clean("/data/people/x/run, /data/people/x and /data/people/xy") == "~/run, ~ and /data/people/xy"


def test_of_the_environment_only_what_was_asked_for_and_is_no_secret_is_shown():
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "MYXTTS_SERVE_TOKEN": "abcdefgh",
        "HOME": "/x",
        "HF_TOKEN": "zzzzzzzz",
        "A_KEY": "1",
    }
    assert select_variables(environ, ["CUDA_VISIBLE_DEVICES", "MYXTTS_SERVE_TOKEN"]) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert set(list_secrets(environ)) == {"abcdefgh", "zzzzzzzz"}


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "GIT_AUTH", "WANDB_APIKEY"]
)
def test_names_that_may_hold_a_secret(name):
    assert is_secret_name(name)
    assert not is_secret_name("TF_XLA_FLAGS")


def test_a_block_of_code_is_fenced_by_more_backticks_than_it_has():
    assert fence("plain") == "```\nplain\n```"
    assert fence("a ```` b", "json") == "`````json\na ```` b\n`````"

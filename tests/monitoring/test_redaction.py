"""What is private does not come through, whatever stands around it."""

import re
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.monitoring.machine_facts import fence, list_secrets, redact, select_variables

HOME = Path("/somewhere") / "anna.k"
CLEAN = partial(
    redact, home=HOME, user="anna.k", host="blackbox", secrets=("hunter2-hunter2",), texts=("He said so yesterday.",)
)
AROUND = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(AROUND, AROUND)
def test_a_secret_never_comes_through(before, after):
    cleaned = CLEAN(f"{before}hunter2-hunter2{after}")
    assert "hunter2-hunter2" not in cleaned


@given(AROUND, AROUND)
def test_a_text_of_the_corpus_never_comes_through(before, after):
    assert "He said so yesterday." not in CLEAN(f"{before}He said so yesterday.{after}")


@given(st.text("abc/.- \n'\"", max_size=30), st.text("/ \n'\":,)", max_size=30))
def test_home_and_user_never_come_through_as_words(before, after):
    cleaned = CLEAN(f"{before} {HOME}{after} anna.k@blackbox {after}")
    assert str(HOME) not in cleaned
    assert "anna.k" not in cleaned
    assert "blackbox" not in cleaned


@given(st.text(max_size=200))
def test_cleaning_twice_changes_nothing_more(text):
    once = CLEAN(text)
    assert CLEAN(once) == once


# Put together here so that no scanner takes them for real.
@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a1" * 12, "gh" + "p_" + "A1" * 12, "gh" + "u_" + "A1" * 12, "sk-" + "a1" * 12, "sk" + "-proj-" + "a1" * 12,
        "AK" + "IA" + "ABCDEFGHIJKLMNOP", "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIabcdef\n-----END RSA PRIVATE KEY-----",
        "eyJ" + "a" * 12 + "." + "b" * 12 + ".c", "np" + "m_" + "a1" * 18, "py" + "pi-" + "AgEIcHlwaS5vcmc" * 3,
        "dc" + "kr_pat_" + "a1-B" * 6, "ya" + "29." + "a0-_" * 10, "github_" + "pat_" + "a1_" * 6, "sk" + "_live_" + "a1" * 9,
        "xo" + "xb-" + "1-a" * 6, "gl" + "pat-" + "a1-" * 6, "AI" + "za" + "a1-_" * 9,
        "anna.k+list@mail.example.org", "192.168.17.4", "2001:db8::8a2e:370:7334", "3c:22:fb:01:02:ff",
        r"C:\Users\Anna Kay\corpus\a.wav", r"D:\\work\\a.wav", "E:/Users/anna", r"\\server\share\a.wav",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_does_not_come_through(text):
    for around in ("key {} end", "file=({}) end", 'say "{}", end', "[{}]: end"):
        cleaned = redact(around.format(text))
        assert text not in cleaned
        assert cleaned.endswith(" end")
        assert re.search("<(secret|e-mail|address|Windows path)>", cleaned)


@pytest.mark.parametrize("line_end", ["\n", "\\n"])
def test_a_private_key_that_is_cut_off_takes_nothing_else_with_it(line_end):
    key = ["-----BEGIN PRIVATE " + "KEY-----", "MIIE" * 16, "abcd" * 16, "efgh" * 6 + "=="]
    cleaned = redact(line_end.join(["before", *key, "2026-11-16 INFO step 7", "end"]))
    assert cleaned == line_end.join(["before", "<secret>", "2026-11-16 INFO step 7", "end"])


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("--serve-token abcdefgh --x", "--serve-token <secret> --x"),
        ("MY_API_KEY=abcdefgh", "MY_API_KEY=<secret>"),
        ("['--token', 'abcdefgh']", "['--token', '<secret>']"),
        ('{"password": "abcdefgh"}', '{"password": "<secret>"}'),
        ('{"db_password": "two words, and more", "x": 1}', '{"db_password": "<secret>", "x": 1}'),
        ("DB_PASS=12345 next", "DB_PASS=<secret> next"),
        ("environment SIGNING_KEY: ab", "environment SIGNING_KEY: <secret>"),
        ("password: 123456789", "password: <secret>"),
        ("https://x.org/?access_token=abc&y=1", "https://x.org/?access_token=<secret>"),
        ("https://me:abc@host/x", "https://<secret>@host/x"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer <secret>"),
        ("GPU-0a1b2c3d-1111-2222-3333-444455556666", "GPU-<id>"),
        ("/ho" + "me/bob/corpus", "/ho" + "me/<user>/corpus"),
    ],
)
def test_secrets_are_known_by_what_stands_before_them(text, clean):
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "model.text_tokens: 6681",
        "max_text_tokens=402000",
        "GPU 0 - GPU 1: PHB, on one PCIe root",
        "a secret thing happened to the token",
        "/data/annabelle/wavs",
        "nvidia-cudnn-cu12==9.3.0.75, tokenizers==0.20.1",
        "listening on 127.0.0.1:8000, 0.0.0.0 and ::1 since 12:34:56",
        "tests/x.py::test_y std::vector author: somebody PWD=/data",
    ],
)
def test_what_is_not_private_stays(text):
    assert redact(text, home=Path("/root"), user="root", host="localhost") == text
    assert redact(text, user="anna") == text


def test_the_home_folder_is_shown_as_such_and_its_neighbours_are_not_touched():
    text = "/data/people/x/run, /data/people/x and /data/people/xy"
    assert redact(text, home=Path("/data/people/x")) == "~/run, ~ and /data/people/xy"


def test_of_the_environment_only_what_was_asked_for_and_is_no_secret_is_shown():
    environ = {
        "CUDA_VISIBLE_DEVICES": "0", "MYXTTS_SERVE_TOKEN": "abcdefgh", "HOME": "/x", "HF_TOKEN": "zzzzzzzz", "A_KEY": "1", "PWD": "/data/x",
    }  # fmt: skip
    assert select_variables(environ, ["CUDA_VISIBLE_DEVICES", "MYXTTS_SERVE_TOKEN"]) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert set(list_secrets(environ)) == {"abcdefgh", "zzzzzzzz"}


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "GIT_AUTH", "WANDB_APIKEY", "A_KEY", "MY_PAT", "DB_PASS"],
)  # fmt: skip
def test_names_that_may_hold_a_secret(name):
    assert list_secrets({name: "abcdefgh", "TF_XLA_FLAGS": "--somewhere"}) == ("abcdefgh",)


@pytest.mark.parametrize("form", [r"pa\"ss wörd/9", "pa%22ss%20w%C3%B6rd%2F9", r"pa\"ss w\u00f6rd/9"])
def test_a_secret_does_not_come_through_in_another_form(form):
    assert form not in redact(f"<{form}>", secrets=('pa"ss wörd/9',))


def test_long_runs_do_not_take_quadratic_time():
    start_s = time.process_time()
    key = "-----BEGIN PRIVATE " + "KEY-----"
    for run in ("a", "a.", "1.", "a:", "a-", "token", "_key", "\\a", "C:/", "https://", key):
        redact(run * (30_000 // len(run)))
    # Measured: some 2 s; minutes where a pattern is tried from every letter.
    assert time.process_time() - start_s < 30


def test_a_block_of_code_is_fenced_by_more_backticks_than_it_has():
    assert fence("plain") == "```\nplain\n```"
    assert fence("a ```` b", "json") == "`````json\na ```` b\n`````"

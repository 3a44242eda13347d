"""What `--cache` comes to."""

from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.config import XTTSConfig
from myxtts.data.code_cache import CodeCache
from myxtts.pipeline import code_cache
from myxtts.pipeline.code_cache import Decision, decide_cache
from myxtts.pipeline.preparation_settings import Target, choose_preparation

KEY = {"codec": "abc"}
NOT_ALIKE = Decision("off", "Augmentation changes the clips every time.")
ONCE = Decision("off", "Every clip is prepared only once in one epoch, so nothing would be read back.")
WHAT = "The codes of 4 clips take 0.00345 MB"
DISK = Decision("disk", f"{WHAT}, and are made once for this run and later ones.")
MEMORY = Decision("memory", f"{WHAT}, and are made once for this run: there is no room for them on the disk.")
NONE = Decision("off", f"{WHAT}, for which there is no memory.")


@pytest.mark.parametrize(
    ("asked", "data", "epochs", "room", "decision"),
    [
        ("auto", {}, 2, {}, DISK),
        ("disk", {}, 1, {}, Decision("disk", "--cache is disk.")),
        ("off", {}, 2, {}, Decision("off", "--cache is off.")),
        ("auto", {"augment_gain_db": 3.0}, 2, {}, NOT_ALIKE),
        ("disk", {"augment_gain_db": 3.0}, 2, {}, NOT_ALIKE),
        ("auto", {}, 1, {}, ONCE),
        ("auto", {}, 2, {"read_free_disk_bytes": lambda folder: 3000}, MEMORY),
        ("auto", {}, 2, {"read_free_memory_bytes": lambda: 6000}, NONE),
    ],
)
def test_what_is_asked_for_and_the_room_there_is_decide(tmp_path, monkeypatch, asked, data, epochs, room, decision):
    for name, read in room.items():
        monkeypatch.setattr(code_cache, name, read)
    assert decide(tmp_path, asked, data, epochs) == decision


def test_codes_that_are_there_are_used_in_one_epoch_too(tmp_path):
    with CodeCache(tmp_path, KEY) as cache:
        cache.put_many(np.zeros((1, 2), np.uint64), [np.zeros(3, np.int16)])
    assert decide(tmp_path, "auto", {}, epochs=1) == DISK


def decide(folder, asked, data, epochs):
    preparation = choose_preparation(XTTSConfig(data=data), Target.GPT, [1.0] * 80)
    clips = np.full(2, 20 * 22050)
    corpora = type("Corpus", (), {"samples": clips, "__len__": lambda self: 2})
    run_data = SimpleNamespace(train=corpora(), validation=corpora())
    return decide_cache(asked, preparation, run_data, folder, KEY, epochs=epochs)

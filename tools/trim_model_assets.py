"""Writes the reference arrays that travel with the project: `python -m tools.trim_model_assets`.

Kept is what tests/models reads; intermediates, for finding where a port departs, stay with the full fixtures.
"""

from __future__ import annotations

import json

import numpy as np

from tests.support.shared_files import ASSETS, find_parity

KEPT = {
    "gpt_state": ("state/",),
    "a_cond": ("in/", "out/enc", "out/cond_latents"),
    "b_gpt_train": ("in/", "mid/mel_targets_cond_idxs", "out/loss", "out/grad/"),
    "c_gpt_latents": ("in/", "out/"),
    "d_dvae": (
        *("state/", "in/", "mid/z", "out/codes", "out/decoded_mel", "out/grad/", "out/eval_commitment_loss"),
        *("out/train_loss", "out/train_commitment_loss", "out/train_out", "out/train_after_"),
    ),
    "h_generate": ("in/", "out/codes_", "out/logits_stops", "out/latents_"),
    "j_logits_processors": ("in/", "out/scores_"),
}
SHAPES = {"model": "xtts_v2_full_shapes", "dvae": "dvae_v2_full_shapes", "groups": "xtts_v2_optimizer_groups"}
FACTS = {"b_gpt_train": ("grad_norms",), "d_dvae": ("grad_norms",), "j_logits_processors": ("config",)}


def trim_assets() -> None:
    """Writes every asset of tests/models."""
    for case, prefixes in KEPT.items():
        with np.load(find_parity(f"{case}.npz")) as arrays:
            kept = {name: arrays[name] for name in arrays.files if name.startswith(prefixes)}
        np.savez_compressed(ASSETS / f"models_{case}.npz", **kept)
    for case, names in FACTS.items():
        facts = json.loads(find_parity(f"{case}.json").read_text())
        text = json.dumps({name: facts[name] for name in names}, indent=1)
        (ASSETS / f"models_{case}.json").write_text(text + "\n")
    published = {name: json.loads(find_parity(f"{file}.json").read_text()) for name, file in SHAPES.items()}
    (ASSETS / "models_published.json").write_text(json.dumps(published) + "\n")


if __name__ == "__main__":
    trim_assets()

"""Whether Coqui's own code takes what `myxtts export --coqui` wrote, and computes the same, in two steps:

    python benchmarks/coqui_loads_export.py compute MODEL FIGURES.npz
    PEER_PYTHON benchmarks/coqui_loads_export.py compare EXPORT FIGURES.npz

The first writes the logits and codes of a fixed sentence by a model of ours; adapters stand beside their base, as they are trained.
The second loads EXPORT with `Xtts.load_checkpoint`, compares every weight in it with the file, and what it computes with FIGURES. It
runs in a Python that has torch and coqui-tts, and imports nothing of MyXTTS.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from TTS.tts.models.xtts import Xtts

TEXT, CODES = "hello there", 60
PARTS = ("hifigan_decoder.waveform_decoder.", "hifigan_decoder.speaker_encoder.")
ALIASES = ("gpt.gpt_inference.", "gpt.gpt.wte.")
"""What inference adds: other names of weights that are there."""
MOST = 1e-4
"""Two computations of the same logits may differ by so much."""


def compute(source: Path, figures: Path) -> None:
    """Writes what a model of ours computes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import tensorflow as tf

    from myxtts.checkpoints.model_directory import read_model_directory
    from myxtts.checkpoints.store import find_model_directory
    from myxtts.checkpoints.tensors import read_array
    from myxtts.models.decoding import Greedy, generate
    from myxtts.models.gpt import GPTBatch
    from myxtts.models.weights import GPT_PREFIX, load_checkpoint_arrays
    from myxtts.models.xtts import build_gpt
    from myxtts.text.tokenizer import Tokenizer
    from myxtts.training.model import build_adapters

    folder = find_model_directory(source)
    directory, tokenizer = read_model_directory(folder), Tokenizer(folder / "vocab.json")
    config, base = directory.config, directory.manifest.facts.base
    gpt = build_gpt(config.model, seed=None, start_text_token=tokenizer.start_id, stop_text_token=tokenizer.stop_id)
    own = directory.model if base is None else read_model_directory(folder / base.path).model
    load_checkpoint_arrays(gpt, own, prefix=GPT_PREFIX).require_complete()
    draw = np.random.default_rng(1)
    inputs = {
        "mel": draw.standard_normal((1, 172, 80)).astype(np.float32),
        "text": np.array([tokenizer.encode(TEXT, "en")]),
        "codes": draw.integers(0, config.model.audio_codes, (1, CODES)),
    }
    mel, text, codes = map(tf.constant, inputs.values())
    # Its voice by name where it has one, the prompt of noise otherwise.
    inputs["voice"] = next(iter(directory.speakers), "")
    lengths = tf.constant([text.shape[1]]), tf.constant([CODES])
    framed = gpt.frame(GPTBatch(mel, text, lengths[0], codes, lengths[1]))

    def run() -> tuple[Any, Any]:
        return gpt.compute_logits(gpt.make_prompt(mel), *framed)

    logits = run()
    if directory.adapter is not None:
        adapters, before = build_adapters(gpt, config.training), logits
        load_checkpoint_arrays(adapters, directory.adapter, prefix=GPT_PREFIX).require_complete()
        logits = run()
        moved = [np.abs(after - start).max() for after, start in zip(logits, before, strict=True)]
        print(f"adapters move the logits of text by up to {moved[0]:.3g}, of codes by up to {moved[1]:.3g}")
    voice = directory.speakers.get(inputs["voice"])
    prompt = gpt.make_prompt(mel) if voice is None else read_array(voice["gpt_cond_latent"]).astype(np.float32)
    said = generate(gpt, tf.constant(prompt), text, rule=Greedy(), max_codes=CODES)
    outputs = {"text_logits": logits[0], "code_logits": logits[1], "said": said.codes_BM[0, : said.lengths_B[0]]}
    np.savez(figures, **inputs, **outputs)
    print(f"Written {figures}")


def compare(folder: Path, figures: Path) -> None:
    """Loads an export and compares what it computes."""
    import torch
    from coqui_stubs import install_stubs

    print(f"torch {torch.__version__}; stand-ins for {', '.join(install_stubs()) or 'nothing'}")
    state = torch.load(folder / "model.pth", weights_only=True)["model"]
    # Coqui's class always has both.
    lacks = [part for part in PARTS if not any(name.startswith(part) for name in state)]
    model = load_model(folder, strict=not lacks)
    print(
        f"Xtts.load_checkpoint(strict={not lacks}): {compare_weights(model, state, lacks)} tensors equal to the file's"
    )
    if (folder / "dvae.pth").exists():
        print(
            f"DiscreteVAE.load_state_dict(strict=True): {check_dvae(folder / 'dvae.pth')} tensors equal to the file's"
        )
    ours = np.load(figures)
    assert model.tokenizer.encode(TEXT, lang="en") == ours["text"][0].tolist(), "the tokenizers differ"
    inputs = (torch.from_numpy(ours[name]) for name in ("mel", "text", "codes"))
    theirs = compute_theirs(model, *inputs, voice=str(ours["voice"]))
    differences = {name: np.abs(theirs[name] - ours[name]).max() for name in ("text_logits", "code_logits")}
    for name, difference in differences.items():
        print(f"{name} {ours[name].shape}, up to {np.abs(ours[name]).max():.2f}, differ by {difference:.2g} at most")
    said = [sides["said"].tolist() for sides in (ours, theirs)]
    print(f"said greedily: {len(said[0])} codes, {len(set(said[0]))} different ones, equal: {said[0] == said[1]}")
    assert said[0] == said[1], "other codes are said"
    assert max(differences.values()) <= MOST, "other logits are computed"


def load_model(folder: Path, *, strict: bool) -> Xtts:
    from TTS.tts.configs.xtts_config import XttsConfig
    from TTS.tts.models.xtts import Xtts

    config = XttsConfig()
    config.load_json(folder / "config.json")
    model = Xtts(config)
    model.load_checkpoint(config, checkpoint_dir=folder, eval=True, strict=strict)
    return model


def compare_weights(module: torch.nn.Module, state: dict[str, torch.Tensor], lacks: Sequence[str] = ()) -> int:
    loaded = module.state_dict()
    for name, tensor in state.items():
        assert (loaded[name] == tensor.to(loaded[name].dtype)).all(), f"{name} differs after loading"
    missing = [name for name in loaded if name not in state and not name.startswith((*ALIASES, *lacks))]
    assert not missing, f"the file lacks {missing}"
    return len(state)


def check_dvae(path: Path) -> int:
    import torch
    from TTS.tts.layers.xtts.dvae import DiscreteVAE

    state = torch.load(path, weights_only=True)
    dvae = DiscreteVAE(
        channels=80,
        normalization=None,
        positional_dims=1,
        num_tokens=state["codebook.embed"].shape[1],
        codebook_dim=state["codebook.embed"].shape[0],
        hidden_dim=state["codebook.embed"].shape[0],
        num_resnet_blocks=3,
        kernel_size=3,
        num_layers=2,
        use_transposed_convs=False,
    )
    dvae.load_state_dict(state, strict=True)
    return compare_weights(dvae, state)


def compute_theirs(model: Xtts, mel: Any, text: Any, codes: Any, *, voice: str) -> dict[str, Any]:
    import torch

    found = {}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: found.update({name: output.numpy().copy()})

    heads = {"text_logits": model.gpt.text_head, "code_logits": model.gpt.mel_head}
    hooks = [head.register_forward_hook(keep(name)) for name, head in heads.items()]
    lengths = torch.tensor([text.shape[1]]), torch.tensor([1024 * codes.shape[1]])
    with torch.inference_mode():
        mel = mel.transpose(1, 2)
        model.gpt(text, lengths[0], codes, lengths[1], cond_mels=mel)
        for hook in hooks:
            hook.remove()
        model.gpt.max_gen_mel_tokens = codes.shape[1]
        named = model.speaker_manager.speakers[voice]["gpt_cond_latent"].float() if voice else None
        prompt = model.gpt.get_style_emb(mel).transpose(1, 2) if named is None else named
        found["said"] = model.gpt.generate(prompt, text, do_sample=False, num_beams=1)[0].numpy()
    return found


if __name__ == "__main__":
    {"compute": compute, "compare": compare}[sys.argv[1]](*map(Path, sys.argv[2:]))

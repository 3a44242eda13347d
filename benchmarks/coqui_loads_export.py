"""Whether Coqui's own loader takes what `myxtts export --coqui` wrote: `PEER_PYTHON benchmarks/coqui_loads_export.py DIR`.

Loads DIR with `Xtts.load_checkpoint(strict=True)`, compares every weight in the model with the file, and speaks with
the voice in it: what `write_random_model.py` printed, if that made the model.
Runs in a Python that has torch and coqui-tts, and imports nothing of MyXTTS.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from coqui_stubs import install_stubs

STUBS = install_stubs()

from TTS.tts.configs.xtts_config import XttsConfig  # noqa: E402
from TTS.tts.layers.xtts.dvae import DiscreteVAE  # noqa: E402
from TTS.tts.models.xtts import Xtts  # noqa: E402

VOICE, TEXT, CODES = "Somebody", "hello there", 20


def load_model(folder: Path) -> Xtts:
    config = XttsConfig()
    config.load_json(folder / "config.json")
    model = Xtts(config)
    model.load_checkpoint(config, checkpoint_dir=folder, eval=True, strict=True)
    return model


def compare_weights(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> int:
    loaded = model.state_dict()
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor), f"{name} differs after loading"
    return len(state)


def check_dvae(path: Path) -> int:
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


def say(model: Xtts) -> tuple[list[int], list[float]]:
    model.gpt.max_gen_mel_tokens = CODES
    text = torch.tensor(model.tokenizer.encode(TEXT, lang="en"))[None]
    prompt = model.speaker_manager.speakers[VOICE]["gpt_cond_latent"]
    with torch.inference_mode():
        codes = model.gpt.generate(prompt, text, do_sample=False, num_beams=1)
        text_length, samples = torch.tensor([text.shape[1]]), torch.tensor([1024 * CODES])
        latents = model.gpt(text, text_length, codes, samples, cond_latents=prompt, return_latent=True)
    return codes[0].tolist(), [round(value, 3) for value in latents[0, -1, :8].tolist()]


def main() -> int:
    folder = Path(sys.argv[1])
    print(f"torch {torch.__version__}; stand-ins for {', '.join(STUBS) or 'nothing'}")
    model = load_model(folder)
    state = torch.load(folder / "model.pth", weights_only=True)["model"]
    print(f"Xtts.load_checkpoint(strict=True): {compare_weights(model, state)} tensors equal to the file's")
    if (folder / "dvae.pth").exists():
        print(
            f"DiscreteVAE.load_state_dict(strict=True): {check_dvae(folder / 'dvae.pth')} tensors equal to the file's"
        )
    codes, latent = say(model)
    print(f"codes: {codes}")
    print(f"last latent: {latent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

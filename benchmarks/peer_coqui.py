"""Does the pieces of work of `model.py` with Coqui's own PyTorch modules: `PEER_PYTHON peer_coqui.py CODES`; started by it.

Reads lines of JSON, `{"prepare": NAME}` and `{"run": NAME}`, and answers each with one line. Runs in a Python that has
torch and coqui-tts, and imports nothing of MyXTTS.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable

import torch
from coqui_stubs import install_stubs

install_stubs()

from TTS.tts.layers.xtts.dvae import DiscreteVAE  # noqa: E402
from TTS.tts.layers.xtts.gpt import GPT  # noqa: E402

THREADS = 2
ROWS, TEXT_TOKENS, PROMPT_FRAMES, CLIP_FRAMES = 4, 100, 517, 862
CODES = int(sys.argv[1])
TEXT_VOCABULARY, STOP = 6681, 1025

Work = Callable[[], object]


def build_gpt(layers: int, width: int, heads: int) -> GPT:
    return GPT(
        layers=layers,
        model_dim=width,
        heads=heads,
        max_text_tokens=402,
        max_mel_tokens=605,
        max_prompt_tokens=70,
        number_text_tokens=TEXT_VOCABULARY,
        num_audio_tokens=1026,
        start_audio_token=1024,
        stop_audio_token=STOP,
        use_perceiver_resampler=True,
    )


def make_training_step(layers: int, width: int, heads: int) -> Work:
    gpt = build_gpt(layers, width, heads).train()
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=5e-6, betas=(0.9, 0.96), weight_decay=1e-2)
    text = torch.randint(1, TEXT_VOCABULARY, (ROWS, TEXT_TOKENS))
    codes = torch.randint(0, 1024, (ROWS, CODES))
    mel = torch.randn(ROWS, 1, 80, PROMPT_FRAMES)
    text_lengths, samples = torch.full((ROWS,), TEXT_TOKENS), torch.full((ROWS,), CODES * 1024)

    def train() -> float:
        optimizer.zero_grad()
        text_loss, audio_loss, _ = gpt(text, text_lengths, codes, samples, cond_mels=mel)
        loss = 0.01 * text_loss + audio_loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


def make_encoding() -> Work:
    dvae = DiscreteVAE(
        channels=80,
        normalization=None,
        positional_dims=1,
        num_tokens=1024,
        codebook_dim=512,
        hidden_dim=512,
        num_resnet_blocks=3,
        kernel_size=3,
        num_layers=2,
        use_transposed_convs=False,
    ).eval()
    mel = torch.randn(ROWS, 80, CLIP_FRAMES)

    def encode() -> object:
        with torch.inference_mode():
            return dvae.get_codebook_indices(mel)

    return encode


def make_decoding(rows: int) -> Work:
    gpt = build_gpt(8, 512, 8)
    gpt.mel_head.bias.data[STOP] = -1e4
    gpt.init_gpt_for_inference()
    gpt.eval()
    gpt.max_gen_mel_tokens = CODES
    prompt, text = torch.randn(rows, 32, 512), torch.randint(1, TEXT_VOCABULARY, (rows, TEXT_TOKENS))

    def decode() -> object:
        with torch.inference_mode():
            codes = gpt.generate(
                prompt,
                text,
                do_sample=True,
                num_beams=1,
                temperature=0.75,
                top_k=50,
                top_p=0.85,
                repetition_penalty=5.0,
            )
        assert codes.shape == (rows, CODES), f"{tuple(codes.shape)} codes instead of {(rows, CODES)}"
        return codes

    return decode


MAKERS: dict[str, Callable[[], Work]] = {
    "step 4x256": lambda: make_training_step(4, 256, 4),
    "step 8x512": lambda: make_training_step(8, 512, 8),
    "dvae": make_encoding,
    "decode": lambda: make_decoding(1),
    "decode 4 rows": lambda: make_decoding(ROWS),
}


def main() -> int:
    torch.set_num_threads(THREADS)
    # Libraries may print; the answers have the real standard output for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    work: Work | None = None
    for line in sys.stdin:
        question = json.loads(line)
        if "prepare" in question:
            work = None
            gc.collect()
            work = MAKERS[question["prepare"]]()
            work()
            answer = {"torch": torch.__version__}
        else:
            begun = time.perf_counter()
            work()
            answer = {"seconds": time.perf_counter() - begun}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

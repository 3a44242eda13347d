"""`myxtts serve` for several people: codes a second one by one and together, when a short sentence is first heard, and how long sound that
has begun lags behind its listener at most, while all are served.

"Codes alone" is what the model's thread does for them without turning them into sound, in this process. With --before another checkout of the project is measured in turn with this one, by the same requests.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import Windows, print_row, run_bench, tell_machine
from myxtts.checkpoints import write_model_directory
from myxtts.checkpoints.store import find_model_directory
from myxtts.config import ModelConfig, XTTSConfig
from myxtts.config.presets import BASE_VOICE, MODEL_SIZES
from myxtts.processes import end_child, make_importable
from myxtts.text.tokenizer import Tokenizer
from myxtts.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE

ROOT = Path(__file__).resolve().parents[1]
SENTENCES = (
    "The teacher asked us to wait outside until the lesson was over.",
    "There is nothing in the garden but a chair and an old table.",
    "We walked along the river and talked about the long winter.",
    "Please bring the letters to the office before the evening.",
)
SHORT = "Good morning, everybody."
PCM_HZ, SAMPLE_BYTES = 24_000, 2
WARM_UP, FASTER, SOONER = 2, 2.5, 0.5


class Server:
    """A server of one checkout, and its clients."""

    def __init__(self, checkout: Path, model: Path | str, codes: int):
        self._codes = codes
        self.gaps: dict[int, float] = {}
        """The longest wait in the middle of a sentence, by how many clients there were."""
        command = [sys.executable, "-P", "-m", "myxtts.cli.main", "serve", "--checkpoint", str(model), "--port", "0"]
        self._process = subprocess.Popen(
            [*command, "--rate", "100000", "--queue", "64"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=checkout,
            env=make_importable(os.environ, checkout),
        )
        lines = iter(self._process.stdout.readline, "")
        told = next((line for line in lines if line.startswith("Speech")), None)
        if told is None:
            sys.exit(f"error: the server of {checkout} did not start")
        self._port = int(told.partition("/v1/")[0].rpartition(":")[2])
        connection = self._ask("GET", "/v1/audio/voices")
        self._voice = json.loads(connection.getresponse().read())["data"][0]["id"]
        connection.close()

    def close(self) -> None:
        end_child(self._process, 60.0)

    def speak(self, text: str, seed: int) -> tuple[float, float, float]:
        """Seconds until the first sound, codes that were heard, and seconds that a listener would have waited in the middle at most."""
        fields = {"input": text, "voice": self._voice, "response_format": "pcm", "seed": seed, "max_codes": self._codes}
        begun = time.perf_counter()
        connection = self._ask("POST", "/v1/audio/speech", fields)
        response = connection.getresponse()
        heard = len(response.read(SAMPLE_BYTES))
        first_s = time.perf_counter() - begun
        heard_until_s, gap_s = first_s, 0.0
        while part := response.read1(1 << 20):
            came_s = time.perf_counter() - begun
            gap_s = max(gap_s, came_s - heard_until_s)
            heard_until_s = max(heard_until_s, came_s) + len(part) / SAMPLE_BYTES / PCM_HZ
            heard += len(part)
        connection.close()
        assert response.status == 200, response.status
        return first_s, heard / SAMPLE_BYTES / PCM_HZ * SAMPLE_RATE_HZ / SAMPLES_PER_CODE, gap_s

    def measure_rate(self, clients: int) -> float:
        """Codes a second while so many clients say all sentences, each its share."""
        begun = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            said = list(pool.map(self.speak, SENTENCES, range(len(SENTENCES))))
        self.gaps[clients] = max(gap_s for _, _, gap_s in said)
        return sum(codes for _, codes, _ in said) / (time.perf_counter() - begun)

    def measure_first(self) -> float:
        """Seconds until a short sentence is heard, of several the one in the middle."""
        return median(self.speak(SHORT, seed)[0] for seed in range(5))

    def _ask(self, method: str, path: str, fields: object = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, 600)
        connection.request(method, path, json.dumps(fields) if fields else None, {"Content-Type": "application/json"})
        return connection


@contextlib.contextmanager
def write_random_model(size: str) -> Iterator[Path]:
    """A model that was never trained, with a waveform decoder and a voice: it does not stop before it must."""
    # Here: the parent needs TensorFlow for this alone.
    from myxtts.models.weights import to_checkpoint
    from myxtts.models.xtts import XTTS, build_decoder, build_dvae, build_gpt

    vocabulary = find_model_directory(Path(BASE_VOICE)) / "vocab.json"
    tokenizer, draw = Tokenizer(vocabulary), np.random.default_rng(1)
    config = ModelConfig(size=size, text_tokens=tokenizer.text_tokens)
    tokens = {"start_text_token": tokenizer.start_id, "stop_text_token": tokenizer.stop_id}
    xtts = XTTS(
        build_gpt(config, seed=1, **tokens), decoder=build_decoder(config, seed=1), dvae=build_dvae(config, seed=1)
    )
    shapes = {"gpt_cond_latent": (1, 32, config.gpt_width), "speaker_embedding": (1, 512, 1)}
    with tempfile.TemporaryDirectory() as folder:
        write_model_directory(
            Path(folder) / size,
            config=XTTSConfig(model=config),
            model=to_checkpoint(xtts),
            dvae=to_checkpoint(xtts.dvae),
            vocabulary=vocabulary.read_text(encoding="utf-8"),
            speakers={"Ana": {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}},
        )
        yield Path(folder) / size


def prepare_codes_alone(model: Path | str, codes: int) -> Callable[[int], float]:
    """What gives the codes a second of a batch without sound, with so many sentences at a time."""
    from myxtts.inference.generation import Row
    from myxtts.inference.speech import SpeechSettings
    from myxtts.inference.synthesizer import load_synthesizer

    synthesizer = load_synthesizer(model)
    voice, batch, settings = synthesizer.find_voice(), synthesizer.batch, SpeechSettings(max_codes=codes)
    texts = [tuple(synthesizer.tokenizer.encode(text, "en")) for text in SENTENCES]
    rows = [Row(ids, voice, (0, index)) for index, ids in enumerate(texts)]

    def measure(together: int) -> float:
        begun, before = time.perf_counter(), batch.codes
        for first in range(0, len(rows), together):
            for index, row in enumerate(rows[first : first + together]):
                batch.add(row, settings, index)
            while batch.waiting or batch.saying:
                batch.step()
        return (batch.codes - before) / (time.perf_counter() - begun)

    measure(len(rows))
    return measure


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("--before", metavar="DIR", type=Path, help="another checkout of the project")
    parser.add_argument("--checkpoint", metavar="PATH", default=BASE_VOICE, help="a model (default: the base voice)")
    parser.add_argument("--random", metavar="SIZE", choices=MODEL_SIZES, help="or a random one of this size")
    parser.add_argument("--codes", metavar="N", type=int, default=100, help="at most, of a sentence (default: 100)")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="of each (default: 5)")
    asked = parser.parse_args(words)
    checkouts = {"now": ROOT, **({"before": asked.before.resolve()} if asked.before else {})}
    with tell_machine(), contextlib.ExitStack() as stack:
        model = stack.enter_context(write_random_model(asked.random)) if asked.random else asked.checkpoint
        servers = {name: Server(path, model, asked.codes) for name, path in checkouts.items()}
        for server in servers.values():
            stack.callback(server.close)
            for _ in range(WARM_UP):
                server.measure_rate(len(SENTENCES))
        contenders: dict[str, Callable[[], float]] = {}
        for name, server in servers.items():
            contenders[f"one by one, {name}"] = lambda server=server: server.measure_rate(1)
            contenders[f"together, {name}"] = lambda server=server: server.measure_rate(len(SENTENCES))
            contenders[f"first sound, {name}"] = server.measure_first
            # Of the round that was measured just before.
            contenders[f"longest gap, {name}"] = lambda server=server: server.gaps[len(SENTENCES)]
        measure = prepare_codes_alone(model, asked.codes)
        contenders["codes alone, one by one"] = lambda: measure(1)
        contenders["codes alone, together"] = lambda: measure(len(SENTENCES))
        windows = Windows()
        figures = {name: median(found) for name, found in windows.take_turns(contenders, asked.rounds).items()}
        print_figures(figures, windows)


def print_figures(figures: dict[str, float], windows: Windows) -> None:
    for name, figure in figures.items():
        print_row(
            (24, 16), name, f"{figure:.3f} s" if name.startswith(("first", "longest")) else f"{figure:.1f} codes/s"
        )
    for name, one, all_ in (
        ("Together / one by one", "one by one, now", "together, now"),
        ("The same, of before", "one by one, before", "together, now"),
        ("The same, codes alone", "codes alone, one by one", "codes alone, together"),
    ):
        if one not in figures:
            continue
        faster = figures[all_] / figures[one]
        print(f"{name:<24}{faster:.2f}, target {FASTER}: {windows.judge(faster >= FASTER)}")
    if "first sound, before" in figures:
        sooner = figures["first sound, now"] / figures["first sound, before"]
        print(f"First sound, now/before {sooner:.2f}, target {SOONER}: {windows.judge(sooner <= SOONER)}")
    print(windows)


if __name__ == "__main__":
    run_bench(main)

"""The waveform decoder that a run trains: fresh or from a model, with its rivals and the frozen GPT it listens to."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

from myxtts.checkpoints.model_directory import ModelContent
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData
from myxtts.files import read_text
from myxtts.models.build import build_decoder, build_gpt, build_rivals
from myxtts.models.discriminators import choose_rival_size, list_rival_weights
from myxtts.models.gpt import GPT
from myxtts.models.names import load_checkpoint_arrays
from myxtts.models.sizes import read_sizes
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import DECODER_PREFIX, GPT_PREFIX, list_decoder_weights
from myxtts.training.decoder_objective import BETAS, DecoderObjective
from myxtts.training.listening import Listener, render_speech
from myxtts.training.starting_point import MEL_STATISTICS, Codec, StartingPoint
from myxtts.training.trained_model import TrainedModel, build_step

_log = logging.getLogger(__name__)


def build_decoder_step(config: XTTSConfig, data: RunData, codec: Codec, start: StartingPoint) -> TrainedModel:
    """The decoder of a starting point, or a fresh one where that has none. Call it under the model device's scope."""
    gpt = _build_frozen_gpt(config, data, start)
    decoder = _build_decoder(config, start)
    rivals = build_rivals(config.model, seed=config.training.seed, dtype=config.data.mixed_precision)
    objective = DecoderObjective(decoder, rivals, gpt)
    kept = {name: tensor for name, tensor in start.weights.items() if not name.startswith(DECODER_PREFIX)}
    frame: ModelContent = {
        "config": config,
        "model": {**kept, MEL_STATISTICS: codec.mel_norms},
        "dvae": codec.weights,
        "vocabulary": read_text(data.tokenizer_path),
        "speakers": start.speakers,
        "source_config": start.source_config,
        "notice": start.notice,
    }

    def make_listener(folder: Path) -> Listener:
        return Listener(render_speech(objective), folder)

    step = build_step(objective, config, dropout=0.0, betas=BETAS)
    return TrainedModel(step, DECODER_PREFIX, frame, make_listener, frozen=(gpt,))


def describe_decoder(config: XTTSConfig, start: StartingPoint) -> str:
    """What is trained, in a line."""
    sizes = read_sizes(config.model)
    rivals = sum(weight.elements for weight in list_rival_weights(choose_rival_size(sizes.decoder)))
    own = sum(weight.elements for weight in list_decoder_weights(sizes.decoder))
    origin = "going on with the one" if start.has_decoder else "from scratch, for the GPT"
    return f"{own / 1e6:.1f} M parameters, {rivals / 1e6:.1f} M in its rivals, {origin} kept in {shlex.quote(str(start.folder))}"


def _build_frozen_gpt(config: XTTSConfig, data: RunData, start: StartingPoint) -> GPT:
    gpt = build_gpt(
        config.model,
        seed=None,
        dtype=config.data.mixed_precision,
        start_text_token=data.start_text_token,
        stop_text_token=data.stop_text_token,
    )
    load_checkpoint_arrays(gpt, start.weights, prefix=GPT_PREFIX).require_complete()
    return gpt


def _build_decoder(config: XTTSConfig, start: StartingPoint) -> WaveformDecoder:
    seed = None if start.has_decoder else config.training.seed
    decoder = build_decoder(config.model, seed=seed, dtype=config.data.mixed_precision)
    if start.has_decoder:
        load_checkpoint_arrays(decoder, start.weights, prefix=DECODER_PREFIX).require_complete()
        if decoder.hears_speakers:
            _log.warning(
                "The decoder of %s hears speaker embeddings. It is trained on without them, and will sound alike for every one: "
                "the voice is then what the codes carry of it.",
                start.folder,
            )
    else:
        _log.info(
            "The decoder is trained without speaker embeddings, because there is no trained speaker encoder: the voice is what "
            "the codes carry of it."
        )
    decoder.forget_speakers()
    return decoder

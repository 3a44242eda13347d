"""The model that a run trains, on its device, and what of it goes into a checkpoint."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.filterbanks import DVAE_MEL
from myxtts.audio.mels import compute_dvae_mel
from myxtts.checkpoints.model_directory import MODEL_NAME, AdapterBase, ModelContent, list_content
from myxtts.checkpoints.store import START_FOLDER, TENSORS_NAME, TrainingCheckpoint
from myxtts.checkpoints.tensors import LazyTensor, Tensor, read_array
from myxtts.config import XTTSConfig
from myxtts.config.config import TrainingConfig
from myxtts.config.presets import name_size
from myxtts.data.corpus import Corpus
from myxtts.data.loaders import find_clip_file, load_clip
from myxtts.data.run_data import RunData
from myxtts.devices import runtime
from myxtts.devices.plan import DevicePlan, choose_xla
from myxtts.devices.runtime import active_plan, is_on_cpu
from myxtts.errors import CorpusError, DamagedFileError, PlacementError
from myxtts.files import read_text
from myxtts.hashing import hash_words
from myxtts.inference.generation import choose_penalty
from myxtts.inference.vocoders import MelVocoder
from myxtts.models.attention import CACHED_SCORES
from myxtts.models.discriminators import choose_rival_size, list_rival_weights
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT, Adapters
from myxtts.models.sizes import read_sizes
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import (
    DECODER_PREFIX,
    GPT_PREFIX,
    SPEAKER_PREFIX,
    LoadReport,
    count_parameters,
    find_variable,
    grow_text_vocabulary,
    list_decoder_weights,
    load_checkpoint_arrays,
    to_checkpoint_layout,
)
from myxtts.models.xtts import build_decoder, build_dvae, build_gpt, build_rivals, initialise_weights
from myxtts.pipeline.recipe import choose_augmentation
from myxtts.training.listening import Listener, encode_row, predict_codes, render_codes, render_speech, speak_codes
from myxtts.training.memory_estimate import count_adapter_parameters
from myxtts.training.objectives import DECODER_BETAS, CodecObjective, DecoderObjective, GPTObjective, Objective, Tensors
from myxtts.training.optimizer import BETAS, PACKED_ELEMENTS
from myxtts.training.starting_point import MEL_STATISTICS, Codec, StartingPoint
from myxtts.training.step import StepSettings, TrainStep
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)


OWN_WEIGHTS = "own"
"""Where the weights themselves are kept when the model's file holds their average."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A step, and the frame of the checkpoints it is saved in."""

    step: TrainStep
    prefix: str
    """Before the names of the trained weights."""
    frame: ModelContent
    """Everything of a model directory but the trained weights."""
    make_listener: Callable[[Path], Listener]
    """Makes what is listened to, in a run's folder."""
    frozen: tuple[Any, ...] = ()
    """Models that the step asks and does not change."""

    def list_variables(self) -> Iterator[tuple[str, Any]]:
        """Every variable that must be on the model device, by name."""
        for model in (self.step.objective.model, *self.frozen):
            for variable in model.variables:
                yield variable.path, variable.value
        yield from self.step.list_state()

    @property
    def device(self) -> str:
        """The logical device it was built on."""
        return f"/{self.step.optimizer.updates.device.rpartition('device:')[2]}"

    def collect_content(self) -> ModelContent:
        """The model, its average where one is kept. Each weight is fetched when it is read."""
        average = self.step.average
        trained = self._list_weights({} if average is None else dict(average.list_state()))
        if self.prefix:
            return {**self.frame, "model": {**self.frame["model"], **trained}}
        return {**self.frame, "dvae": trained}

    def collect_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the model."""
        tensors: dict[str, Tensor] = {
            # Fetched one by one when they are written: a large model's state is not held on the host a second time.
            name: LazyTensor(tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype), variable.numpy)
            for name, variable in self.step.list_state()
        }
        if self.step.average is not None:
            tensors |= {f"{OWN_WEIGHTS}/{name}": tensor for name, tensor in self._list_weights({}).items()}
        return tensors

    def restore(self, saved: TrainingCheckpoint) -> None:
        """Takes model and state from a checkpoint."""
        mark = f"{OWN_WEIGHTS}/"
        own = {name.removeprefix(mark): tensor for name, tensor in saved.tensors.items() if name.startswith(mark)}
        weights = own or ((saved.model.adapter or saved.model.model) if self.prefix else saved.model.dvae)
        load_checkpoint_arrays(self.step.objective.trained, weights or {}, prefix=self.prefix).require_complete()
        state, source = dict(self.step.list_state()), saved.model.path / TENSORS_NAME
        missing = [name for name in state if name not in saved.tensors]
        shapes = [(name, tuple(state[name].shape), saved.tensors[name].shape) for name in state if name not in missing]
        mis_shaped = [(name, need, found) for name, need, found in shapes if need != found]
        LoadReport(missing=missing, mis_shaped=mis_shaped).require_complete(str(source))
        for name, variable in state.items():
            values = read_array(saved.tensors[name])
            if values.dtype != variable.dtype.as_numpy_dtype or not np.isfinite(values).all():
                raise DamagedFileError(
                    source,
                    f"holds {name} as {values.dtype}, or with numbers that are not finite; it must be {variable.dtype.name}. Go on "
                    "from an older checkpoint.",
                )
            variable.assign(values)
        self.step.forget_weights()

    def _list_weights(self, instead: Mapping[str, Any]) -> dict[str, LazyTensor]:
        """The trained weights under their names in a checkpoint, each as it is when it is read.

        Args:
            instead: variables that stand for the model's own, by their path in it.
        """
        model = self.step.objective.trained
        tensors = {}
        for weight in model.list_weights():
            variable = instead.get(weight.variable)
            variable = find_variable(model, weight.variable) if variable is None else variable
            # Bound now: the next weight has the same names.
            fetch = partial(lambda weight, variable: to_checkpoint_layout(weight, variable.numpy()), weight, variable)
            tensors[self.prefix + weight.key] = LazyTensor(weight.shape, np.dtype(weight.dtype), fetch)
        return tensors


def build_gpt_step(
    config: XTTSConfig, data: RunData, codec: Codec, start: StartingPoint | None, gpt: GPT | None = None
) -> TrainedModel:
    """The GPT of a configuration, fresh, given, or from a starting point. Call it under the model device's scope."""
    gpt = gpt or _build_gpt(config, data, seed=config.training.seed if start is None else None)
    if start is not None:
        own = {name: tensor for name, tensor in start.weights.items() if name.startswith(GPT_PREFIX)}
        if start.config.text_tokens != config.model.text_tokens:
            arrays = {name: read_array(tensor) for name, tensor in own.items()}
            tokens, seed = config.model.text_tokens, config.training.seed
            own = dict(grow_text_vocabulary(arrays, tokens, seed=seed, prefix=GPT_PREFIX))
        load_checkpoint_arrays(gpt, own, prefix=GPT_PREFIX).require_complete()
    adapters = build_adapters(gpt, config.training) if config.training.lora_rank else None
    objective = GPTObjective(
        gpt, loss_mean=config.training.loss_mean, blank_prompt=config.training.blank_prompt, adapters=adapters
    )
    frame = _make_frame(config, data, codec, start, GPT_PREFIX)
    if start is not None and adapters is not None:
        base = AdapterBase(f"../{START_FOLDER}", start.directory.manifest.files[MODEL_NAME].sha256, adapters.factor)
        beside = {MEL_STATISTICS: codec.mel_norms}
        frame = {**frame, "model": beside, "speakers": None, "source_config": None, "base": base}
        if codec.folder == start.folder:
            frame["dvae"] = None

    def make_listener(folder: Path) -> Listener:
        with get_device_context("/CPU:0"):
            dvae = build_dvae(codec.config, seed=None)
            load_checkpoint_arrays(dvae, codec.weights).require_complete()
            vocoder = MelVocoder(dvae, codec.mel_norms)
        speak = None
        if config.training.speak:
            names = frame["model"] if start is None else start.weights
            penalty = choose_penalty(is_published=any(name.startswith(SPEAKER_PREFIX) for name in names))
            speak = render_codes(speak_codes(objective.model, penalty), vocoder)
        return Listener(render_codes(predict_codes(objective), vocoder), folder, speak=speak)

    return TrainedModel(build_step(objective, config, dropout=config.model.dropout), GPT_PREFIX, frame, make_listener)


def build_codec_step(
    config: XTTSConfig, mel_norms: NDArray[np.float32], *, steps: int, free_steps: int
) -> TrainedModel:
    """A fresh DVAE. Call it under the model device's scope."""
    dvae: DVAE = build_dvae(config.model, seed=config.training.seed, dtype=config.data.mixed_precision)
    objective = CodecObjective(dvae, seed=config.training.seed, free_steps=free_steps, total_steps=steps)
    frame: ModelContent = {"config": config, "model": {MEL_STATISTICS: mel_norms}}

    def make_listener(folder: Path) -> Listener:
        return Listener(render_codes(encode_row(dvae), MelVocoder(dvae, mel_norms)), folder)

    return TrainedModel(build_step(objective, config, dropout=0.0), "", frame, make_listener)


def build_step(
    objective: Objective,
    config: XTTSConfig,
    *,
    dropout: float,
    betas: tuple[float, float] = BETAS,
    packed_elements: int | None = None,
) -> TrainStep:
    """The step that makes updates as a configuration says, in packs as suit this device."""
    training = config.training
    if packed_elements is None:
        packed_elements = 0 if is_on_cpu() else PACKED_ELEMENTS
    return TrainStep(
        objective,
        StepSettings(
            seed=training.seed,
            weight_decay=training.weight_decay,
            betas=betas,
            clip_norm=training.clip_norm,
            ema_decay=training.ema_decay,
            uses_dropout=dropout > 0,
            uses_loss_scale=config.data.mixed_precision == "mixed_float16",
            uses_xla=choose_xla(config, active_plan()),
            packed_elements=packed_elements,
        ),
    )


def build_decoder_step(config: XTTSConfig, data: RunData, codec: Codec, start: StartingPoint) -> TrainedModel:
    """The decoder of a starting point, or a fresh one where that has none. Call it under the model device's scope."""
    if choose_augmentation(config.data) is not None:
        _log.warning("Augmentation is left out: a decoder must learn to sound like the recordings themselves.")
    gpt = _build_gpt(config, data, seed=None)
    load_checkpoint_arrays(gpt, start.weights, prefix=GPT_PREFIX).require_complete()
    decoder = _build_decoder(config, start)
    rivals = build_rivals(config.model, seed=config.training.seed, dtype=config.data.mixed_precision)
    objective = DecoderObjective(decoder, rivals, gpt)
    return TrainedModel(
        build_step(objective, config, dropout=0.0, betas=DECODER_BETAS),
        DECODER_PREFIX,
        _make_frame(config, data, codec, start, DECODER_PREFIX),
        lambda folder: Listener(render_speech(objective), folder),
        frozen=(gpt,),
    )


def _make_frame(
    config: XTTSConfig, data: RunData, codec: Codec, start: StartingPoint | None, prefix: str
) -> ModelContent:
    """Everything of a model directory but the weights under a prefix, which are trained."""
    own: ModelContent = {
        "config": config,
        "model": {MEL_STATISTICS: codec.mel_norms},
        "dvae": codec.weights,
        "vocabulary": read_text(data.tokenizer_path),
    }
    if start is None:
        return own
    kept = {name: tensor for name, tensor in start.weights.items() if not name.startswith(prefix)}
    frame: ModelContent = {**list_content(start.directory), **own, "model": {**kept, **own["model"]}}
    if prefix == GPT_PREFIX and not any(name.startswith(SPEAKER_PREFIX) for name in kept):
        # Their prompts are all there is of them, and are made by what is trained.
        frame["speakers"] = None
    return frame


def _build_gpt(config: XTTSConfig, data: RunData, *, seed: int | None) -> GPT:
    return build_gpt(
        config.model,
        seed=seed,
        # Where it is not trained, it need not be kept in more than it is computed in.
        dtype=config.data.mixed_precision.removeprefix("mixed_" if config.training.lora_rank else ""),
        scores=CACHED_SCORES if is_on_cpu() else 0,
        fused_norms=not is_on_cpu(),
        joins=not is_on_cpu() and choose_xla(config, active_plan()),
        shares_prompts=is_on_cpu(),
        start_text_token=data.start_text_token,
        stop_text_token=data.stop_text_token,
    )


def build_adapters(gpt: GPT, training: TrainingConfig) -> Adapters:
    """Fresh pairs beside products of a GPT, as a configuration says."""
    factor = training.lora_alpha / training.lora_rank
    products = training.lora_matrices.split(",")
    adapters = Adapters(gpt, rank=training.lora_rank, products=products, factor=factor)
    initialise_weights(adapters, training.seed)
    return adapters


def describe_model(config: XTTSConfig, start: StartingPoint | None, stage: str) -> str:
    """What a run trains, in a line."""
    if stage == "decoder":
        assert start is not None, "a decoder is trained for a GPT"
        sizes = read_sizes(config.model)
        rivals = sum(weight.elements for weight in list_rival_weights(choose_rival_size(sizes.decoder)))
        own = sum(weight.elements for weight in list_decoder_weights(sizes.decoder))
        origin = "going on with the one" if start.has_decoder else "from scratch, for the GPT"
        kept = shlex.quote(str(start.folder))
        return f"Decoder: {own / 1e6:.1f} M parameters, {rivals / 1e6:.1f} M in its rivals, {origin} kept in {kept}"
    counts = count_parameters(config.model)
    parts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in counts.items() if name in ("gpt", "dvae"))
    origin = "from scratch" if start is None else f"fine-tuned from {shlex.quote(str(start.folder))}"
    if config.training.lora_rank:
        own = count_adapter_parameters(config)
        origin += f" by adapters of rank {config.training.lora_rank} ({own / 1e6:.2f} M parameters), all else as it is"
    own_size = f"a size of its own, {config.model.gpt_layers} layers of width {config.model.gpt_width}"
    return f"Model: {name_size(config.model.model_dump()) or own_size} ({parts} parameters), {origin}"


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


MOST_CLIPS = 1000
"""More change the third digit."""
JUDGED_CLIPS = 16
OWN_ERROR, STRANGE_ERROR = 0.014, 0.03
"""Squared error of mels through the codec of the package: of its own voice, and between others that it learnt (.011 to .024) and those
that it did not (.045 to .086)."""
_PICK = 211
"""Sets these hashes apart from others with the same seed."""


def measure_mel_norms(corpus: Corpus, seed: int) -> NDArray[np.float32]:
    """The mean size of the log mel in each band, over all clips or a thousand of them."""
    total, frames = np.zeros(DVAE_MEL.bands), 0
    for mel_1FM in _draw_mels(corpus, seed, MOST_CLIPS, np.ones(DVAE_MEL.bands, np.float32)):
        total += np.abs(mel_1FM[0]).sum(axis=0, dtype=np.float64)
        frames += mel_1FM.shape[1]
    if frames == 0:
        raise CorpusError(f"{corpus.root}: none of the clips looked at for the mel statistics could be read.")
    _log.info("Mel statistics are taken from %d frames of the corpus.", frames)
    return (total / frames).astype(np.float32)


def _draw_mels(corpus: Corpus, seed: int, most: int, mel_norms: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """The mels (1, F, M) of up to so many clips that can be read, always the same."""
    order = np.argsort(hash_words(seed, _PICK, np.arange(len(corpus))), kind="stable")
    for clip in np.sort(order[:most]).tolist():
        samples = int(corpus.samples[clip])
        wav_1S = np.zeros((1, samples), np.float32)
        if load_clip(find_clip_file(corpus, clip), wav_1S[0]) is None:
            mel_1FM, _ = compute_dvae_mel(tf.constant(wav_1S), tf.constant([samples]), mel_norms)
            yield mel_1FM.numpy()[:, : samples // DVAE_MEL.hop_samples]


def warn_of_strange_voices(corpus: Corpus, codec: Codec, seed: int) -> None:
    """Says where the codec of the voice that comes with the package does not know the voices of a corpus: no training mends that."""
    dvae = build_dvae(codec.config, seed=None)
    load_checkpoint_arrays(dvae, codec.weights).require_complete()
    errors = []
    for mel_1FM in _draw_mels(corpus, seed, JUDGED_CLIPS, codec.mel_norms):
        copy_1FM = dvae.decode(dvae.encode(tf.constant(mel_1FM))).numpy()[:, : mel_1FM.shape[1]]
        errors.append(float(np.square(copy_1FM - mel_1FM).mean()))
    if errors and np.mean(errors) > STRANGE_ERROR:
        _log.warning(
            "The codec of the voice that comes with MyXTTS learnt few voices, and these are not among them: of %d clips it loses %.1f "
            "times as much as of its own voice. What is trained on its codes will hardly be understood, however long. A voice of your "
            "own needs tens of hours of speech from nothing (leave out --init-from), or a model that knows many voices, such as an imported "
            "XTTS v2.",
            len(errors), np.mean(errors) / OWN_ERROR,
        )  # fmt: skip


def check_variables(variables: Iterable[tuple[str, Any]], devices: list[str]) -> None:
    """Raises `PlacementError` for the first variable that is not on the device, or has not a copy on each of several."""
    for name, variable in variables:
        copies = getattr(variable, "values", (variable,))
        for copy, device in zip(copies, devices, strict=True):
            check_placement(f"variable {name}", copy, device)


def check_batch(batch: Tensors, device: str) -> None:
    """Raises `PlacementError` for the first float tensor of a batch that is not on the device.

    Not for whole numbers: TensorFlow keeps int32 in host memory even when a GPU computes with it.
    """
    for name, tensor in batch.items():
        if tensor.dtype.is_floating:
            check_placement(f"input {name}", tensor, device)


def check_placement(what: str, tensor: Any, device: str) -> None:
    """Raises `PlacementError` when a tensor or a variable is not on the device."""
    # "/GPU:1" of the plan is "/job:localhost/replica:0/task:0/device:GPU:1" to TensorFlow.
    if not tensor.device.endswith(f"device:{device.removeprefix('/')}"):
        raise PlacementError(
            f"{what[0].upper()}{what[1:]} must be on {device}, but is on {tensor.device or 'no device'}. "
            "This is a fault of MyXTTS: please report it with the command and `myxtts devices`."
        )


DETERMINISTIC_THREADS = 2
"""Of both roles in every mode: the number of threads decides about last bits."""


def apply_devices(config: XTTSConfig, plan: DevicePlan) -> None:
    """Puts the plan into force in this process, with equal threads and determinism where the run must be bit-exact."""
    if config.training.deterministic:
        runtime.set_thread_pools(DETERMINISTIC_THREADS, DETERMINISTIC_THREADS)
        runtime.enable_determinism()
    runtime.apply_plan(plan)

"""Text and a voice -> speech: whole, many texts at once, or as a stream.

The caller opens the device scope, once, around building the model and everything asked of it."""

from __future__ import annotations

import os
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.mels import compute_dvae_mel
from myxtts.checkpoints.model_directory import (
    VOCABULARY_NAME,
    ModelDirectory,
    read_model_directory,
    require_weights,
)
from myxtts.checkpoints.store import find_model_directory
from myxtts.checkpoints.tensors import Tensor
from myxtts.devices.machine import read_free_memory_bytes
from myxtts.devices.runtime import is_on_cpu
from myxtts.errors import UnableToSpeakError, VoiceError
from myxtts.inference.batching import SentenceBatch
from myxtts.inference.cloning import CHUNK_SECONDS, VoiceCloner, describe_speaker
from myxtts.inference.engine import KeptFile
from myxtts.inference.engine_rows import EngineChoice, open_decoders
from myxtts.inference.following import TextFollower, choose_take
from myxtts.inference.generation import GeneratedRow, Row, choose_penalty
from myxtts.inference.speech import (
    NO_LEXICON,
    PUBLISHED_CLIP_SECONDS,
    USUAL,
    USUAL_SHARE,
    EdgeSoftener,
    Piece,
    PieceLimits,
    Speech,
    SpeechChunk,
    SpeechSettings,
    SpokenPiece,
    require_able_to_speak,
    split_text,
)
from myxtts.inference.vocoders import STREAM_CODES, MelVocoder, VocoderChoice, choose_vocoder
from myxtts.inference.voices import Voice, find_voice, read_references
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT, check_length, frame_audio
from myxtts.models.sizes import read_sizes
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import DECODER_PREFIX, SPEAKER_PREFIX, load_checkpoint_arrays
from myxtts.models.xtts import XTTS
from myxtts.text.lexicon import Lexicon
from myxtts.text.tokenizer import Tokenizer
from myxtts.units import SAMPLES_PER_CODE

NOTHING_YET = SpeechChunk(np.zeros(0, np.float32))

RETRIES = 3
"""Where a recogniser decides, of a model that has none of its own."""
SCRATCH_SETTINGS = {"temperature": 0.5, "retries": 7}
"""What suits a model trained from scratch: of an earlier base voice's words a recogniser misheard 24 % at the published temperature, 21 % at
this one, and 17 % in the best of four takes. Of eight, four in a hundred sentences were mostly misheard, of four nearly six. Nobody has measured retries for the published model, which takes far longer for each."""
SMALL_WEIGHTS = 30_000_000
"""Of the blocks of a GPT. Up to these, several takes at once cost little more than one: the best is kept even where none is doubtful."""
_APART = 1 << 20
"""Between the keys of two takes: more than a text has pieces."""

SpeechCheck = Callable[[str, NDArray[np.float32], int], float]
"""A text, samples and their rate -> the words that were heard wrongly, by those of the text: above 1 where many were added."""


class Synthesizer:
    """A model that speaks: its weights (a GPT, and a waveform decoder or a DVAE), its vocabulary, and named voices.

    Everything it says has `rate_hz`: 24 kHz by a waveform decoder, else 22.05 kHz. `vocoder.how`, `speaker_note` and
    `engine_note` say in words what makes the sound, where speaker embeddings come from, and what decodes.

    Example:
        >>> synthesizer = load_synthesizer("runs/mine/best")
        >>> voice = synthesizer.clone_voice(["me.wav"])
        >>> speech = synthesizer.speak("Good morning.", voice, "en", SpeechSettings(seed=3))
        >>> for chunk in synthesizer.stream("A long story.", voice, "en"):
        ...     play(chunk.samples, synthesizer.rate_hz)
    """

    def __init__(
        self,
        xtts: XTTS,
        tokenizer: Tokenizer,
        *,
        speakers: Mapping[str, Mapping[str, Tensor]] | None = None,
        clip_seconds: float = PUBLISHED_CLIP_SECONDS,
        chunk_seconds: float = CHUNK_SECONDS,
        vocoder: VocoderChoice = "auto",
        lexicon: Lexicon = NO_LEXICON,
        engine: EngineChoice = "float32",
        int8_file: KeptFile | None = None,
        check: SpeechCheck | None = None,
    ):
        self._check = check
        self.xtts, self.tokenizer, self._lexicon = xtts, tokenizer, lexicon
        self._speakers = speakers or {}
        size = xtts.gpt.size
        # Only what descends from the published model has a speaker encoder.
        is_published = xtts.speaker_encoder is not None
        usual_s = clip_seconds * (1.0 if is_published else USUAL_SHARE)
        self._limits = PieceLimits(size.max_text_tokens, size.max_new_codes, usual_s, joins_sentences=is_published)
        self._cloner = VoiceCloner(xtts, chunk_seconds=chunk_seconds)
        penalty = choose_penalty(is_published=is_published)
        self._generator, rows, self.engine_note = open_decoders(xtts.gpt, engine, usual_penalty=penalty, file=int8_file)
        self.batch = SentenceBatch(rows, size, usual_penalty=penalty)
        self._follower = TextFollower(xtts.gpt, tokenizer)
        # Without a codec no code is known to sound like another.
        self._vectors_VD = np.asarray(xtts.dvae.codebook.vectors.value if xtts.dvae else np.zeros((0, 1)), np.float32)
        self._is_small = 12 * size.layers * size.width**2 <= SMALL_WEIGHTS
        self._usual: dict[str, Any] = {} if is_published else SCRATCH_SETTINGS
        mel_vocoder = MelVocoder(xtts.dvae, xtts.mel_norms.numpy()) if xtts.dvae else None
        self.vocoder = choose_vocoder(vocoder, xtts.decoder, mel_vocoder)
        self.rate_hz = self.vocoder.rate_hz
        self._uses_decoder = self.vocoder is not mel_vocoder
        self.speaker_note = describe_speaker(xtts, uses_decoder=self._uses_decoder)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages the model's vocabulary has."""
        return self.tokenizer.languages

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of the voices that come with the model."""
        return tuple(self._speakers)

    @property
    def most_codes(self) -> int:
        """The longest piece that the model can say, in codes of 46 ms."""
        return self.xtts.gpt.size.max_new_codes

    @property
    def traces(self) -> int:
        """How often generation was compiled: once for each shape of batch."""
        return self._generator.traces

    def clone_voice(self, paths: Sequence[str | os.PathLike[str]]) -> Voice:
        """The voice in one or more recordings of a speaker."""
        return self._cloner.clone(read_references(paths))

    def clone_samples(self, recordings: Sequence[NDArray[np.float32]]) -> Voice:
        """The same of recordings that `read_references` has read."""
        return self._cloner.clone(recordings)

    def find_voice(self, name: str | None = None) -> Voice:
        """A voice that comes with the model; its first unless one is named."""
        return find_voice(self._speakers, name)

    def check_voice(self, voice: Voice) -> None:
        """Raises `VoiceError` for a voice that this model cannot speak in."""
        width = self.xtts.gpt.size.width
        decoder = self.xtts.decoder if self._uses_decoder else None
        if voice.prompt_PC.shape[-1] != width or len(voice.prompt_PC) > self.xtts.gpt.size.max_prompt_tokens:
            raise VoiceError(
                f"The voice must be made by a model like this one, {width} wide, but its prompt has the shape "
                f"{voice.prompt_PC.shape}. Clone it again with this model."
            )
        if decoder is not None and len(voice.speaker_G) != decoder.size.speaker_width:
            raise VoiceError(
                f"The voice must have a speaker embedding of {decoder.size.speaker_width} numbers for this model's waveform "
                f"decoder, but has {len(voice.speaker_G)}. A voice that was kept before the decoder was trained has none. Clone it "
                "again, or give --vocoder griffin-lim."
            )

    def describe_stranger(self, voice: Voice) -> str | None:
        """What is to be said of a voice that other weights have made; None where they are the same, or not known."""
        if not voice.maker or voice.maker == self._cloner.maker:
            return None
        return (
            "This voice was made by a model with other weights: another one, or this one before it was trained on. It may sound "
            "like somebody else. Clone it again."
        )

    def speak(
        self, text: str, voice: Voice, language: str, settings: SpeechSettings = USUAL, *, timed: bool = False
    ) -> Speech:
        """The text as speech; `timed` tells when each word is said."""
        chunks = list(self.speak_in_turn(text, voice, language, settings, timed=timed))
        reports = tuple(chunk.piece for chunk in chunks if chunk.piece)
        return Speech(np.concatenate([chunk.samples for chunk in chunks]), self.rate_hz, reports)

    def speak_in_turn(
        self, text: str, voice: Voice, language: str, settings: SpeechSettings = USUAL, *, timed: bool = False
    ) -> Iterator[SpeechChunk]:
        """The text as speech, a chunk for each piece and pause: made in batches, and memory does not grow with the text."""
        # Checked at the call, not when the first chunk is asked for.
        pieces, rows = self._split(text, voice, language, settings)
        settings = self._fill_in(settings)
        said = self._say_in_batches(pieces, rows, settings, self._generator.most_rows)
        return self._render_all(pieces, rows, said, settings, timed=timed)

    def stream(
        self,
        text: str,
        voice: Voice,
        language: str,
        settings: SpeechSettings = USUAL,
        *,
        chunk_codes: int = STREAM_CODES,
        timed: bool = False,
    ) -> Iterator[SpeechChunk]:
        """The text as speech, as soon as there is any. Joined, the chunks are what `speak` gives for the same codes.

        Fewer codes (of 46 ms) between two chunks give sooner sound and more work. What was sent cannot be taken back: only where
        retries are asked for is each piece whole and looked at before its first chunk.
        """
        pieces, rows = self._split(text, voice, language, settings)
        said: Iterable[Iterable[GeneratedRow]]
        settings = self._fill_in(settings, retries=0 if self._check is None else RETRIES)
        if settings.retries:
            said = self._say_in_batches(pieces, rows, settings, 1)
        else:
            said = (self._generator.stream(row, settings, chunk_codes) for row in rows)
        return self._render_all(pieces, rows, said, settings, timed=timed)

    def join_batch(
        self, text: str, voice: Voice, language: str, settings: SpeechSettings = USUAL, *, first_codes: int | None
    ) -> abc.Generator[SpeechChunk, None, None]:
        """The text as speech beside others': a chunk without samples where `batch`, which the caller steps, has to go on first.

        Close it where it may end early: what it holds in the batch is free then. Of each piece there is a first chunk after so many
        codes (of 46 ms), and then longer ones; with None as soon as it is whole. Takes are made only where retries are asked for: as
        rows of the batch too, and heard when the best is known.
        """
        (pieces, rows), owner = self._split(text, voice, language, settings), object()
        settings = self._fill_in(settings, retries=0)
        said: Iterable[Iterable[GeneratedRow | None]]
        if settings.retries and not settings.greedy:
            said = (self._take_in_batch(piece, row, settings, owner) for piece, row in zip(pieces, rows, strict=True))
        else:
            list_steps = None if first_codes is None else partial(self.vocoder.list_steps, first_codes)
            said = self.batch.follow(rows, settings, owner, list_steps)
        try:
            yield from self._render_all(pieces, rows, map(_cut_states, said), settings, timed=False)
        finally:
            self.batch.leave(owner)

    def _take_in_batch(
        self, piece: Piece, row: Row, settings: SpeechSettings, owner: object
    ) -> Iterator[GeneratedRow | None]:
        """The best take, and None until it is known. They are those of `_say_best`."""
        retries, most, takes = settings.retries or 0, self.batch.decoder.most_rows, list[GeneratedRow]()
        at_once = most if self._is_small else 1
        while len(takes) <= retries and all(take.is_doubted for take in takes):
            numbers = range(len(takes), min(len(takes) + at_once, 1 + retries))
            for sentence in [self.batch.add(_draw_anew(row, number), settings, owner) for number in numbers]:
                while not sentence.is_over:
                    yield None
                takes.append(self._look(piece, sentence.row, sentence.show(), settings))
                # One look a turn: others' codes go on between two.
                yield None
            at_once = most
        yield choose_take(takes, self._vectors_VD)

    def _split(self, text: str, voice: Voice, language: str, settings: SpeechSettings) -> tuple[list[Piece], list[Row]]:
        self.check_voice(voice)
        pieces = split_text(text, language, self.tokenizer, self._limits, settings, self._lexicon)
        return pieces, [Row(piece.ids, voice, (settings.seed, index)) for index, piece in enumerate(pieces)]

    def _fill_in(self, settings: SpeechSettings, **usual: Any) -> SpeechSettings:
        """The settings with what suits the model where they leave it open."""
        usual = ({} if self._check is None else {"retries": RETRIES}) | self._usual | usual
        return replace(settings, **{name: usual[name] for name in usual if getattr(settings, name) is None})

    def _say_in_batches(
        self, pieces: Sequence[Piece], rows: Sequence[Row], settings: SpeechSettings, most_rows: int
    ) -> Iterator[list[GeneratedRow]]:
        # What is never drawn is said the same each time.
        retries = 0 if settings.greedy else settings.retries or 0
        at_once = min(1 + retries, self._generator.most_rows) if self._is_small else 1
        step = max(1, most_rows // at_once)
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            if retries:
                said = self._say_best(pieces[part], rows[part], settings, at_once, retries)
            else:
                said = self._generator.generate(rows[part], settings)
            yield from ([each] for each in said)

    def _say_best(
        self, pieces: Sequence[Piece], rows: Sequence[Row], settings: SpeechSettings, takes: int, retries: int
    ) -> list[GeneratedRow]:
        """The best takes: of so many to begin with, and of more where these are doubtful, as many at once as fit into a batch."""
        known = [list[GeneratedRow]() for _ in rows]
        places, tried = list(range(len(rows))), 0
        while places and tried <= retries:
            numbers = range(tried, min(tried + takes, 1 + retries))
            again = [(place, _draw_anew(rows[place], number)) for place in places for number in numbers]
            said = self._generator.generate([row for _, row in again], settings)
            for (place, row), take in zip(again, said, strict=True):
                known[place].append(self._look(pieces[place], row, take, settings))
            places, tried = [place for place in places if all(take.is_doubted for take in known[place])], numbers.stop
            takes = self._generator.most_rows // max(1, len(places))
        return [choose_take(each, self._vectors_VD) for each in known]

    def _look(self, piece: Piece, row: Row, said: GeneratedRow, settings: SpeechSettings) -> GeneratedRow:
        """A take with how it went; where there is a recogniser, its word counts alone."""
        following = self._follower.follow(row, said)
        if self._check is not None:
            samples = self.vocoder.start(row.voice, settings.speed).render(said.codes_M, said.latents_MC, is_last=True)
            misheard = self._check(piece.text, samples, self.rate_hz)
            doubts = (f"by the recogniser its word error rate is {misheard:.0%}",) if misheard else ()
            following = replace(following, misheard=misheard, doubts=doubts)
        return replace(said, following=following)

    def _render_all(
        self,
        pieces: Sequence[Piece],
        rows: Sequence[Row],
        said: Iterable[Iterable[GeneratedRow | None]],
        settings: SpeechSettings,
        *,
        timed: bool,
    ) -> Iterator[SpeechChunk]:
        """The sound of all pieces, with the silence around them; the last chunk of a piece, and only that, carries its report."""
        for piece, row, states in zip(pieces, rows, said, strict=True):
            yield from self._be_silent(piece.before_s)
            rendering, softener, count = self.vocoder.start(row.voice, settings.speed), EdgeSoftener(self.rate_hz), 0
            for state in states:
                if state is None:
                    yield NOTHING_YET
                    continue
                samples = rendering.render(state.codes_M, state.latents_MC, is_last=state.is_last)
                if not (np.isfinite(samples).all() and np.isfinite(state.latents_MC).all()):
                    raise UnableToSpeakError(
                        "The model must compute numbers, but what it says is none: its weights are damaged, or its training failed. "
                        "Give another checkpoint."
                    )
                count += len(samples)
                samples = softener.soften(samples, is_last=state.is_last)
                if state.is_last:
                    seconds, doubts = count / self.rate_hz, state.following.doubts if state.following else ()
                    words = self._follower.time_words(piece.text, row, state, settings.speed) if timed else ()
                    report = SpokenPiece(
                        piece.text, len(state.codes_M), state.stopped, seconds, doubts, words, piece.strange
                    )
                    yield SpeechChunk(samples, report)
                elif len(samples):
                    yield SpeechChunk(samples)
            yield from self._be_silent(piece.after_s)

    def _be_silent(self, seconds: float) -> Iterator[SpeechChunk]:
        samples = round(seconds * self.rate_hz)
        for first in range(0, samples, self.rate_hz):
            yield SpeechChunk(np.zeros(min(self.rate_hz, samples - first), np.float32))


def _cut_states(states: Iterable[GeneratedRow | None]) -> Iterator[GeneratedRow | None]:
    """The same with further states before those that bring many codes: to make sound of them takes a turn each."""
    shown = 0
    for state in states:
        if state is not None:
            for end in range(shown + STREAM_CODES, len(state.codes_M), STREAM_CODES):
                yield GeneratedRow(state.codes_M[:end], state.latents_MC[:end], stopped=False, is_last=False)
                yield None
            shown = len(state.codes_M)
        yield state


def _draw_anew(row: Row, number: int) -> Row:
    """The same row for another take; take 0 is the one that is said without retries."""
    return replace(row, key=(row.key[0], row.key[1] + number * _APART))


class SpeechCopier:
    """Copies recordings with a model's DVAE. Raises `UnableToSpeakError` for a model that has none."""

    def __init__(self, xtts: XTTS):
        if xtts.dvae is None:
            raise UnableToSpeakError(
                "Copying a recording takes the model's DVAE, but there is none. Import one (--dvae)."
            )
        self._dvae, self._mel_norms = xtts.dvae, xtts.mel_norms.numpy()
        self._vocoder = MelVocoder(self._dvae, self._mel_norms)

    def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int32]:
        """The codes of a recording at 22.05 kHz."""
        count = len(samples)
        mel, _ = compute_dvae_mel(tf.constant(samples[None]), tf.constant([count]), self._mel_norms)
        codes_1M: NDArray[np.int32] = self._dvae.encode(mel).numpy().astype(np.int32)
        return codes_1M[0, : -(-count // SAMPLES_PER_CODE)]

    def copy(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """A recording at 22.05 kHz after it went through the model's codes and back, at the same rate and length.

        What is lost here no GPT can bring back: listen to it first when speech is bad.
        """
        return self._vocoder.start(None, 1.0).render(self.encode(samples), is_last=True)[: len(samples)]


class TeacherForcing:
    """Leads a model through recordings."""

    def __init__(self, xtts: XTTS):
        self._gpt = xtts.gpt
        size = xtts.gpt.size
        self._count = tf.function(
            self._trace_count,
            input_signature=[
                tf.TensorSpec([1, None, size.width]),
                tf.TensorSpec([1, None], tf.int32),
                tf.TensorSpec([1, None], tf.int32),
            ],
            autograph=False,
        )

    def count_hits(self, codes_M: NDArray[np.int32], ids: list[int], voice: Voice) -> int:
        """How many of a clip's own codes, and of its end, are predicted rightly.

        Raises `SequenceTooLongError` for more than the model takes.
        """
        # Checked on what is known: inside the graph no length is.
        size = self._gpt.size
        check_length("A clip", len(codes_M), size.max_audio_tokens - 2, "codes")
        check_length("A text", len(ids), size.max_text_tokens, "tokens")
        prompt_1PC, ids_1T = tf.constant(voice.prompt_PC[None]), tf.constant([ids], tf.int32)
        return int(self._count(prompt_1PC, ids_1T, tf.constant(codes_M[None], tf.int32)))

    def _trace_count(self, prompt_1PC: Any, ids_1T: Any, codes_1M: Any) -> Any:
        # As it speaks, not as it is trained: there the end of the text is hidden.
        text = self._gpt.frame_prefix_text(ids_1T)
        audio = frame_audio(codes_1M, tf.shape(codes_1M)[1:], self._gpt.size)
        _, logits_1LV = self._gpt.compute_logits(prompt_1PC, text, audio)
        hits_1L = tf.argmax(logits_1LV, -1, output_type=tf.int32) == audio.targets_BL
        # The codes and one stop token; the further ones say nothing new.
        return tf.reduce_sum(tf.cast(hits_1L[:, : tf.shape(codes_1M)[1] + 1], tf.int32))


def load_synthesizer(
    path: str | os.PathLike[str],
    *,
    verify_checksums: bool = True,
    vocoder: VocoderChoice = "auto",
    lexicon: Lexicon = NO_LEXICON,
    engine: EngineChoice = "auto",
    check: SpeechCheck | None = None,
) -> Synthesizer:
    """The model in a directory, ready to speak; of a run's folder its best checkpoint.

    `check` says how many of a text's words were heard wrongly in samples of a rate; it then decides which take is kept.

    To verify checksums reads every byte once more, which takes seconds for a full-size model.
    """
    directory = read_model_directory(find_model_directory(Path(path)), verify_checksums=verify_checksums)
    require_able_to_speak(directory)
    tokenizer, tokens = Tokenizer(directory.path / VOCABULARY_NAME), directory.config.model.text_tokens
    if tokenizer.text_tokens != tokens:
        raise UnableToSpeakError(
            f"The vocabulary of {directory.path} must have the {tokens} tokens that its model knows, but has "
            f"{tokenizer.text_tokens}. Import the model again, with its own vocab.json."
        )
    data = directory.config.data
    return Synthesizer(
        build_parts(directory, tokenizer),
        tokenizer,
        speakers=directory.speakers,
        clip_seconds=data.max_clip_seconds,
        chunk_seconds=min(CHUNK_SECONDS, data.prompt_seconds),
        vocoder=vocoder,
        lexicon=lexicon,
        engine=engine,
        int8_file=KeptFile(directory),
        check=check,
    )


def build_parts(directory: ModelDirectory, tokenizer: Tokenizer) -> XTTS:
    """The parts that a directory has, with their weights. Raises before anything is built where these are not as it says."""
    require_weights(directory)
    groups = (directory.model, directory.dvae or {})
    needed = sum(tensor.size for group in groups for tensor in group.values()) * np.dtype(np.float32).itemsize
    if needed > (free := read_free_memory_bytes()):
        raise UnableToSpeakError(
            f"The weights of {directory.path} take {needed / 2**30:.1f} GiB of memory, but only {free / 2**30:.1f} GiB are free. "
            "End what else needs memory, or take a smaller model."
        )
    sizes = read_sizes(directory.config.model, start_text_token=tokenizer.start_id, stop_text_token=tokenizer.stop_id)
    has_decoder, has_encoder = (
        any(name.startswith(prefix) for name in directory.model) for prefix in (DECODER_PREFIX, SPEAKER_PREFIX)
    )
    xtts = XTTS(
        GPT(sizes.gpt, fused_norms=not is_on_cpu()),
        decoder=WaveformDecoder(sizes.decoder) if has_decoder else None,
        speaker_encoder=SpeakerEncoder(sizes.speaker) if has_encoder else None,
        dvae=DVAE(sizes.dvae) if directory.dvae is not None else None,
    )
    load_checkpoint_arrays(xtts, directory.model).require_complete()
    if xtts.dvae is not None and directory.dvae is not None:
        load_checkpoint_arrays(xtts.dvae, directory.dvae).require_complete()
    return xtts

"""Text and a voice -> speech: whole, many texts at once, or as a stream.

The caller opens the device scope, once, around building the model and everything asked of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.tensor import Tensor
from myxtts.inference.cloning import CHUNK_SECONDS, VoiceCloner, describe_speaker
from myxtts.inference.errors import UnableToSpeakError, VoiceError
from myxtts.inference.generation import CodeGenerator, GeneratedRow, Row, choose_penalty
from myxtts.inference.joining import EdgeSoftener, make_pause
from myxtts.inference.mel_vocoder import MelVocoder
from myxtts.inference.pieces import PUBLISHED_CLIP_SECONDS, Piece, PieceLimits, split_text
from myxtts.inference.settings import SpeechSettings
from myxtts.inference.speech import Speech, SpeechChunk, SpokenPiece
from myxtts.inference.vocoder_choice import VocoderChoice, choose_vocoder
from myxtts.inference.voices import Voice, find_voice
from myxtts.models.xtts import XTTS
from myxtts.text.tokenizer import Tokenizer

STREAM_CODES = 20
"""Codes between two chunks of a stream, 0.93 s."""

USUAL = SpeechSettings()


class Synthesizer:
    """A model that speaks.

    Args:
        xtts: the model with its weights: a GPT, and a waveform decoder or a DVAE.
        tokenizer: of the model's vocabulary.
        speakers: named voices.
        clip_seconds: the longest clip the model was trained on.
        chunk_seconds: of reference heard at a time.
        vocoder: what makes the sound.
        decoder_updates: since the waveform decoder was new; None where that is not known.

    Attributes:
        xtts, tokenizer: the same.
        vocoder: what makes the sound; `vocoder.how` says it in words.
        speaker_note: where its speaker embeddings come from, in words.
        rate_hz: of everything it says: 24 kHz by a waveform decoder, else 22.05 kHz.

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
        decoder_updates: int | None = None,
    ):
        self.xtts, self.tokenizer = xtts, tokenizer
        self._speakers = speakers or {}
        size = xtts.gpt.size
        # Only what descends from the published model has a speaker encoder.
        is_published = xtts.speaker_encoder is not None
        self._limits = PieceLimits(size.max_text_tokens, size.max_new_codes, clip_seconds, joins_sentences=is_published)
        self._cloner = VoiceCloner(xtts, chunk_seconds=chunk_seconds)
        self._generator = CodeGenerator(xtts.gpt, usual_penalty=choose_penalty(is_published=is_published))
        mel_vocoder = MelVocoder(xtts.dvae, xtts.mel_norms.numpy()) if xtts.dvae else None
        self.vocoder = choose_vocoder(vocoder, xtts.decoder, mel_vocoder, decoder_updates)
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
        return self._cloner.clone(paths)

    def clone_samples(self, recordings: Sequence[NDArray[np.float32]]) -> Voice:
        """The same of recordings that `read_references` has read."""
        return self._cloner.clone_samples(recordings)

    def find_voice(self, name: str) -> Voice:
        """A voice that comes with the model."""
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

    def speak(self, text: str, voice: Voice, language: str, settings: SpeechSettings = USUAL) -> Speech:
        """The text as speech."""
        return self.speak_all([text], voice, language, settings)[0]

    def speak_all(
        self, texts: Sequence[str], voice: Voice, language: str, settings: SpeechSettings = USUAL
    ) -> list[Speech]:
        """Several texts as speech, batch by batch; each sounds as if it were said alone."""
        pieces = [self._split(text, voice, language) for text in texts]
        rows = [(piece, index) for each in pieces for index, piece in enumerate(each)]
        spoken = self._speak_rows(rows, voice, settings)
        speeches = []
        for each in pieces:
            # One for each piece, and one for each pause between two.
            chunks = list(itertools.islice(spoken, 2 * len(each) - 1))
            reports = tuple(chunk.piece for chunk in chunks if chunk.piece)
            speeches.append(Speech(np.concatenate([chunk.samples for chunk in chunks]), self.rate_hz, reports))
        return speeches

    def speak_in_turn(
        self, text: str, voice: Voice, language: str, settings: SpeechSettings = USUAL
    ) -> Iterator[SpeechChunk]:
        """The text as speech, a chunk for each piece and pause: memory does not grow with the text."""
        # Checked at the call, not when the first chunk is asked for.
        rows = [(piece, index) for index, piece in enumerate(self._split(text, voice, language))]
        return self._speak_rows(rows, voice, settings)

    def stream(
        self,
        text: str,
        voice: Voice,
        language: str,
        settings: SpeechSettings = USUAL,
        *,
        chunk_codes: int = STREAM_CODES,
    ) -> Iterator[SpeechChunk]:
        """The text as speech, as soon as there is any. Joined, the chunks are what `speak` gives for the same codes.

        Args:
            chunk_codes: codes of 46 ms between two chunks: fewer give sooner sound and more work.
        """
        return self._stream_pieces(self._split(text, voice, language), voice, settings, chunk_codes)

    def _split(self, text: str, voice: Voice, language: str) -> list[Piece]:
        self.check_voice(voice)
        return split_text(text, language, self.tokenizer, self._limits)

    def _speak_rows(
        self, rows: Sequence[tuple[Piece, int]], voice: Voice, settings: SpeechSettings
    ) -> Iterator[SpeechChunk]:
        """Pieces, each with its place in its text, in batches."""
        for first in range(0, len(rows), self._generator.most_rows):
            group = rows[first : first + self._generator.most_rows]
            batch = [Row(piece.ids, voice, (settings.seed, index)) for piece, index in group]
            for (piece, index), said in zip(group, self._generator.generate(batch, settings), strict=True):
                yield from self._render(piece, index, iter([said]), voice, settings)

    def _stream_pieces(
        self, pieces: Sequence[Piece], voice: Voice, settings: SpeechSettings, chunk_codes: int
    ) -> Iterator[SpeechChunk]:
        for index, piece in enumerate(pieces):
            row = Row(piece.ids, voice, (settings.seed, index))
            said = self._generator.stream(row, settings, chunk_codes)
            yield from self._render(piece, index, said, voice, settings)

    def _render(
        self, piece: Piece, index: int, states: Iterator[GeneratedRow], voice: Voice, settings: SpeechSettings
    ) -> Iterator[SpeechChunk]:
        """The sound of one piece, after the pause before it; its last chunk, and only that, carries the report."""
        if index:
            yield SpeechChunk(make_pause(self.rate_hz))
        rendering = self.vocoder.start(voice, settings.speed)
        softener = EdgeSoftener(self.rate_hz)
        count = 0
        for state in states:
            samples = rendering.render(state.codes_M, state.latents_MC, is_last=state.is_last)
            if not (np.isfinite(samples).all() and np.isfinite(state.latents_MC).all()):
                raise UnableToSpeakError(
                    "The model must compute numbers, but what it says is none: its weights are damaged, or its training failed. "
                    "Give another checkpoint."
                )
            count += len(samples)
            samples = softener.soften(samples, is_last=state.is_last)
            if state.is_last:
                report = SpokenPiece(piece.text, len(state.codes_M), state.stopped, count / self.rate_hz)
                yield SpeechChunk(samples, report)
            elif len(samples):
                yield SpeechChunk(samples)

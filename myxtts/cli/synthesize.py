"""`myxtts synthesize`: a text, in a voice, as a sound file or a stream."""

from __future__ import annotations

import argparse
import html
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from myxtts.cli.parser import Parser
from myxtts.cli.speaking import (
    CONSENT,
    add_checkpoint_flag,
    add_lexicon_flag,
    add_speaking_flags,
    open_speaking_device,
    read_speech_settings,
    tell_code_limit,
)
from myxtts.errors import CommandLineError, EvaluationError
from myxtts.files import MOST_TEXT_BYTES, FileError, WriteError, open_file_atomically, open_scratch_folder, read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from myxtts.inference.speech import SpeechChunk, SpokenPiece
    from myxtts.inference.synthesizer import SpeechCheck

STANDARD_INPUT = "-"
OUT_SUFFIXES = (".wav", ".flac")
TIME_SUFFIXES = (".json", ".srt", ".vtt")
MOMENT_S = 0.01
"""Shown of a word that has no time of its own."""
LONGEST_NAME = 255
"""Of a voice."""


def add_flags(parser: Parser) -> None:
    parser.description = f"Speak a text with a trained or imported model, in the voice of a recording. {CONSENT}"
    add_checkpoint_flag(parser)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", metavar="TEXT", help="what to say; [pause 0.5s] is silence")
    text.add_argument("--text-file", metavar="FILE", help="read the text from a file, or with - from standard input")
    parser.add_argument(
        "--language", metavar="CODE", default="en", help="of the text, for example en or fa (default: en)"
    )
    add_lexicon_flag(parser)
    voice = parser.add_mutually_exclusive_group()
    voice.add_argument(
        "--reference",
        metavar="FILE",
        type=Path,
        action="append",
        help="a recording of the voice, best 6 to 30 s; may be repeated",
    )
    voice.add_argument(
        "--voice",
        metavar="NAME",
        help="a voice that comes with the model, or a file written by --save-voice (default: the model's first voice)",
    )
    parser.add_argument("--save-voice", metavar="FILE", type=Path, help="keep the voice for the next time")
    sound = parser.add_mutually_exclusive_group()
    sound.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("spoken.wav"),
        help="the sound file to write, .wav or .flac (default: spoken.wav)",
    )
    sound.add_argument(
        "--stream",
        action="store_true",
        help="write samples to standard output as they are made: 16 bit, mono, no header",
    )
    parser.add_argument(
        "--word-times", metavar="FILE", type=Path, help="write when each word is said, as .json, .srt or .vtt"
    )
    parser.add_argument(
        "--check-speech",
        metavar="COMMAND",
        help="a recogniser, as `evaluate --recogniser-command` takes it: it decides which take of a sentence is kept",
    )
    add_speaking_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    # What is wrong with the request is said before a model is loaded.
    from myxtts.inference.speech import check_text, find_speaking_model
    from myxtts.inference.voices import load_voice, read_references, save_voice
    from myxtts.text.lexicon import read_lexicon

    settings, lexicon = read_speech_settings(arguments), read_lexicon(arguments.lexicon)
    _require_writable("--out", None if arguments.stream else arguments.out, OUT_SUFFIXES)
    _require_writable("--word-times", arguments.word_times, TIME_SUFFIXES)
    if arguments.check_speech is not None and (settings.greedy or settings.retries == 0):
        raise CommandLineError("--check-speech must have takes to choose from: leave out --greedy and --retries 0.")
    if arguments.stream and sys.stdout.isatty():
        raise CommandLineError(
            "--stream must go to a player or a file, but standard output is a terminal. Pipe it, for example to "
            "aplay -r 22050 -f S16_LE -c 1 (-r 24000 for a model with a waveform decoder), or give --out FILE."
        )
    text = _read_text(arguments)
    check_text(text, arguments.language)
    recordings = read_references(arguments.reference) if arguments.reference else None
    voice = arguments.voice or ""
    # A file rather than a name: by what is there, or by how it is spelt.
    is_file = os.path.lexists(voice) or os.sep in voice or voice.endswith(".safetensors") or len(voice) > LONGEST_NAME
    kept = load_voice(voice) if is_file else None
    model = find_speaking_model(arguments.checkpoint)
    with _open_check(arguments) as check, open_speaking_device(rehearsal=arguments.rehearsal):
        from myxtts.inference.synthesizer import load_synthesizer

        synthesizer = load_synthesizer(
            model, vocoder=arguments.vocoder, lexicon=lexicon, engine=arguments.engine, check=check
        )
        _tell(synthesizer.engine_note)
        _tell(synthesizer.vocoder.how)
        _tell(synthesizer.speaker_note)
        tell_code_limit(settings, synthesizer.most_codes)
        cloned = synthesizer.clone_samples(recordings) if recordings else None
        speaker = kept or cloned or synthesizer.find_voice(arguments.voice)
        stranger = synthesizer.describe_stranger(speaker)
        if stranger is not None:
            _tell(f"Warning: {arguments.voice}: {stranger}")
        if arguments.save_voice:
            save_voice(speaker, arguments.save_voice)
            _tell(f"Voice: {arguments.save_voice}; use it with --voice. {CONSENT}")
        say = synthesizer.stream if arguments.stream else synthesizer.speak_in_turn
        started = time.perf_counter()
        chunks = say(text, speaker, arguments.language, settings, timed=arguments.word_times is not None)
        if arguments.stream:
            # Before the first sample, which has no header to say it: a player at another rate speaks too high or too low.
            _tell(f"Stream: to hear it, pipe it to: aplay -r {synthesizer.rate_hz} -f S16_LE -c 1")
            written = _write_chunks(chunks, _write_samples)
        else:
            written = write_file(chunks, arguments.out, synthesizer.rate_hz)
    if arguments.word_times is not None:
        write_times(arguments.word_times, written, synthesizer.rate_hz)
    _report(written, synthesizer.rate_hz, time.perf_counter() - started, arguments)
    return 0


class Written(NamedTuple):
    """What came out."""

    samples: int
    pieces: list[tuple[int, SpokenPiece]]
    """With the number of samples that each ends behind."""
    first_sound_s: float | None


def _require_writable(flag: str, path: Path | None, suffixes: Sequence[str]) -> None:
    if path is not None and path.suffix.lower() not in suffixes:
        raise CommandLineError(f"{flag} must end in {' or '.join(suffixes)}, but is {path}.")
    if path is not None and not path.parent.is_dir():
        raise CommandLineError(
            f"{flag} {path} must lie in a folder that is there, but {path.parent} is not. Make it first."
        )


@contextmanager
def _open_check(arguments: argparse.Namespace) -> Iterator[SpeechCheck | None]:
    """The word error rate of a recogniser that hears a text in samples; None where none is asked for."""
    if arguments.check_speech is None:
        yield None
        return
    from myxtts.audio.resampling import resample_clip
    from myxtts.evaluation.judges import JUDGE_RATE_HZ, RECOGNISER, JudgeChoice, open_judge
    from myxtts.evaluation.scores import score_transcript
    from myxtts.evaluation.sentences import write_wav

    with open_scratch_folder("check") as folder, ExitStack() as stack:
        try:
            judge = stack.enter_context(open_judge(RECOGNISER, JudgeChoice(command=arguments.check_speech)))
        except EvaluationError as error:
            raise CommandLineError(str(error).replace("--recogniser-command", "--check-speech")) from error
        assert judge is not None

        def check(text: str, samples: NDArray[np.float32], rate_hz: int) -> float:
            write_wav(folder / "take.wav", resample_clip(samples, rate_hz, JUDGE_RATE_HZ), JUDGE_RATE_HZ)
            heard = judge.ask(folder / "take.wav", arguments.language)
            words, _ = score_transcript(text, heard, arguments.language)
            return words["errors"] / max(words["length"], 1)

        yield check


def _tell(line: str) -> None:
    # Standard output may be the sound itself.
    print(line, file=sys.stderr)


def _read_text(arguments: argparse.Namespace) -> str:
    if arguments.text is not None:
        return str(arguments.text)
    try:
        if arguments.text_file == STANDARD_INPUT:
            text = sys.stdin.buffer.read(MOST_TEXT_BYTES + 1)
            if len(text) > MOST_TEXT_BYTES:
                raise CommandLineError(
                    f"Standard input must have at most {MOST_TEXT_BYTES:,} bytes, but has more. Cut the text."
                )
            return text.decode("utf-8-sig")
        return read_text(arguments.text_file)
    except UnicodeDecodeError as error:
        raise CommandLineError(
            f"Standard input must be UTF-8 text, but is not: {error}. Convert it with iconv."
        ) from error
    except FileError as error:
        raise CommandLineError(
            f"--text-file {error} Give a file of UTF-8 text, - for standard input, or the text itself after --text."
        ) from error


def _write_samples(samples: NDArray[np.float32]) -> None:
    from myxtts.inference.speech import to_pcm16

    sys.stdout.buffer.write(to_pcm16(samples))
    sys.stdout.buffer.flush()


def _write_chunks(chunks: Iterator[SpeechChunk], write: Callable[[NDArray[np.float32]], object]) -> Written:
    started, first_sound_s = time.perf_counter(), None
    samples = 0
    pieces: list[tuple[int, SpokenPiece]] = []
    for chunk in chunks:
        if len(chunk.samples):
            write(chunk.samples)
            first_sound_s = first_sound_s or time.perf_counter() - started
        samples += len(chunk.samples)
        pieces += [(samples, chunk.piece)] if chunk.piece else []
    return Written(samples, pieces, first_sound_s)


def write_file(chunks: Iterator[SpeechChunk], path: Path, rate_hz: int) -> Written:
    """Writes chunk by chunk beside `path`, and puts the file there when it is whole."""
    import soundfile

    try:
        with (
            _end_on_sigterm(),
            open_file_atomically(path) as whole,
            soundfile.SoundFile(whole.name, "w", rate_hz, 1, subtype="PCM_16") as file,
        ):
            return _write_chunks(chunks, file.write)
    except soundfile.LibsndfileError as error:
        raise CommandLineError(f"--out {path} cannot be written: {error}.") from error
    except WriteError as error:
        raise CommandLineError(f"--out {path} cannot be written: {error.reason}.") from error


def write_times(path: Path, written: Written, rate_hz: int) -> None:
    """Writes when each word is said: as JSON by sentences, as subtitles one for each word."""
    pieces = [
        (piece, start_s := end / rate_hz - piece.seconds, [word.shift(start_s) for word in piece.words])
        for end, piece in written.pieces
    ]
    words = [word for _, _, words in pieces for word in words]
    if path.suffix.lower() == ".json":
        found = [
            {"text": piece.text, "start": round(start_s, 3), "end": round(start_s + piece.seconds, 3), "words": [
                {"word": word.word, "start": round(word.start_s, 3), "end": round(word.end_s, 3)} for word in words
            ]}
            for piece, start_s, words in pieces
        ]  # fmt: skip
        text = json.dumps({"pieces": found}, ensure_ascii=False, indent=1) + "\n"
    else:
        is_srt = path.suffix.lower() == ".srt"
        comma, head = (",", "") if is_srt else (".", "WEBVTT\n\n")
        # No player shows a subtitle that ends as it begins.
        text = head + "\n".join(
            f"{number}\n{_show_time(word.start_s, comma)} --> {_show_time(max(word.end_s, word.start_s + MOMENT_S), comma)}\n"
            # In WebVTT < begins a tag and & a character; in SubRip they are what they are.
            f"{word.word if is_srt else html.escape(word.word, quote=False)}\n"
            for number, word in enumerate(words, start=1)
        )
    try:
        with open_file_atomically(path) as file:
            file.write(text.encode())
    except WriteError as error:
        raise CommandLineError(f"--word-times {path} cannot be written: {error.reason}.") from error
    _tell(f"Word times: {path}, {len(words)} words")


def _show_time(seconds: float, comma: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}{comma}{milliseconds % 1000:03}"


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """A block that SIGTERM leaves by an exception, so that what stands in `finally` is done before the process ends.

    For the main thread, which alone may say what a signal does.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        # None where a library had taken the signal outside of Python.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _report(written: Written, rate_hz: int, elapsed_s: float, arguments: argparse.Namespace) -> None:
    seconds = written.samples / rate_hz
    ratio = f"{elapsed_s / seconds:.2f} s for a second of speech" if seconds else "nothing was said"
    _tell(
        f"Spoken: {seconds:.2f} s at {rate_hz} Hz in {elapsed_s:.2f} s, compiling included ({ratio}); "
        f"pieces: {len(written.pieces)}."
    )
    if arguments.stream and written.first_sound_s is not None:
        _tell(f"First sound after {written.first_sound_s:.2f} s.")
    for _, piece in written.pieces:
        if piece.doubts:
            _tell(
                f"Warning: doubtful, also in the best take: {'; '.join(piece.doubts)}: {piece.text!r}. Try more --retries."
            )
        if piece.strange:
            _tell(f"Warning: the model has no sound for {', '.join(piece.strange)}, which are in {piece.text!r}.")
        if piece.stopped:
            continue
        _tell(
            f"Warning: the model did not come to an end within {piece.codes} codes ({piece.seconds:.1f} s) and was cut off "
            f"at: {piece.text!r}. Try another --seed, a lower --temperature, or train longer."
        )
    if not arguments.stream:
        _tell(f"Written {arguments.out}")

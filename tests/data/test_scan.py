import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from myxtts.data.corpus import Corpus
from myxtts.data.ljspeech import demo_corpus_path, read_metadata
from myxtts.data.scan import ClipLimits, ScanResult, scan_corpus
from myxtts.data.task_processes import ProcessTask
from myxtts.errors import CorpusError
from myxtts.text.tokenizer import Tokenizer
from tests.data.reading import VOCABULARY
from tests.data.shared import make_tone, write_clips, write_metadata
from tests.support.shared_files import ROOT, find_parity, find_shared


def list_drops(result: ScanResult) -> dict[str, str]:
    return {Path(drop.file).stem: drop.reason for drop in result.drops.drops}


def make_damaged_corpus(folder: Path) -> dict[str, str]:
    """A corpus with a clip for every reason a file can be set aside for. Returns the reasons by clip."""
    tone = make_tone()
    write_clips(folder, ["good", "duplicated"])
    wavs = folder / "wavs"
    soundfile.write(wavs / "truncated.wav", tone, 22050)
    (wavs / "truncated.wav").write_bytes((wavs / "truncated.wav").read_bytes()[:-9000])
    (wavs / "empty.wav").touch()
    soundfile.write(wavs / "no_samples.wav", tone[:0], 22050)
    (wavs / "corrupt.wav").write_bytes(b"this is a text file" * 99)
    soundfile.write(wavs / "silent.wav", tone * 0, 22050)
    soundfile.write(wavs / "nan.wav", np.where(tone > 0.2, np.nan, tone), 22050, subtype="FLOAT")
    soundfile.write(wavs / "too_short.wav", make_tone(0.2), 22050)
    soundfile.write(wavs / "too_long.flac", make_tone(12.0, 16000), 16000)
    reasons = {name: name for name in ("truncated", "empty", "corrupt", "silent", "nan", "too_short", "too_long")}
    reasons |= {
        "no_samples": "empty",
        "missing": "missing",
        "text_empty": "text_empty",
        "text_too_long": "text_too_long",
    }
    write_clips(folder, ["text_empty", "text_too_long"])
    write_metadata(
        folder,
        "good|Good.",
        "duplicated|Once.",
        *(f"{name}|{ {'text_empty': '', 'text_too_long': 'word ' * 41}.get(name, 'Some words.') }" for name in reasons),
        "duplicated|Once more.",
        "much|too|many|bars",
    )
    return reasons


def test_sets_aside_what_cannot_be_used_and_says_why(tmp_path):
    expected = make_damaged_corpus(tmp_path)
    result = scan_corpus(tmp_path, processes=1)
    assert list(result.corpus.audio) == ["wavs/good.wav", "wavs/duplicated.wav"]
    assert list(result.corpus.text) == ["Good.", "Once."]
    assert result.corpus.samples.tolist() == [22050, 22050]
    assert result.corpus.tokens.tolist() == [5, 5]
    assert list_drops(result) == expected | {"duplicated": "duplicate", "metadata": "malformed_line"}
    assert result.drops.lines == 2 + len(expected) + 2
    result.drops.write_json(tmp_path / "drops.json")
    report = json.loads((tmp_path / "drops.json").read_text(encoding="utf-8"))
    where = f"{tmp_path / 'metadata.csv'}, line 6"
    assert report["dropped"]["silent"] == [{"file": "wavs/silent.wav", "where": where, "detail": ""}]


def test_a_corpus_without_a_usable_clip_is_an_error(tmp_path):
    write_metadata(tmp_path, "a|One.")
    with pytest.raises(CorpusError, match=r"missing +1  a"):
        scan_corpus(tmp_path, processes=0)


def test_lengths_are_counted_at_the_model_s_rate(tmp_path):
    (tmp_path / "wavs").mkdir()
    soundfile.write(tmp_path / "wavs" / "a.wav", make_tone(1.0, 16000)[:16001], 16000)
    soundfile.write(tmp_path / "wavs" / "b.wav", np.tile(make_tone(1.0, 48000), 2)[:48001], 48000)
    write_metadata(tmp_path, "a|One.", "b|Two.")
    # Rounded up, as the resampler does: 16000 * 22050 / 16000 and 48001 * 22050 / 48000.
    assert scan_corpus(tmp_path, processes=0).corpus.samples.tolist() == [22050, 22051]


class TestRemembering:
    def scan(self, folder: Path, **settings) -> ScanResult:
        return scan_corpus(folder, processes=0, **settings)

    def test_a_second_scan_reads_no_audio_and_gives_the_same(self, tmp_path):
        expected = make_damaged_corpus(tmp_path)
        first = self.scan(tmp_path)
        looked_at: list[tuple[str, int, int]] = []
        second = self.scan(tmp_path, progress=lambda *call: looked_at.append(call))
        assert first.checked == len(expected) - 1 + 2
        assert second.checked == 0
        assert looked_at == []
        assert second.drops.to_json() == first.drops.to_json()
        assert second.corpus.samples.tolist() == first.corpus.samples.tolist()
        result = self.scan(tmp_path, limits=ClipLimits(min_seconds=0.1, max_samples=13 * 22050))
        assert result.checked == 0, "other limits need no other scan"
        assert {"wavs/too_short.wav", "wavs/too_long.flac"} <= set(result.corpus.audio)

    def test_an_unreadable_file_is_asked_for_again(self, tmp_path):
        write_clips(tmp_path, ["a", "b"])
        write_metadata(tmp_path, "a|One.", "b|Two.")
        task = ProcessTask("tests.data.test_scan:make_unreadable_check", {"name": "b.wav"})
        assert list_drops(self.scan(tmp_path, clip_task=task)) == {"b": "missing"}
        assert self.scan(tmp_path, clip_task=task).checked == 1

    def test_a_killed_scan_goes_on_where_it_was(self, tmp_path):
        names = [f"c{i:03d}" for i in range(160)]
        write_clips(tmp_path, names, seconds=0.5)
        write_metadata(tmp_path, *(f"{name}|Some words." for name in names))
        # The scan waits for ever in the middle, and is killed there.
        script = (
            "import sys, time; from pathlib import Path; from myxtts.data.scan import scan_corpus\n"
            "def stop(kind, done, total):\n"
            "    if done >= 64:\n"
            "        print('half', flush=True); time.sleep(3600)\n"
            "scan_corpus(Path(sys.argv[1]), processes=2, progress=stop)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
        with process:
            assert process.stdout.readline() == b"half\n"
            process.send_signal(signal.SIGKILL)
        result = self.scan(tmp_path)
        assert result.checked == 160 - 64
        assert len(result.corpus) == 160

    def test_a_file_that_crashes_the_reader_is_corrupt_for_now(self, tmp_path):
        write_clips(tmp_path, ["a", "b", "c"])
        write_metadata(tmp_path, "a|One.", "b|Two.", "c|Three.")
        task = ProcessTask("tests.data.test_scan:make_crashing_check", {"name": "b.wav"})
        results = [scan_corpus(tmp_path, processes=1, clip_task=task) for _ in range(2)]
        assert [list_drops(result) for result in results] == [{"b": "corrupt"}] * 2
        # It may have been the machine: the next scan tries that file again, and only that.
        assert [result.checked for result in results] == [3, 1]


def make_crashing_check(name: str):
    def check(path: str) -> list[int | str]:
        if path.endswith(name):
            os.kill(os.getpid(), signal.SIGSEGV)
        return [22050, 22050, ""]

    return check


def make_unreadable_check(name: str):
    return lambda path: [0, 0, "missing"] if path.endswith(name) else [22050, 22050, ""]


def test_clips_behind_links_can_be_refused(tmp_path):
    write_clips(tmp_path / "elsewhere", ["a"])
    write_clips(tmp_path / "corpus", ["b"])
    (tmp_path / "corpus" / "wavs" / "a.wav").symlink_to(tmp_path / "elsewhere" / "wavs" / "a.wav")
    write_metadata(tmp_path / "corpus", "a|One.", "b|Two.")
    assert len(scan_corpus(tmp_path / "corpus", processes=0).corpus) == 2
    result = scan_corpus(tmp_path / "corpus", processes=0, follow_symlinks=False, index_folder=tmp_path / "new")
    assert list_drops(result) == {"a": "symlink"}
    assert result.checked == 1


class TestTexts:
    def test_in_a_language_the_vocabulary_lacks_are_set_aside(self, tmp_path):
        vocabulary = find_parity("tiny_vocab.json")
        write_clips(tmp_path, ["a", "b", "c"])
        write_metadata(tmp_path, "id|text|language", "a|Hello.|xx", "b|سلام|fa", "c|Hello.|en")
        result = scan_corpus(tmp_path, processes=0, vocabulary=vocabulary)
        assert [(drop.reason, drop.detail) for drop in result.drops.drops] == [("language", "xx"), ("language", "fa")]
        assert "`myxtts vocabulary`" in result.drops.format_table()
        assert result.corpus.language.names == ("en",)
        assert list_drops(scan_corpus(tmp_path, processes=0)) == {"a": "language"}, "nobody reads it"


class TestAChoiceOfVocabulary:
    def test_is_given_the_clips_whose_audio_can_be_used_however_long_their_texts(self, tmp_path):
        write_clips(tmp_path, ["good", "wordy", "silent"])
        write_clips(tmp_path, ["short"], seconds=0.1)
        write_metadata(tmp_path, "good|one", f"wordy|{'many ' * 200}", "silent|", "short|one", "absent|one")
        given = []

        def choose(corpus: Corpus) -> Path:
            given.extend(corpus.audio)
            return VOCABULARY

        result = scan_corpus(tmp_path, limits=ClipLimits(max_tokens=20), vocabulary=choose, processes=0)

        assert given == ["wavs/good.wav", "wavs/wordy.wav"]
        assert result.corpus.tokens.tolist() == [len(Tokenizer(VOCABULARY).encode("one", "en"))]
        assert list_drops(result)["wordy"] == "text_too_long"


def test_the_odd_metadata_gives_the_right_clips(tmp_path):
    (tmp_path / "wavs").symlink_to(find_shared("data", "ljspeech_mini", "wavs"))
    clips = {"LJ001-0002", "LJ001-0008", "LJ001-0013"}
    drops = {
        "missing_wav": {"LJ999-0001": "missing"},
        "duplicate_id": {"LJ001-0002": "duplicate"},
        "quotes": {"quotes": "malformed_line"},
    }
    for source in find_shared("data", "formats", "metadata_oddities").iterdir():
        path = tmp_path / source.name
        path.write_bytes(source.read_bytes())
        result = scan_corpus(path, processes=0)
        few = {
            "persian": {"LJ001-0002"},
            "quotes": clips - {"LJ001-0002"},
            "xtts_finetune_header": clips - {"LJ001-0013"},
        }
        assert {Path(name).stem for name in result.corpus.audio} == few.get(source.stem, clips), source.name
        assert list_drops(result) == drops.get(source.stem, {}), source.name


def test_the_demo_corpus_passes_and_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = scan_corpus(demo_corpus_path(), strict=True)
    assert len(result.corpus) == len(read_metadata(demo_corpus_path()))
    assert not (demo_corpus_path() / ".myxtts").exists()
    assert list(tmp_path.rglob("clips-*.rows"))

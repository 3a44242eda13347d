import numpy as np
import pytest
import soundfile

from myxtts.audio.reading import inspect_clip, read_clip
from myxtts.data.errors import PreparedCorpusError, ServiceFormatError
from myxtts.data.float_wav import find_float_samples
from myxtts.data.open_engine import refuse_unserved_clips
from myxtts.data.prepared_corpus import name_copies, prepare_corpus
from myxtts.data.service.client import find_served_samples
from tests.data.reading import VOCABULARY, freeze_all, open_reader, read_steps, scan_small
from tests.data.shared import make_tone, write_clips, write_metadata


def prepare(texted, out, workers=0):
    return prepare_corpus(texted.corpus, out, workers=workers, progress=lambda *_: None)


@pytest.mark.usefixtures("leaves_nothing")
def test_a_copy_gives_the_batches_of_the_original_bit_for_bit(mixed, tmp_path):
    made = prepare(mixed, tmp_path / "copy", workers=2)
    assert (made.clips, made.converted, made.copied, made.reused) == (37, 25, 12, 0)
    copy = scan_small(tmp_path / "copy", tmp_path / "index")
    refuse_unserved_clips([copy.corpus])
    for clip in range(len(copy.corpus)):
        content = copy.corpus.find_file(clip).read_bytes()
        assert np.array_equal(find_served_samples(content), read_clip(mixed.corpus.find_file(clip)))
    with open_reader(mixed) as reader, open_reader(copy) as other:
        assert freeze_all(read_steps(reader, 0, 4)) == freeze_all(read_steps(other, 0, 4))


def test_texts_speakers_and_languages_come_along(demo, tmp_path):
    prepare(demo, tmp_path / "copy")
    copy = scan_small(tmp_path / "copy", tmp_path / "index", VOCABULARY).corpus
    kept = {name.rpartition("/")[2].partition(".")[0]: clip for clip, name in enumerate(demo.corpus.audio)}
    for clip in range(len(copy)):
        original = kept[copy.audio[clip].rpartition("/")[2].partition(".")[0]]
        for column in ("text", "speaker", "language"):
            assert getattr(copy, column)[clip] == getattr(demo.corpus, column)[original]
        assert copy.samples[clip] == demo.corpus.samples[original]


def test_texts_that_need_quoting_come_through(tmp_path):
    write_clips(tmp_path / "old", ["a", "b"])
    texts = ['she said "so" | and left', '"quoted"']
    lines = [f'{name}|"{text.replace(chr(34), 2 * chr(34))}"' for name, text in zip("ab", texts, strict=True)]
    write_metadata(tmp_path / "old", "audio_file|text", *lines)
    old = scan_small(tmp_path / "old", tmp_path / "index")
    assert list(old.corpus.text) == texts
    prepare(old, tmp_path / "new")
    assert list(scan_small(tmp_path / "new", tmp_path / "index2").corpus.text) == texts


def test_a_folder_of_somebody_else_is_refused_and_stays_as_it_is(demo, tmp_path):
    write_clips(tmp_path, ["a"])
    write_metadata(tmp_path, "a|one")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(PreparedCorpusError, match="holds other files"):
        prepare(demo, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_called_again_it_writes_what_was_changed_only(tmp_path):
    write_metadata(tmp_path / "old", "a|one one", "b|two two")
    (tmp_path / "old" / "wavs").mkdir()
    for name in "ab":
        soundfile.write(tmp_path / "old" / "wavs" / f"{name}.flac", make_tone(), 22050)
    old = scan_small(tmp_path / "old", tmp_path / "index")
    made = prepare(old, tmp_path / "new")
    assert (made.converted, made.copied, made.reused) == (2, 0, 0)
    made = prepare(old, tmp_path / "new")
    assert (made.converted, made.copied, made.reused) == (0, 0, 2)
    soundfile.write(tmp_path / "old" / "wavs" / "a.flac", -make_tone(2.0), 22050)
    made = prepare(old, tmp_path / "new")
    assert (made.converted, made.copied, made.reused) == (1, 0, 1)
    samples = find_float_samples((tmp_path / "new" / "wavs" / "a.wav").read_bytes())
    assert len(samples) == 44100
    assert np.array_equal(samples, read_clip(tmp_path / "new" / "wavs" / "a.wav"))


def test_copies_never_take_each_others_place():
    assert name_copies(["wavs/a.flac", "wavs/a.wav", "x/a.mp3", "b.c.ogg"]) == [
        "wavs/a.wav", "wavs/a_2.wav", "x/a.wav", "b.c.wav",
    ]  # fmt: skip


def test_a_corpus_is_not_written_over(lj):
    with pytest.raises(PreparedCorpusError, match="must be another folder than the corpus"):
        prepare(lj, lj.corpus.root)


def test_a_clip_that_has_gone_meanwhile_is_named(own_lj, tmp_path):
    path = own_lj.corpus.find_file(0)
    path.unlink()
    with pytest.raises(PreparedCorpusError, match=str(path)):
        prepare(own_lj, tmp_path / "copy")


def test_what_a_service_cannot_read_is_named_with_its_format_and_the_command_that_helps(lj, mixed):
    refuse_unserved_clips([lj.corpus])
    with pytest.raises(ServiceFormatError) as caught:
        refuse_unserved_clips([lj.corpus, mixed.corpus])
    text = str(caught.value)
    info = inspect_clip(mixed.corpus.root / "wavs/arctic_a0001.flac")
    assert f"{info.path} is FLAC PCM_16, 1 channels, {info.rate_hz} Hz. 25 of 37 clips are like this." in text
    assert f"`myxtts data-prepare --train-data {mixed.corpus.root} --out FOLDER`" in text


def test_a_header_is_looked_at_even_where_the_size_fits(tmp_path):
    write_metadata(tmp_path, "a|one one")
    (tmp_path / "wavs").mkdir()
    soundfile.write(tmp_path / "wavs" / "a.wav", make_tone(1.0, 44100), 44100, subtype="PCM_U8")
    with pytest.raises(ServiceFormatError, match=r"is WAV PCM_U8, 1 channels, 44100 Hz\. Make a copy"):
        refuse_unserved_clips([scan_small(tmp_path, tmp_path / "index").corpus])


def test_a_clip_that_cannot_be_read_at_all_is_no_matter_of_formats(own_lj):
    own_lj.corpus.find_file(0).write_bytes(b"no sound")
    refuse_unserved_clips([own_lj.corpus])
    own_lj.corpus.size_bytes[1] = 5
    own_lj.corpus.find_file(1).unlink()
    refuse_unserved_clips([own_lj.corpus])

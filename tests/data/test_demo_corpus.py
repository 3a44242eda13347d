import soundfile

from myxtts.data.ljspeech import demo_corpus_path, read_metadata


def test_clips_are_short_and_have_their_texts():
    metadata = read_metadata(demo_corpus_path())
    for name, text in zip(metadata.audio, metadata.text, strict=True):
        info = soundfile.info(demo_corpus_path() / name)
        assert (info.samplerate, info.channels) == (22050, 1), name
        # Nobody speaks faster or slower than this: the right text belongs to the clip.
        assert 1.5 < info.duration < 5.0, name
        assert 8 < len(text) / info.duration < 25, name


def test_is_small_and_says_where_it_comes_from():
    files = [path for path in demo_corpus_path().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 4_000_000
    sources = (demo_corpus_path() / "SOURCES.txt").read_text(encoding="utf-8")
    assert all(word in sources for word in ("Festival", "flite", "espeak-ng", "Apache-2.0", "GPL-3.0"))

"""Judges that tests pass as `module:function`."""

import wave


def hear(path, language):
    """Hears the same in everything; what is shorter than 0.4 s it cannot stand."""
    with wave.open(path) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        if file.getnframes() < 6400:
            raise ValueError("too short for me")
    return "hello there"


def feel(path, language):
    """A voice by the loudness of its clip: near (1, 0) when loud, near (0, 1) when quiet."""
    with wave.open(path) as file:
        samples = memoryview(file.readframes(file.getnframes())).cast("h")
    loudness = sum(map(abs, samples)) / max(1, len(samples)) / 3000
    return [loudness, max(0.0, 1 - loudness) + 1e-3]

"""A training process as far as the cache is concerned: opens it, waits for the word, and puts clips, saying so.

python -m tests.data_cache.writer_program DIRECTORY ENCODER SALT FIRST LAST
"""

from __future__ import annotations

import sys
from pathlib import Path

from myxtts.data.cache import FeatureCache
from tests.data_cache.builders import make_key, put

BATCH = 8


def main() -> None:
    directory, encoder, salt, first, last = sys.argv[1:]
    with FeatureCache.open("disk", Path(directory), make_key(encoder_digest=encoder)) as cache:
        print("ready", flush=True)
        sys.stdin.readline()
        for start in range(int(first), int(last), BATCH):
            put(cache, range(start, min(start + BATCH, int(last))), int(salt))
            print(min(start + BATCH, int(last)), flush=True)


if __name__ == "__main__":
    main()

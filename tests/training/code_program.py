"""A process that makes codes by command, and then opens what prepares the batches of a run with the same settings.

`python -m tests.training.code_program FOLDER`; the folder has a corpus and a codec. A process of its own, because devices are
planned once in the life of a process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from myxtts.cli.main import main
from myxtts.config import XTTSConfig


def make_codes(folder: Path) -> list[int]:
    """The exit codes of the command for a part of the corpus, and for all of it."""
    words = ["data-prepare", "--codec", str(folder / "codec"), "--rehearsal", "--deterministic", "--num-workers", "0"]
    words += ["--train-data", str(folder / "corpus")]
    return [main([*words, "--part", "2/2"]), main(words)]


def read_run(folder: Path) -> dict[str, Any]:
    """How the codes of a run's first batch come about: found, or made."""
    from myxtts.devices.runtime import active_plan
    from myxtts.pipeline.maker import BatchFactory
    from myxtts.training.profiling.setup import set_up_profile

    config = XTTSConfig(
        model={"size": "tiny"},
        data={
            "train_data": str(folder / "corpus"),
            "batch_size": 4,
            "num_workers": 0,
            "cache": "disk",
            "pad_to_fixed_length": False,
        },
        training={"rehearsal": True, "deterministic": True, "codec": str(folder / "codec")},
    )
    plan = active_plan()
    assert plan is not None
    setup = set_up_profile(config, plan, folder / "run")
    factory = BatchFactory(setup.data, setup.make_recipe())
    try:
        factory.warm_up()
        meters = factory.make(0).info.meters
    finally:
        factory.close()
    return {"hits": meters.cache_hits, "misses": meters.cache_misses}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    told = {"codes": make_codes(place), "run": read_run(place)}
    print(f"@@{json.dumps(told)}")

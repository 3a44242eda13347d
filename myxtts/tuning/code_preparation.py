"""The codes of a run's clips, made before it: with its settings, so that it finds them in its cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints import read_array
from myxtts.cluster.preparers import PreparerPool
from myxtts.config import XTTSConfig
from myxtts.data.code_cache import CodeCache, CodeKey
from myxtts.data.corpus import Progress
from myxtts.data.drops import Drop, DropReport
from myxtts.data.index import choose_index_folder, claim_corpus_folder
from myxtts.data.run_data import RunData, collect_run_data, load_run_data
from myxtts.devices.plan import DevicePlan
from myxtts.devices.runtime import Execution, apply_execution, apply_plan, read_execution
from myxtts.errors import DropReason, MachineError, UserError
from myxtts.files import open_scratch_folder
from myxtts.pipeline.codes import (
    CodeMaker,
    FilledCodes,
    choose_cache_folder,
    explain_unused_codes,
    fill_codes,
    identify_clips,
    list_differences,
    load_codec,
    make_code_key,
    require_kept,
    require_readable,
)
from myxtts.pipeline.recipe import MOST_PARTS, BatchRecipe, ClipPart, Target, choose_preparation, pack_kit
from myxtts.pipeline.ring import Arrays
from myxtts.pipeline.threads import EndOfStream, TimeLimits
from myxtts.training.model import apply_devices
from myxtts.training.peers import choose_gpu, join_for_preparers
from myxtts.training.starting_point import find_codec, open_start, read_codec
from myxtts.utils.commons import get_device_context, setup_logging


@dataclass(frozen=True)
class PreparedCodes:
    """What was made, and which runs will find it."""

    filled: FilledCodes
    """Of the part that was asked for."""
    clips: int
    """Of the run, all parts together."""
    report: DropReport
    """What the scan set aside of all of them."""
    folder: Path
    """Of the codes of all settings."""
    corpus: Path
    depends_on: Mapping[str, str]
    """What a run must have alike to read them, by name."""
    unused: str | None
    """Why codes that were there before were of no use, if there were any."""


def require_use(config: XTTSConfig) -> None:
    """Raises where no run with these settings reads codes from disk, or where what names a codec has none."""
    if config.training.stage == "codec":
        raise UserError(
            "Codes are what a GPT or a decoder is trained on, but --stage is codec, which trains what makes them. Leave --stage out."
        )
    if config.data.cache in ("off", "memory"):
        raise UserError(
            f"Codes are made for runs that read them from disk, but --cache is {config.data.cache}. Give --cache disk, here and "
            "to the run, or leave it out here."
        )
    if choose_preparation(config, Target(config.training.stage), mel_norms=()).changes_waves:
        raise UserError(
            "Augmentation that changes the waves (gain, noise, speed) makes other codes every time, so a run with these settings "
            "keeps none. Train without preparing codes, or leave these settings out."
        )
    given = config.training.codec or config.training.init_from
    # A file of somebody else's model has its codec beside it, and is imported later.
    if given is not None and not Path(given).is_file():
        read_codec(Path(given))


def prepare_codes(
    config: XTTSConfig, plan: DevicePlan, part: ClipPart, progress: Progress = lambda *_: None
) -> PreparedCodes:
    """Makes the codes of a part of a run's clips where they are not there yet. Puts the plan into force in this process.

    Args:
        config: the run's, for which `require_use` has nothing to say.
    """
    apply_devices(config, plan)
    if config.data.train_data:
        # Chosen on purpose: other machines that share the corpus are to find the codes. The demo corpus is part of the program.
        path = Path(config.data.train_data)
        claim_corpus_folder(path if path.is_dir() else path.parent)
    # For what a run keeps in its folder: a vocabulary made from the corpus, a model that was imported.
    with open_scratch_folder("codes") as folder:
        config, start = open_start(config, folder)
        found = find_codec(config, start)
        assert found is not None, "the settings name a codec"
        data = collect_run_data(config, folder=folder, vocabulary=None if start is None else start.vocabulary)
        root = data.train.root
        if choose_index_folder(root) is None:
            raise MachineError(
                f"Neither {root} nor the user's cache folder can be written to, so codes have no place where a run would look for them. "
                "Make one of them writable."
            )
        cache_folder = choose_cache_folder(data, root)
        weights = {name: read_array(tensor) for name, tensor in found.weights.items()}
        with ExitStack() as opened:
            ray = opened.enter_context(join_for_preparers(config)) if config.training.preparers else None
            uses_gpu = plan.data.is_gpu if ray is None else choose_gpu(ray, config)
            key = make_code_key(weights, found.mel_norms, "/GPU:0" if uses_gpu else "/CPU:0", read_execution())
            unused = explain_unused_codes(cache_folder, key)
            cache = opened.enter_context(CodeCache(cache_folder, key))
            if ray is None:
                with get_device_context(plan.data.device):
                    maker = CodeMaker(load_codec(found.folder).dvae, found.mel_norms)
                    maker.cache = cache
                    filled = fill_codes(data, config.data, maker, part, progress)
            else:
                recipe = BatchRecipe(
                    config=config,
                    plan=plan,
                    preparation=choose_preparation(config, Target(config.training.stage), found.mel_norms.tolist()),
                    validation_interval=1,
                    first_step=0,
                    end_step=1,
                    codec_folder=found.folder,
                    cache_folder=cache_folder,
                )
                filled = _fill_on_cluster(ray, recipe, data, cache, key, progress)
    return PreparedCodes(
        filled=filled,
        clips=len(data.train) + len(data.validation),
        report=data.report,
        folder=cache_folder,
        corpus=data.train.root,
        depends_on=key,
        unused=unused,
    )


CLIPS_PER_PART = 500
"""That a preparer of a cluster makes at a time: little is lost with it, and readers are started rarely."""


def count_parts(data: RunData) -> int:
    """Parts in which preparers of a cluster make the codes of a run's clips."""
    return min(MOST_PARTS, 1 + (len(data.train) + len(data.validation)) // CLIPS_PER_PART)


def _fill_on_cluster(
    ray: Any, recipe: BatchRecipe, data: RunData, cache: CodeCache, key: CodeKey, progress: Progress
) -> FilledCodes:
    """Makes the codes that a cache does not have yet on preparers. This process alone writes them, part by part, each once."""
    training, parts = recipe.config.training, count_parts(data)
    ids = np.concatenate(list(identify_clips(data).values()))
    is_missing = np.array([codes is None for codes in cache.get_many(ids)], bool)
    filled = FilledCodes(known=int(np.count_nonzero(~is_missing)))
    jobs = [number for number in range(1, parts + 1) if is_missing[ClipPart(number, parts).choose(ids)].any()]
    if not jobs:
        return filled
    pool = PreparerPool(
        ray,
        pack_kit(recipe, data, read_execution(), f"{__name__}:{CodeTask.__name__}"),
        jobs,
        training.preparers,
        uses_gpu=choose_gpu(ray, recipe.config),
        limits=TimeLimits.from_setting(training.watchdog_seconds),
    )
    try:
        while True:
            arrays = pool.take().arrays
            record = json.loads(arrays["record_U"].tobytes())
            if record["key"] != key:
                raise MachineError(f"Preparers make other codes: {', '.join(list_differences(key, record['key']))}.")
            known = sum(codes is not None for codes in cache.get_many(arrays["ids_CI"]))
            filled.made += len(arrays["counts_C"]) - known
            cache.put_many(arrays["ids_CI"], np.split(arrays["codes_N"], np.cumsum(arrays["counts_C"])[:-1]))
            cache.save()
            require_kept(cache)
            filled.failed += [Drop(DropReason(reason), *rest) for reason, *rest in record["failed"]]
            require_readable(filled)
            progress("codes", filled.clips, len(ids))
            pool.release()
    except EndOfStream:
        return filled
    finally:
        pool.close()


class CodeTask:
    """Makes the codes of a part of a run's clips in a preparer of a cluster; keeps none of them there.

    Args:
        folder: holds the run's data.
        execution: how operations are run.
    """

    def __init__(self, folder: Path, recipe: BatchRecipe, execution: Execution):
        assert recipe.codec_folder is not None
        setup_logging()
        apply_execution(execution)
        apply_plan(recipe.plan)
        self._data, self._config, self._device = load_run_data(folder), recipe.config.data, recipe.plan.data.device
        self._ids = np.concatenate(list(identify_clips(self._data).values()))
        norms = np.array(recipe.preparation.mel_norms, np.float32)
        with get_device_context(self._device):
            codec = load_codec(recipe.codec_folder)
            self._maker = CodeMaker(codec.dvae, norms)
        self._key = make_code_key(codec.weights, norms, self._device, execution)

    def warm_up(self) -> None:
        """Nothing: every shape is traced when it comes."""

    def prepare(self, position: int, upcoming: Sequence[int] | None = None) -> Arrays:
        """The codes of a part: ids and lengths of its clips (C), the codes of all of them (N) in a row, and a record as JSON."""
        part = ClipPart(position, count_parts(self._data))
        with get_device_context(self._device), CodeCache(None, self._key) as self._maker.cache:
            filled = fill_codes(self._data, self._config, self._maker, part)
            ids = self._ids[part.choose(self._ids)]
            found = self._maker.cache.get_many(ids)
        codes = [each for each in found if each is not None]
        failed = [(drop.reason, drop.file, drop.where, drop.detail) for drop in filled.failed]
        return {
            "ids_CI": ids[[each is not None for each in found]],
            "counts_C": np.array([len(each) for each in codes], np.int64),
            "codes_N": np.concatenate(codes) if codes else np.zeros(0, np.int16),
            "record_U": np.frombuffer(json.dumps({"key": self._key, "failed": failed}).encode(), np.uint8),
        }

    def replace_batch(self, position: int) -> list[str]:
        raise MachineError(f"Two preparers died at part {position} of the clips, which cannot be left out.")

    def close(self) -> None:
        """Nothing of it is open between two parts."""

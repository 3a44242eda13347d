"""The codes of a run's clips, made before it: with its settings, so that it finds them in its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.data.code_cache import CacheFolderError, CodeCache
from myxtts.data.corpus import Progress
from myxtts.data.drops import DropReport
from myxtts.data.index import choose_index_folder, claim_corpus_folder
from myxtts.data.run_data import collect_run_data
from myxtts.devices.machine import Machine
from myxtts.devices.plan import DevicePlan, DeviceUse, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.devices.runtime import read_execution
from myxtts.errors import UserError
from myxtts.files import open_scratch_folder
from myxtts.pipeline.codes import (
    CodeMaker,
    FilledCodes,
    choose_cache_folder,
    describe_key,
    explain_unused_codes,
    fill_codes,
    load_codec,
    make_code_key,
)
from myxtts.pipeline.recipe import ClipPart, Target, choose_preparation
from myxtts.training.model import apply_devices
from myxtts.training.starting_point import find_codec, open_start, read_codec
from myxtts.utils.commons import get_device_context


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


def plan_preparing_device(config: XTTSConfig, machine: Machine, command: Sequence[str] = ()) -> DevicePlan:
    """The one device that prepares what a run would prepare: `--data-gpu`, or the first GPU there is, or the CPU."""
    request = PlanRequest.from_config(config, command)
    alone = replace(
        request,
        mode="single",
        model_gpu=request.data_gpu,
        data_gpu=None,
        isolation=False,
        data_limit_mib=None,
        model_limit_mib=None,
        task=DeviceUse.PREPARE,
    )
    return plan_devices(alone, machine)


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
            raise CacheFolderError(
                f"Neither {root} nor the user's cache folder can be written to, so codes have no place where a run would look for them. "
                "Make one of them writable."
            )
        cache_folder = choose_cache_folder(data, root)
        with get_device_context(plan.data.device):
            codec = load_codec(found.folder)
            maker = CodeMaker(codec.dvae, found.mel_norms)
            key = make_code_key(codec.weights, found.mel_norms, plan.data.device, read_execution())
            unused = explain_unused_codes(cache_folder, key)
            with CodeCache(cache_folder, key) as maker.cache:
                filled = fill_codes(data, config.data, maker, part, progress)
    return PreparedCodes(
        filled=filled,
        clips=len(data.train) + len(data.validation),
        report=data.report,
        folder=cache_folder,
        corpus=data.train.root,
        depends_on=describe_key(key),
        unused=unused,
    )

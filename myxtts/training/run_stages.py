"""The stages of a run: which data, codec and starting point each is made of, and which comes first."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from myxtts.checkpoints.store import Checkpoint
from myxtts.config import XTTSConfig
from myxtts.config.presets import name_size
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.devices.plan import DevicePlan
from myxtts.models.gpt import GPT
from myxtts.models.names import count_parameters
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.preparation_settings import choose_augmentation
from myxtts.training.lengths import count_free_steps
from myxtts.training.listening import Spoken, speak_at_end
from myxtts.training.mode import ModeChoice
from myxtts.training.model import (
    TrainedModel,
    build_codec_step,
    build_decoder_step,
    build_gpt_step,
    describe_decoder,
    measure_mel_norms,
)
from myxtts.training.run_folder import FollowerFolder, RunFolder
from myxtts.training.stage_run import StageRequest, StageResult, describe_data
from myxtts.training.starting_point import (
    Codec,
    StartingPoint,
    adopt_lengths,
    find_codec,
    fit_model_config,
    keep_starting_point,
    read_codec,
    read_starting_point,
    require_grown_vocabulary,
    require_same_codec,
    require_same_vocabulary,
)
from myxtts.training.stopping import StopNow, StopRequests
from myxtts.training.workers import Team, describe_codec
from myxtts.utils.commons import get_device_context

_log = logging.getLogger(__name__)

AnyRun = RunFolder | FollowerFolder
DROP_REPORT_NAME = "drop_report.json"


class RunStages:
    """Puts the stages of a run together and lets them train, one after the other.

    Args:
        config: what was asked for.
        plan: which device does which job; it is in force.
        team: all who train.
        ledger: where the time until the first stage is booked.
        choice: how the plan was chosen, where `--mode auto` did it.
        model: a GPT to train instead of a fresh one.
        run_stage: trains a stage.
    """

    def __init__(
        self,
        config: XTTSConfig,
        plan: DevicePlan,
        *,
        team: Team,
        ledger: TimeLedger,
        choice: ModeChoice | None,
        model: GPT | None,
        run_stage: Callable[[StageRequest], StageResult],
    ):
        self._config = config
        self._plan = plan
        self._team = team
        self._choice = choice
        self._model = model
        self._run_stage = run_stage
        self.ledger = ledger
        """Of the stage that runs or comes next: each has its own."""
        self.spoken: Spoken | None = None
        """What the trained model said at the end; None where it did not."""

    def train(self, run: AnyRun, stop: StopRequests) -> StageResult:
        """Trains what the run is for. How the last stage that ran ended."""
        train = {"codec": self._train_codec_run, "gpt": self._train_gpt_run, "decoder": self._train_decoder_run}
        return train[run.stage](run, stop)

    def _train_codec_run(self, run: AnyRun, stop: StopRequests) -> StageResult:
        assert isinstance(run, RunFolder), "a cluster trains no codec"
        data = self._collect_data(run, None)
        return self._train_codec(run, self._config, data, stop)

    def _train_gpt_run(self, run: AnyRun, stop: StopRequests) -> StageResult:
        training = self._config.training
        start = None
        if training.init_from:
            start = read_starting_point(Path(training.init_from), run.path, is_resumed=run.is_resumed)
        data = self._collect_data(run, start)
        found = find_codec(self._config, start)
        config = fit_model_config(self._config, start, None if found is None else found.config, data.text_tokens)
        if found is None:
            assert isinstance(run, RunFolder), "workers of a cluster are given a codec"
            trained = self._train_own_codec(run, config, data, stop)
            if isinstance(trained, StageResult):
                return trained
            found = trained
        codec = found
        if run.checkpoint is not None:
            require_same_codec(codec, run.checkpoint.path)
        _log.info("Model: %s.", _describe_model(config, start))
        return self._run_on_codes(
            run, config, data, codec, lambda steps: build_gpt_step(config, data, codec, start, self._model), stop
        )

    def _train_decoder_run(self, run: AnyRun, stop: StopRequests) -> StageResult:
        training = self._config.training
        start = keep_starting_point(
            Path(training.init_from or training.checkpoint_dir), run.path, is_resumed=run.is_resumed
        )
        asked = adopt_lengths(self._config, start)
        data = self._collect_data(run, start, asked)
        require_same_vocabulary(start, data.text_tokens)
        codec = read_codec(Path(training.codec) if training.codec else start.folder)
        config = fit_model_config(asked, start, codec.config, data.text_tokens)
        if run.checkpoint is not None:
            require_same_codec(codec, run.checkpoint.path)
        if choose_augmentation(config.data) is not None:
            _log.warning("Augmentation is left out: a decoder must learn to sound like the recordings themselves.")
        _log.info("Decoder: %s.", describe_decoder(config, start))
        return self._run_on_codes(
            run, config, data, codec, lambda steps: build_decoder_step(config, data, codec, start), stop
        )

    def _run_on_codes(
        self,
        run: AnyRun,
        config: XTTSConfig,
        data: RunData,
        codec: Codec,
        build: Callable[[int], TrainedModel],
        stop: StopRequests,
    ) -> StageResult:
        """A stage that trains on a codec's codes, and speaks at its end."""
        request = StageRequest(
            run=run,
            config=config,
            plan=self._plan,
            data=data,
            mel_norms=codec.mel_norms,
            codec_folder=codec.folder,
            build=build,
            stop=stop,
            ledger=self.ledger,
            choice=self._choice,
            team=self._team,
        )
        self._team.require_equal("codec", describe_codec(codec), "Copy the chief's to every machine.")
        result = self._run(request)
        # Somebody who wants the process gone does not wait for a sentence.
        is_wanted = config.training.speak and self._team.is_chief
        if result.ending.is_finished and is_wanted and stop.signal is None:
            with self.ledger.spend(Cause.OTHER, "speaking"), suppress(StopNow):
                self.spoken = speak_at_end(run.path, data.train)
        # Nobody goes before the chief is done: whoever watches over workers starts only those again that failed.
        with stop.while_busy(), self.ledger.spend(Cause.OTHER_WORKERS, "waiting for all workers at the end"):
            self._team.sum_numbers("end", [])
        return result

    def _run(self, request: StageRequest) -> StageResult:
        try:
            return self._run_stage(request)
        finally:
            # Once more, with the clips that were replaced during training.
            request.data.report.write_json(request.run.path / DROP_REPORT_NAME)

    def _collect_data(self, run: AnyRun, start: StartingPoint | None, config: XTTSConfig | None = None) -> RunData:
        vocabulary = None if start is None else start.vocabulary
        with self.ledger.spend(Cause.START_UP, "scanning the corpus") as span:

            def note_progress(kind: str, done: int, total: int) -> None:
                span.item = done

            data = collect_run_data(
                config or self._config, folder=run.path, vocabulary=vocabulary, progress=note_progress
            )
        if start is not None:
            require_grown_vocabulary(start, data.tokenizer_path)
        data.report.write_json(run.path / DROP_REPORT_NAME)
        _log.info("Data: %s", describe_data(data, has_fixed_shapes=self._config.data.pad_to_fixed_length))
        self._team.require_equal(
            "clips",
            asdict(data.fingerprint),
            "Every worker must see the same corpus: copy it, or put it on shared storage.",
        )
        return data

    def _train_own_codec(
        self, run: RunFolder, config: XTTSConfig, data: RunData, stop: StopRequests
    ) -> Codec | StageResult:
        """The codec of a run that was given none: trained now, unless an earlier start of the run has done it."""
        with run.open_codec() as codec_run:
            if not codec_run.is_finished:
                _log.info("No codec was given: one is trained first, in %s.", codec_run.path)
                result = self._train_codec(codec_run, config, data, stop)
                if not result.ending.is_finished:
                    return result
                stop.check()
                self.ledger = TimeLedger()
            return read_codec(codec_run.path)

    def _train_codec(self, run: RunFolder, config: XTTSConfig, data: RunData, stop: StopRequests) -> StageResult:
        mel_norms = self._find_mel_norms(run, data)
        return self._run(
            StageRequest(
                run=run,
                config=config,
                plan=self._plan,
                data=data,
                mel_norms=mel_norms,
                codec_folder=None,
                build=lambda steps: build_codec_step(
                    config, mel_norms, steps=steps, free_steps=count_free_steps(run.list_lengths(steps))
                ),
                stop=stop,
                ledger=self.ledger,
                # The codec that a GPT run trains first is not what was measured.
                choice=self._choice if self._config.training.stage == "codec" else None,
            )
        )

    def _find_mel_norms(self, run: RunFolder, data: RunData) -> Any:
        checkpoint: Checkpoint | None = run.checkpoint
        if checkpoint is not None:
            return read_codec(checkpoint.path).mel_norms
        # On the host: once, before anything trains.
        with self.ledger.spend(Cause.START_UP, "measuring the mel statistics"), get_device_context("/CPU:0"):
            return measure_mel_norms(data.train, self._config.training.seed)


def _describe_model(config: XTTSConfig, start: StartingPoint | None) -> str:
    counts = count_parameters(config.model)
    parts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in counts.items() if name in ("gpt", "dvae"))
    origin = "from scratch" if start is None else f"fine-tuned from {shlex.quote(str(start.folder))}"
    own_size = f"a size of its own, {config.model.gpt_layers} layers of width {config.model.gpt_width}"
    return f"{name_size(config.model.model_dump()) or own_size} ({parts} parameters), {origin}"

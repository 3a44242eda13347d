"""What a producer process is given to do."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from myxtts.pipeline.errors import TaskError
from myxtts.pipeline.ring import Arrays

ReportStage = Callable[[str], None]
"""Says what is being done now. It stands in the report when the producer dies, and proves that it is not hanging.

Costs next to nothing, so it may be called for every step of the work.
"""


class ProducerTask(Protocol):
    """Prepares batches by their position in the run.

    A position's batch must be a pure function of the settings, the position and which batches were replaced: a position
    that was prepared by a producer that died is prepared again by the next one.
    """

    def warm_up(self) -> None:
        """Does what takes long the first time. Memory limits hold from here on."""

    def prepare(self, position: int) -> Arrays:
        """The batch at a position.

        Its arrays must not change any more: they are packed while the next batch is being prepared.
        """

    def replace_batch(self, position: int) -> list[str]:
        """Prepares a position with other clips from now on, and returns the names of those it had.

        Called again for the same position, it replaces the replacements.
        """


def load_factory(name: str) -> Callable[[Mapping[str, Any], ReportStage], ProducerTask]:
    """The function that makes a task, from `package.module:function`."""
    module, separator, function = name.partition(":")
    if not separator:
        raise TaskError(f"A task is named package.module:function; this is {name!r}.")
    factory: Callable[[Mapping[str, Any], ReportStage], ProducerTask] = getattr(
        importlib.import_module(module), function
    )
    return factory

"""The two servers of a tf.data service: the dispatcher, which knows who does what, and workers, which read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from myxtts.config.address import Address
from myxtts.data.errors import ServiceAddressError
from myxtts.data.service.address import OwnAddress
from myxtts.devices.port_fence import fence_port

HEARTBEAT_SECONDS = 1.0
WORKER_TIMEOUT_SECONDS = 10.0
"""Without a heartbeat for so long, a worker counts as gone, and what it was reading is read by others."""
_JOB_KEPT_SECONDS = 60.0
"""How long the dispatcher remembers a job that nobody takes from: that of a trainer that was killed."""


def start_dispatcher(own: OwnAddress) -> Any:
    """A dispatcher that runs until it is deleted."""
    service = tf.data.experimental.service
    config = service.DispatcherConfig(
        port=own.port,
        worker_timeout_ms=round(WORKER_TIMEOUT_SECONDS * 1000),
        job_gc_check_interval_ms=round(_JOB_KEPT_SECONDS * 500),
        job_gc_timeout_ms=round(_JOB_KEPT_SECONDS * 1000),
    )
    return _start(lambda: service.DispatchServer(config), own)


def start_worker(dispatcher: Address, own: OwnAddress, public_name: str, *, wait_s: float) -> Any:
    """A worker that runs until it is deleted. Waits for the dispatcher, which must be there: without one, for ever.

    Args:
        public_name: under which dispatcher and trainers find this machine.
        wait_s: how long the dispatcher may be away later on while work is under way.
    """
    service = tf.data.experimental.service
    config = service.WorkerConfig(
        dispatcher_address=str(dispatcher),
        worker_address=f"{public_name}:{own.port}",
        port=own.port,
        heartbeat_interval_ms=round(HEARTBEAT_SECONDS * 1000),
        dispatcher_timeout_ms=max(1, round(wait_s * 1000)),
    )
    return _start(lambda: service.WorkerServer(config), own)


def _start(make_server: Callable[[], Any], own: OwnAddress) -> Any:
    try:
        server = make_server()
    except (tf.errors.OpError, RuntimeError) as error:
        raise ServiceAddressError(f"TensorFlow could not start a server at port {own.port}: {error}") from error
    if not own.number.is_unspecified and not fence_port(own.port, own.number):
        raise ServiceAddressError(
            f"TensorFlow's server at port {own.port} must answer at {own.number} only, but its sockets were not found, so it would "
            "answer at every address. This machine cannot keep it to itself: give --host 0.0.0.0 where a firewall does."
        )
    return server

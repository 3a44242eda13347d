"""Joins a Ray cluster, or starts one that nobody outside this machine can reach. The only caller of `ray.init`.

Whoever talks to Ray runs programs as its user. So a cluster that has an address must ask everybody for its token, and one that is
started here listens on loopback and has a token of its own, which is in no file. Ray sends no statistics home.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from myxtts.errors import ClusterError, HeadLostError
from myxtts.files import open_scratch_folder

LOCAL = "local"
"""The address of a cluster that is started on this machine and ends with the run."""
LOOPBACK = "127.0.0.1"
HEAD_LOST_S = 15.0
"""Without an answer from the head, before a run ends."""

_ALWAYS = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
_TOKEN, _TOKEN_PATH, _VISIBLE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "CUDA_VISIBLE_DEVICES"
# Ray has no other name for it: clusters of several machines off, which keeps it on loopback. Read when Ray is imported.
_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Workers are nice by 15 otherwise, and whatever else runs on the machine starves the training.
_SYSTEM = {"worker_niceness": 0}
_ANSWER_S, _LOOK_S = 10.0, 3.0


@contextmanager
def join_cluster(address: str, *, cpus: int | None = None, visible_gpus: str | None = None) -> Iterator[Any]:
    """Connects this process to a cluster until the block ends, and gives the module `ray`.

    Args:
        address: `local`, or host:port of a head that asks for a token. Ray must run on this machine too, as a node of that cluster.
        cpus: of `local`: how many actors that want a processor there may be; by default as many as this machine has.
        visible_gpus: of `local`: the cards that actors may have, as in `CUDA_VISIBLE_DEVICES`; by default all that this process sees.
    """
    set_environment(address, os.environ)
    ray = _import_ray(is_local=address == LOCAL)
    with ExitStack() as opened:
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
        if address == LOCAL:
            folder = str(opened.enter_context(open_scratch_folder("ray")))
            options |= {"num_cpus": cpus, "include_dashboard": False, "_system_config": _SYSTEM}
            options |= {"_node_ip_address": LOOPBACK, "_temp_dir": folder}
        else:
            require_token_at(address)
        opened.callback(ray.shutdown)
        try:
            with _keeping_own(visible_gpus):
                info = ray.init(**options).address_info
        except Exception as error:
            # Ray has no one error for it: ConnectionError, RuntimeError, ValueError and errors of its own.
            advice = f"Unless that is {LOCAL}, Ray must run here too, with the head's token: `ray start --address={address}`."
            raise ClusterError(f"This machine cannot join the cluster at {address}: {error}\n{advice}") from error
        assert address != LOCAL or info["node_ip_address"] == LOOPBACK, info
        yield ray


def set_environment(address: str, environ: MutableMapping[str, str]) -> None:
    """Sets what Ray reads from the environment when it is imported, here and in every process it starts."""
    environ.update(_ALWAYS)
    if address == LOCAL:
        environ.update(_LOOPBACK_ONLY)
        # Only this user's processes can read it there. One for the whole life of the process: Ray keeps the first one it sees.
        environ.setdefault(_TOKEN, secrets.token_hex(32))
    elif not environ.get(_TOKEN):
        _check_token_file(Path(environ.get(_TOKEN_PATH) or Path.home() / ".ray" / "auth_token"))


def _check_token_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise ClusterError(
            f"A cluster with an address needs its token, but {path} cannot be read ({error.strerror}). Copy the head's token file there, "
            f"or name another one by {_TOKEN_PATH}, and `chmod 600` it. A new token: "
            "(umask 077; mkdir -p ~/.ray; openssl rand -hex 32 > ~/.ray/auth_token), before Ray is started with RAY_AUTH_MODE=token."
        ) from None
    if mode & 0o077:
        raise ClusterError(
            f"Other users can read the token of the cluster: {path} has mode {mode:04o}. Who has it can run programs as you. Make a new "
            f"token if they may have read it, and `chmod 600 {path}`."
        )


def require_token_at(address: str) -> None:
    """Raises `ClusterError` unless there is a cluster at an address which turns away who has no token."""
    # TensorFlow needs it too; not above, as `myxtts --help` does not.
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")(b"", timeout=_ANSWER_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return
            raise ClusterError(
                f"No Ray cluster answers at {address} ({error.code().name.lower().replace('_', ' ')}). Start its head with `ray start "
                "--head --port=6379` and give --cluster the address it prints, or --cluster local for this machine alone."
            ) from None
    raise ClusterError(
        f"The cluster at {address} lets everybody in who can reach it, and whoever is in runs programs as you. Stop it, and start every "
        "node of it with RAY_AUTH_MODE=token and the same token file."
    )


class HeadWatch:
    """Looks now and then whether the head is there: without it Ray ends this process a minute later, without a word."""

    def __init__(self, ray: Any):
        self._ray, self._is_lost = ray, False
        self.address: str = ray.get_runtime_context().gcs_address
        self._looked_s = self._seen_s = time.monotonic()

    def look(self) -> None:
        """Raises `HeadLostError` where the head has not answered for too long. Cheap: most calls do nothing."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        host, _, port = self.address.rpartition(":")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_S).close()
            self._seen_s = time.monotonic()
        self._looked_s = time.monotonic()
        self._is_lost = self._looked_s - self._seen_s > HEAD_LOST_S
        if self._is_lost:
            raise HeadLostError(
                f"The head of the cluster at {self.address} has not answered for {HEAD_LOST_S:.0f} s. Start the cluster again, then the "
                "run: it goes on from its last checkpoint."
            )

    def end_process(self) -> None:
        """Ends this process once the head is lost, for a thread of an actor: behind a cable that was cut Ray waits for many minutes."""
        with suppress(HeadLostError):
            while True:
                time.sleep(_LOOK_S)
                self.look()
        os._exit(os.EX_UNAVAILABLE)

    def end(self, actors: Iterable[Any]) -> None:
        """Ends actors at once. Without a head they end by themselves; to ask for it would take as long as Ray waits for a head."""
        for actor in () if self._is_lost else actors:
            self._ray.kill(actor)


@contextmanager
def _keeping_own(visible_gpus: str | None) -> Iterator[None]:
    """A block in which processes that are started see these cards. What it does to this process is undone."""
    # Ray puts its own handler in the place of that which ends a run politely.
    before, handler = os.environ.get(_VISIBLE), signal.getsignal(signal.SIGTERM)
    os.environ |= {} if visible_gpus is None else {_VISIBLE: visible_gpus}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        os.environ.pop(_VISIBLE, None)
        os.environ |= {} if before is None else {_VISIBLE: before}


def _import_ray(*, is_local: bool) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            f"--cluster needs Ray ({error}): pip install -c constraints.txt '.[cluster]' in the source folder of MyXTTS."
        ) from None
    from ray._private import ray_constants

    if is_local and ray_constants.ENABLE_RAY_CLUSTER:
        raise ClusterError(
            "Ray was imported before MyXTTS could keep it from listening on every network. Import it later, or start this program "
            "with RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0."
        )
    return ray

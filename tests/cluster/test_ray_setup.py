"""Who may reach a Ray cluster that a run starts or joins."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from myxtts.cluster import ray_setup
from myxtts.cluster.ray_setup import LOCAL, LOOPBACK, HeadWatch, require_token_at, set_environment
from myxtts.errors import ClusterError, HeadLostError
from tests.support.clocks import ManualClock
from tests.support.processes import ROOT, clean_environ, run_code


def test_a_local_cluster_has_a_token_and_tells_nobody() -> None:
    environ = {"RAY_AUTH_MODE": "disabled"}
    set_environment(LOCAL, environ)
    assert environ["RAY_AUTH_MODE"] == "token"
    assert environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert len(environ["RAY_AUTH_TOKEN"]) == 64
    again = dict(environ)
    set_environment(LOCAL, again)
    assert again == environ, "Ray keeps the first token it saw, so the process does too"


LOCAL_CLUSTER = """
import os, sys
from pathlib import Path
import psutil
from myxtts.cluster.ray_setup import join_cluster

def is_open(path):
    "Whether others can read a file: every folder on the way lets them pass."
    inside = [each for each in path.parents if home in each.parents]
    return path.stat().st_mode & 0o044 and all(each.stat().st_mode & 0o011 for each in inside)

home = Path(sys.argv[1])
with join_cluster("local", cpus=1) as ray:
    assert ray.get(ray.remote(lambda: 5).remote()) == 5
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [each for process in family for each in process.net_connections(kind="inet") if each.status == "LISTEN"]
    token = os.environ["RAY_AUTH_TOKEN"].encode()
    files = [path for path in home.rglob("*") if path.is_file()]
    holding = [str(path) for path in files if token in path.read_bytes() and is_open(path)]
    report({"listening": sorted({each.laddr.ip for each in found}), "files": len(files), "holding": holding})
"""


def test_a_local_cluster_listens_on_loopback_and_leaves_its_token_to_nobody() -> None:
    # A short path: Ray's sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="mx", dir="/tmp") as home:
        os.chmod(home, 0o755)
        told = run_code(
            f"import sys; sys.argv = ['', {home!r}]\n{LOCAL_CLUSTER}", {**clean_environ(), "HOME": home, "TMPDIR": home}
        )
    assert told["listening"]
    assert set(told["listening"]) <= {LOOPBACK, f"::ffff:{LOOPBACK}", "::1"}
    assert told["files"] > 10, "Ray keeps its logs there"
    assert told["holding"] == []


def test_an_address_needs_a_token_that_nobody_else_can_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    environ = {"RAY_AUTH_TOKEN_PATH": str(path)}
    with pytest.raises(ClusterError, match=r"needs its token.*chmod 600"):
        set_environment("10.0.0.1:6379", environ)
    path.write_text("0" * 64)
    path.chmod(0o640)
    with pytest.raises(ClusterError, match=r"mode 0640.*chmod 600"):
        set_environment("10.0.0.1:6379", environ)
    path.chmod(0o600)
    set_environment("10.0.0.1:6379", environ)
    assert environ["RAY_AUTH_MODE"] == "token"
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in environ


def test_an_address_where_nothing_answers_is_named() -> None:
    with pytest.raises(ClusterError, match=r"No Ray cluster answers at 127\.0\.0\.1:9 .*--cluster local"):
        require_token_at("127.0.0.1:9")


def test_a_head_that_is_gone_is_noticed_and_a_short_absence_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(ray_setup.time, "monotonic", clock)
    with socket.create_server((LOOPBACK, 0)) as server:
        context = SimpleNamespace(gcs_address=f"{LOOPBACK}:{server.getsockname()[1]}")
        killed: list[str] = []
        watch = HeadWatch(SimpleNamespace(get_runtime_context=lambda: context, kill=killed.append))
        clock.move(60.0)
        watch.look()
    watch.end(["another actor"])
    assert killed.pop() == "another actor"
    for _ in range(3):
        clock.move(4.0)
        watch.look()
    clock.move(4.0)
    with pytest.raises(HeadLostError, match=r"has not answered for 15 s.*goes on from its last checkpoint"):
        watch.look()
    watch.end(["an actor"])
    assert not killed, "Ray would wait for its head"


ACTOR = """
import sys, threading, time
from types import SimpleNamespace
from myxtts.cluster import ray_setup
ray_setup.HEAD_LOST_S, ray_setup._LOOK_S = 0.5, 0.1
context = SimpleNamespace(gcs_address=sys.argv[1])
watch = ray_setup.HeadWatch(SimpleNamespace(get_runtime_context=lambda: context))
threading.Thread(target=watch.end_process, daemon=True).start()
print("begun", flush=True)
time.sleep(600)
"""


def test_an_actor_ends_with_its_head() -> None:
    with socket.create_server((LOOPBACK, 0)) as head:
        words = [sys.executable, "-c", ACTOR, f"{LOOPBACK}:{head.getsockname()[1]}"]
        actor = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
        with actor:
            assert actor.stdout is not None
            assert actor.stdout.readline() == "begun\n"
            with pytest.raises(subprocess.TimeoutExpired):
                actor.wait(1.5)
            head.close()
            assert actor.wait(60) == os.EX_UNAVAILABLE

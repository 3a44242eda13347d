"""A network that nobody else can reach. In processes of their own: it cannot be left again."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

CODE = """
import ctypes, encodings.idna, fcntl, os, socket, struct, sys
from myxtts.errors import ClusterError
from myxtts.cluster.launch import enter_private_network
if len(sys.argv) > 1:
    os.setgid(65534)
    os.setuid(65534)
    # A process that changes its user may not write its own maps: one that is started by that user may.
    ctypes.CDLL(None).prctl(4, 1)
user = os.getuid()
try:
    enter_private_network()
except ClusterError as error:
    print("refused", error); sys.exit(0)
assert os.getuid() == user
names = [name for _, name in socket.if_nameindex()]
with socket.create_server(("0.0.0.0", 0)) as listener:
    with socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5):
        pass
try:
    socket.create_connection(("192.0.2.1", 9), timeout=2)
    way_out = "open"
except OSError as error:
    way_out = error.strerror
# Some kernels put tunnels into every network. They lead nowhere while they are down.
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    flags = [struct.unpack_from("H", fcntl.ioctl(end, 0x8913, struct.pack("16s24x", name.encode())), 16)[0] for name in names]
print("inside", *(name for name, flag in zip(names, flags) if flag & 1), way_out)
"""


@pytest.mark.parametrize("more", [[], ["without rights"]], ids=["as I am", "without rights"])
def test_there_is_loopback_and_nothing_else(more):
    if more and os.getuid() != 0:
        pytest.skip("only root can become somebody without rights")
    command = [sys.executable, "-c", CODE, *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    if "refused" in done.stdout:
        assert "add --open-ports" in done.stdout
        pytest.skip(f"this kernel gives no process a network of its own: {done.stdout}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "inside lo Network is unreachable"

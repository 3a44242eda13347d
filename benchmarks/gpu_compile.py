"""Compiles StableHLO for a GPU that is not there and prints what it found as JSON: gpu_compile.py STEP.mlir 3090|4090

Runs in the environment that `make gpu-proof` makes: jax and its CUDA plugin, no driver, no card. It measures no time on a card, and
jax's XLA is newer than TensorFlow's. Products are left to cuBLAS, since choosing between kernels needs a card to try them on.
"""

from __future__ import annotations

import collections
import json
import math
import os
import re
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

CARDS = {
    # Cores, bytes per second, L2 bytes, GHz, minor compute capability (the major one is 8): the makers' figures.
    "3090": (82, 936_096_000_000, 6_291_456, 1.695, 6),
    "4090": (128, 1_008_096_000_000, 75_497_472, 2.52, 9),
}
BOTH_ALIKE = """
threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 102400
threads_per_core_limit: 1536 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
device_memory_size: 25438126080 shared_memory_per_block_optin: 101376 registers_per_core_limit: 65536
registers_per_block_limit: 65536 dnn_version: "9.3.0" thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
"""
HOLDERS = {"kCommandBuffer", "kConditional", "kWhile", "kSequential"}
"""What the compiler lists that launches nothing itself."""


def main(path: str, card: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        set_flags(folder)
        began = time.time()
        memory = compile_text(Path(path).read_text(encoding="utf-8"), describe_card(card))
        seconds = round(time.time() - began)
        # The list after the pass that makes CUDA graphs stands behind the first one, where there are any.
        figures = {"seconds": seconds, **count_launches(max(Path(folder).glob("*.thunk_sequence*.txt")))}
    sizes = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("temp", "argument", "output", "alias")}
    print(json.dumps(figures | sizes))


def set_flags(folder: str) -> None:
    nvcc = os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "cuda_nvcc")
    os.environ["PATH"] = f"{nvcc}/bin:{os.environ['PATH']}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        f"--xla_gpu_cuda_data_dir={nvcc} --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_dump_to={folder}"
    )


def describe_card(card: str) -> str:
    """The card in the form that XLA's compiler reads."""
    cores, bandwidth, cache, clock, minor = CARDS[card]
    own = f"core_count: {cores} memory_bandwidth: {bandwidth} l2_cache_size: {cache} clock_rate_ghz: {clock}"
    capability = f"cuda_compute_capability {{ major: 8 minor: {minor} }}"
    name = f'platform_name: "CUDA" device_description_str: "NVIDIA GeForce RTX {card}"'
    return f"gpu_device_info {{ {BOTH_ALIKE} {own} {capability} }} {name}"


def compile_text(text: str, card: str):
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    device = topologies.get_topology_desc(platform="cuda", target_config=card, topology="1x1x1").devices[0]
    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        # jax knows no copies: what TensorFlow copies for a variable is copied by the compiler where it has to be.
        plain = re.sub(
            r"mhlo\.copy (%\w+) : (tensor<[^>]*>)", r"stablehlo.reshape \1 : (\2) -> \2", widen_booleans(text)
        )
        module = ir.Module.parse(plain)
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        return device.client.compile(module, xla_client.DeviceList((device,)), options).get_compiled_memory_stats()


def widen_booleans(text: str) -> str:
    """TensorFlow writes constants of booleans as bits, jax reads them as bytes."""

    def widen(match: re.Match[str]) -> str:
        raw, count = bytes.fromhex(match[1]), math.prod(int(size) for size in match[2].split("x")[:-1])
        if len(raw) == count:
            return match[0]
        wide = bytes((raw[place >> 3] >> (place & 7)) & 1 for place in range(count))
        return f'dense<"0x{wide.hex().upper()}"> : tensor<{match[2]}>'

    return re.sub(r'dense<"0x([0-9A-Fa-f]+)"> : tensor<([0-9x]*i1)>', widen, text)


def count_launches(listing: Path) -> dict[str, object]:
    """Launches of all kinds, those inside CUDA graphs among them, from the compiler's own list."""
    kinds: collections.Counter[str] = collections.Counter()
    holders: list[tuple[int, str]] = []
    in_graphs = 0
    for line in listing.read_text(encoding="utf-8").splitlines():
        found = re.match(r"( *)\d+: (k\w+)", line)
        if found is None:
            continue
        depth, kind = len(found[1]), found[2]
        holders = [holder for holder in holders if holder[0] < depth]
        if kind in HOLDERS:
            holders.append((depth, kind))
        else:
            kinds[kind] += 1
            in_graphs += any(holder == "kCommandBuffer" for _, holder in holders)
    return {"launches": kinds.total(), "in_graphs": in_graphs, "kinds": dict(kinds)}


if __name__ == "__main__":
    main(*sys.argv[1:])

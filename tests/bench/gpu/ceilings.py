"""Measure what this machine reaches at best: arithmetic, both memories, transfers, disk."""

import os
import tempfile
import time
from pathlib import Path

import torch

from tests.bench.gpu.report import Report
from tests.bench.gpu.shapes import Shape, seconds_of, threads, typical

MATMUL = "matrix product, bfloat16"
TO_HOST = "device to pinned memory"
SCATTER = "pinned memory into a block, one thread"
SCATTER_BY_ALL = "pinned memory into a block, all threads"
DISK = "disk, plain writes with fsync"
NEURONS = 4096  # of the block; its prompts follow from its size
AT_MOST = 8.0  # seconds of writes to the disk


def ceilings(report: Report, shape: Shape, device: str) -> None:
    """Measure each ceiling by itself."""
    report.attempt(MATMUL, lambda: _matmul(report, shape.matrix, device))
    report.attempt("copy on the device", lambda: _copy(report, shape.copied << 20, device))
    report.attempt(TO_HOST, lambda: _to_host(report, shape.copied << 18, device))
    report.attempt("host copies", lambda: _scatter(report, shape.copied << 17, device))
    report.attempt(DISK, lambda: _disk(report, shape.written))


def _matmul(report: Report, side: int, device: str) -> None:
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = typical(device, lambda: a @ b, rounds=20, warm=5)
    report.figure(MATMUL, 2 * side**3 / seconds / 1e12, "TFLOP/s")


def _copy(report: Report, size: int, device: str) -> None:
    a = torch.randint(0, 127, (size,), dtype=torch.int8, device=device)
    b = torch.empty_like(a)
    seconds = typical(device, lambda: b.copy_(a), rounds=10)
    report.figure("copy on the device, read and written", 2 * size / seconds / 1e12, "TB/s")


def _to_host(report: Report, size: int, device: str) -> None:
    a = torch.randint(0, 127, (size,), dtype=torch.int8, device=device)
    pinned = torch.empty(size, dtype=torch.int8, pin_memory=device == "cuda")
    seconds = typical(device, lambda: pinned.copy_(a, non_blocking=True))
    report.figure(TO_HOST, size / seconds / 1e9, "GB/s")


def _scatter(report: Report, size: int, device: str) -> None:
    """Copy one layer's activations into half of the columns of a larger array.

    Passes that are not whole blocks do that. Measured are memory that is touched for the first
    time, and the same memory again.
    """
    prompts = size // 2 // NEURONS
    random = torch.randint(0, 1000, (NEURONS, prompts), dtype=torch.int16)
    layer = random.pin_memory() if device == "cuda" else random

    def rate(block: torch.Tensor) -> float:
        seconds = seconds_of("cpu", lambda: block[:, :prompts].copy_(layer))
        return layer.nbytes / seconds / 1e9

    with threads(1):
        block = torch.empty(NEURONS, 2 * prompts, dtype=torch.int16)
        report.figure("pinned memory into a fresh block, one thread", rate(block), "GB/s")
        report.figure(SCATTER, rate(block), "GB/s")
    cores = len(os.sched_getaffinity(0))
    with threads(cores):
        report.figure(SCATTER_BY_ALL, rate(block), "GB/s", threads=cores)


def _disk(report: Report, mib: int) -> None:
    piece, written = os.urandom(1 << 20) * 16, 0
    with tempfile.TemporaryDirectory(dir=".") as folder, open(Path(folder) / "file", "wb") as file:
        start = time.perf_counter()
        while written < mib << 20 and time.perf_counter() - start < AT_MOST:
            written += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - start
    report.figure(DISK, written / seconds / 1e9, "GB/s")

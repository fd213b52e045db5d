"""Measure how fast one core of this machine runs a model, or estimate it from matrix products."""

from dataclasses import dataclass
from functools import cache

import torch

from stages.lib.model.architecture import Architecture
from stages.lib.model.checkpoint import Checkpoint
from stages.store.kernels import KernelTimes
from stages.store.timing import repeated

BRIEFLY, LONG = 0.2, 3.0  # seconds of CPU time of a measurement
# Turns of a loop in Python, and its seconds on the machine of 2026-11-28.
LOOP, LOOP_SECONDS = 100_000, 2.4e-3
ROWS, TOKENS = 250, 2  # prompts of a measured pass, and tokens of each, as in a dump
# Rate of forward passes of 500 tokens, relative to that of large matrix products: a model of 1
# million parameters in float64 0.34 (AVX-512), Qwen2.5-0.5B in float32 0.85 (AVX-512), and 0.65 in
# two processes at once to 0.9 in one (AMD with AVX2).
REACHED = {"float64": 0.35, "float32": 0.8, "float16": 0.7, "bfloat16": 0.7}
READ = (
    300 << 20
)  # bytes of weights that a worker reads, compares with digests and converts per second
CHECKED = 250  # tokens that go through the model while it is compared with plain forward passes


@dataclass(frozen=True)
class Rates:
    """Seconds that one core takes.

    token: for one token to pass all layers; answer: for the logits at one position; start: until
    a worker has loaded and checked the model; measured: whether on this model; products: otherwise
    the multiplications per second of a matrix product on this machine, from which the others are
    assumed; slowness: the time of a loop in Python, relative to the machine of 2026-11-28;
    kernels: the times of a neuron's map, None if no chapter after the store uses them.
    """

    token: float
    answer: float
    start: float
    measured: bool
    products: float = 0.0
    slowness: float = 1.0
    kernels: KernelTimes | None = None

    @property
    def source(self) -> str:
        """Where the rates are from, as `bag check` prints it."""
        if self.measured:
            speed = f"a core takes {1 / self.token:,.0f} tokens a second"
            return f"forward passes are measured on this model: {speed}"
        speed = f"{2 * self.products / 1e9:,.0f} GFLOP/s of a core, measured now"
        why = f"assumed from the speed of this machine's matrix products ({speed})"
        return f"forward passes are {why}; --measure runs a model whose folder has weights"


def layer_products(a: Architecture) -> int:
    """Return the number of multiplications of one layer at one position."""
    return 3 * a.neurons * a.width + 4 * a.heads * a.head_width * a.width


def assumed(a: Architecture, dtype: str, size: float) -> Rates:
    """Return rates from matrix products alone. size: bytes of the weights in memory."""
    products = _products("float64" if dtype == "float64" else "float32")
    speed = REACHED[dtype] * products
    token = len(a.layers) * layer_products(a) / speed
    answer = a.vocabulary * a.width / speed
    start = size / READ + CHECKED * token
    return Rates(token, answer, start, measured=False, products=products, slowness=slowness())


@torch.no_grad()
def measured(loaded: Checkpoint, seconds: float, start: float) -> Rates:
    """Return rates from running random tokens. start: seconds that loading the model took."""
    vocabulary = loaded.architecture.vocabulary
    tokens = torch.randint(vocabulary, (ROWS, TOKENS), device=loaded.model.device)

    def layers() -> torch.Tensor:
        return loaded.model.base_model(input_ids=tokens, use_cache=False)[0]

    hidden = layers()[:, -1].contiguous()  # which also warms up
    token = repeated(layers, seconds * 0.75) / tokens.numel()
    answer = repeated(lambda: loaded.architecture.unembedding(hidden).logsumexp(-1), seconds / 4)
    return Rates(token, answer / ROWS, start, measured=True, slowness=slowness())


@cache
def _products(dtype: str) -> float:
    """Return how many multiplications per second one core does in a large matrix product."""
    matrix, threads = torch.ones(512, 512, dtype=getattr(torch, dtype)), torch.get_num_threads()
    # Beside other work, several threads wait for each other, and waiting counts as CPU time.
    torch.set_num_threads(1)
    try:
        return len(matrix) ** 3 / repeated(lambda: matrix @ matrix, BRIEFLY)
    finally:
        torch.set_num_threads(threads)


@cache
def slowness() -> float:
    """Return how much longer this machine takes for a loop in Python than that of 2026-11-28."""
    return repeated(_loop, BRIEFLY / 2) / LOOP_SECONDS


def _loop() -> int:
    total = 0
    for number in range(LOOP):
        total += number % 7
    return total

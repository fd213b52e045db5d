"""How fast this machine computes."""

from collections.abc import Callable, Iterator

import pytest
import torch

from stages.store import rates
from stages.store.timing import repeated


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads for torch, and no speed that was measured before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    rates._products.cache_clear()
    yield
    torch.set_num_threads(threads)
    rates._products.cache_clear()


@pytest.mark.usefixtures("two_threads")
def test_matrix_products_are_measured_on_one_thread(monkeypatch: pytest.MonkeyPatch):
    used = []

    def recorded(run: Callable[[], object], seconds: float) -> float:
        used.append(torch.get_num_threads())
        return repeated(run, seconds)

    monkeypatch.setattr(rates, "repeated", recorded)
    assert rates._products("float32") > 0
    assert used == [1]
    assert torch.get_num_threads() == 2

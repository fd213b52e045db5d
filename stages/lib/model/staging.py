"""Copy tensors from a GPU into this machine's memory without pausing the computation.

Each tensor goes through pinned memory, to which a GPU copies by itself. A thread waits for that
copy and copies the tensor to its target, while the caller goes on to start work on the GPU.
Tensors on a CPU are copied at once.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

UNDER_WAY = 8  # copies at a time: four for each of two layers


class Staging:
    """Copies from GPUs. All targets are complete after `finish`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)  # one, so that sums are added in their order
        self._under_way: deque[Future[torch.Tensor]] = deque()
        self._free: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}
        self._streams: dict[torch.device, Any] = {}

    def put(self, target: torch.Tensor, x: torch.Tensor, add: bool = False) -> None:
        """Copy x into a tensor of the same shape in this machine's memory, or add x to it."""
        if x.device.type == "cpu":
            _put(target, x, add)
            return
        if len(self._under_way) == UNDER_WAY:
            self._wait_for_first()
        free = self._free.get((x.shape, x.dtype))
        pinned = free.pop() if free else torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        copied = self._copy(pinned, x)
        self._under_way.append(self._thread.submit(_store, copied, target, pinned, add))

    def _copy(self, pinned: torch.Tensor, x: torch.Tensor) -> Any:
        """Start a copy that runs beside the GPU's computation; return the event of its end."""
        if x.device not in self._streams:
            self._streams[x.device] = torch.cuda.Stream(x.device)
        stream = self._streams[x.device]
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            pinned.copy_(x, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(stream)
        x.record_stream(stream)  # keeps x's memory until the copy has ended
        return copied

    def finish(self) -> None:
        """Wait for the end of all copies."""
        while self._under_way:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        pinned = self._under_way.popleft().result()
        self._free.setdefault((pinned.shape, pinned.dtype), []).append(pinned)


def _store(copied: Any, target: torch.Tensor, pinned: torch.Tensor, add: bool) -> torch.Tensor:
    """Store pinned memory in its target once the event `copied` has come; return the memory."""
    copied.synchronize()
    _put(target, pinned, add)
    return pinned


def _put(target: torch.Tensor, x: torch.Tensor, add: bool) -> None:
    if add:
        target.add_(x)
    else:
        target.copy_(x)

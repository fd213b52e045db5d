"""Which unit of work a worker does next."""

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

DEATHS = 3  # of workers at one unit, from which on it is to blame


@dataclass(frozen=True)
class Unit:
    """A piece of work that is done, and where a worker is killed lost, as a whole.

    name: for messages; size: in what the progress bar counts; group: units of one group share something that a worker is slow to make.
    """

    name: str
    size: int = 1
    group: Hashable = None


class Queue:
    """Units that wait for a worker. A worker stays with its group; its next one is one that nobody is at, if there is any."""

    def __init__(self, units: Mapping[int, Unit]):
        self.units = units
        self._groups: dict[Hashable, deque[int]] = {}
        for number, unit in units.items():
            self._groups.setdefault(unit.group, deque()).append(number)
        self._at: dict[Hashable, Hashable] = {}  # worker -> its group
        self._deaths = Counter[int]()

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def next(self, worker: Hashable) -> int | None:
        """The number of this worker's next unit; None where none is left."""
        if not self._groups:
            return None
        if (group := self._at.get(worker)) not in self._groups:
            taken = {at for other, at in self._at.items() if other != worker}
            free = (group for group in self._groups if group not in taken)
            group = (
                next(free, None)
                if len(taken & self._groups.keys()) < len(self._groups)
                else self._longest()
            )
        self._at[worker] = group
        waiting = self._groups[group]
        number = waiting.popleft()
        if not waiting:
            del self._groups[group]
        return number

    def back(self, worker: Hashable, number: int) -> None:
        """Takes back a unit from a worker that is there no more."""
        self._at.pop(worker, None)
        self._groups.setdefault(self.units[number].group, deque()).appendleft(number)

    def died(self, worker: Hashable, number: int) -> bool:
        """The same, where the worker died at it; False where that has happened too often."""
        self.back(worker, number)
        self._deaths[number] += 1
        return self._deaths[number] < DEATHS

    def _longest(self) -> Hashable:
        return max(self._groups, key=lambda group: len(self._groups[group]))

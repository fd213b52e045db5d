"""Decide which unit of work a worker does next."""

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

DEATHS = 3  # workers that die at one unit until the unit is to blame


@dataclass(frozen=True)
class Unit:
    """A piece of work that one worker does as a whole, and that is lost if the worker is killed.

    name: for messages; size: in what the progress bar counts; group: units of one group share
    something that takes a worker long to make.
    """

    name: str
    size: int = 1
    group: Hashable = None


class Queue:
    """Units that wait for a worker.

    A worker stays with its group. After that it takes a group that no other worker is at, if there
    is any, or else the longest.
    """

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
        """Return the number of this worker's next unit, None if none is left."""
        if not self._groups:
            return None
        group = self._at.get(worker)
        if group not in self._groups:
            group = self._new_group(worker)
        self._at[worker] = group
        waiting = self._groups[group]
        number = waiting.popleft()
        if not waiting:
            del self._groups[group]
        return number

    def back(self, worker: Hashable, number: int) -> None:
        """Take back a unit from a worker that is gone."""
        self._at.pop(worker, None)
        self._groups.setdefault(self.units[number].group, deque()).appendleft(number)

    def died(self, worker: Hashable, number: int) -> bool:
        """Take back a unit at which its worker died; return whether it may be done again."""
        self.back(worker, number)
        self._deaths[number] += 1
        return self._deaths[number] < DEATHS

    def _new_group(self, worker: Hashable) -> Hashable:
        """Return the first group that no other worker is at, or else the longest."""
        taken = {group for other, group in self._at.items() if other != worker}
        for group in self._groups:
            if group not in taken:
                return group
        return max(self._groups, key=lambda group: len(self._groups[group]))

"""How well heuristics describe neurons: Algorithm 1 of Nikankin et al. 2025, App. F, exactly, for thousands at once.

A neuron's map gives every cell a number. A heuristic that k cells satisfy scores the share of the map's k top cells that
satisfy it; ties go to the smaller op1, then op2. Ranks come from one sort of unsigned integers per map, value in the upper
bits, cell in the lower. Heuristics that share no cell are a family: one comparison of ranks with each cell's own k serves
all of them, and one addition counts a cell for eight neurons.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

TOGETHER = 8  # neurons counted at once: a byte of a 64-bit word each
MOST = 255  # cells added up before a byte is full


@dataclass(frozen=True, eq=False)
class Layout:
    """Cells in an order in which those that belong together are neighbours, cut into segments of at most MOST.

    cells: (places,) which cell is where; segments: (segments,) first place of each; groups: (segments,) what it belongs to.
    """

    cells: np.ndarray
    segments: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, groups: np.ndarray) -> "Layout":
        """Cells by their group, groups (cells,); cells of group -1 are left out."""
        order = np.argsort(groups, kind="stable")
        order = order[np.searchsorted(groups[order], 0) :]
        numbers, first, sizes = np.unique(groups[order], return_index=True, return_counts=True)
        segments = [start + np.arange(0, size, MOST) for start, size in zip(first, sizes, strict=True)]
        return cls(order, np.concatenate(segments), np.repeat(numbers, [len(s) for s in segments]))


@dataclass(frozen=True)
class Family:
    """Heuristics that share no cell. heuristics: (members,) indices; k: (places, TOGETHER) cells of the one that a cell satisfies, or 0.

    chosen: segments of the layout, those of a member side by side; starts: (members,) where in `chosen` each begins.
    """

    heuristics: np.ndarray
    layout: Layout
    k: np.ndarray
    chosen: np.ndarray
    starts: np.ndarray


def families(members: np.ndarray, quantities: list[str], values: Mapping[str, np.ndarray]) -> list[Family]:
    """Puts heuristics into families, each into the first of its quantity that has room; those without a cell are left out.

    members: (heuristics, cells) bool; quantities: what each heuristic is about; values: quantity -> its value in each cell.
    A heuristic about something else than these, such as both operands, may be any set of cells.
    """
    layouts = {quantity: Layout.of(of) for quantity, of in values.items()}
    free: dict[str, list[np.ndarray]] = {}
    chosen: dict[str, list[list[int]]] = {}
    for number in np.flatnonzero(members.any(1)):
        room, lists = free.setdefault(quantities[number], []), chosen.setdefault(quantities[number], [])
        of = next((i for i, cells in enumerate(room) if not (members[number] & ~cells).any()), len(room))
        if of == len(room):
            room.append(np.ones(members.shape[1], bool))
            lists.append([])
        room[of] &= ~members[number]
        lists[of].append(int(number))
    return [_family(members, np.array(numbers), layouts.get(quantity)) for quantity, lists in chosen.items() for numbers in lists]


def _family(members: np.ndarray, numbers: np.ndarray, layout: Layout | None) -> Family:
    """The family of these heuristics in the layout of their quantity or, without one, in a layout of its own."""
    sizes = members[numbers].sum(1)
    member = np.full(members.shape[1], -1)  # which of them each cell satisfies
    for i, number in enumerate(numbers):
        member[members[number]] = i
    layout = layout or Layout.of(member)
    placed = member[layout.cells]
    of_segment = placed[layout.segments]
    chosen = np.argsort(of_segment, kind="stable")
    chosen = chosen[np.searchsorted(of_segment[chosen], 0) :]
    starts = np.searchsorted(of_segment[chosen], np.arange(len(numbers)))
    k = np.repeat(np.where(placed < 0, 0, sizes[placed]).astype(np.int32)[:, None], TOGETHER, axis=1)  # flat loops are far faster
    return Family(numbers, layout, k, chosen, starts)


def ranks(maps: np.ndarray, bottom: bool = False) -> np.ndarray:
    """Rank of every cell, 0 for the largest (or smallest): maps (neurons, cells) of float32, without NaN, to (cells, TOGETHER) int32."""
    found = np.empty((maps.shape[1], TOGETHER), np.int32)
    places = np.arange(maps.shape[1], dtype=np.int64)
    for neuron, values in enumerate(maps):
        bits = (values + np.float32(0)).view(np.int32)  # -0 becomes 0
        rising = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # integers in the order of the floats
        keys = ((rising if bottom else ~rising).astype(np.int64) << 32) | places
        keys.sort()
        found[keys & 0xFFFFFFFF, neuron] = places
    return found


def hits(ranked: np.ndarray, grouped: list[Family], heuristics: int) -> np.ndarray:
    """Of each heuristic's k cells, how many are among the map's k first: ranked (cells, TOGETHER) to (TOGETHER, heuristics) int32."""
    counts = np.zeros((heuristics, TOGETHER), np.int32)
    laid: dict[int, np.ndarray] = {}
    for family in grouped:
        layout = family.layout
        placed = laid[id(layout)] if id(layout) in laid else laid.setdefault(id(layout), ranked[layout.cells])
        inside = (placed < family.k).view(np.uint64)[:, 0]  # a byte per neuron
        sums = np.add.reduceat(inside, layout.segments).view(np.uint8).reshape(-1, TOGETHER)
        counts[family.heuristics] = np.add.reduceat(sums[family.chosen], family.starts, axis=0, dtype=np.int32)
    return counts.T


def scores(maps: np.ndarray, members: np.ndarray, grouped: list[Family], threads: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Scores of neurons, some at a time: which neurons, and their scores at the top and at the bottom, (neurons, heuristics) float32.

    maps: (neurons, cells); members: (heuristics, cells) bool; grouped: their families. A heuristic without cells scores NaN.
    """
    size = np.where(members.any(1), members.sum(1), np.nan)

    def score(part: slice) -> tuple[slice, np.ndarray, np.ndarray]:
        values = maps[part].astype(np.float32)
        top, bottom = (hits(ranks(values, side), grouped, len(members))[: len(values)] / size for side in (False, True))
        return part, top.astype(np.float32), bottom.astype(np.float32)

    parts = [slice(i, i + TOGETHER) for i in range(0, len(maps), TOGETHER)]
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(score, parts)

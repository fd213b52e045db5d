"""How many pairs and neurons a model's experiments may take, so that all its stages fit a time."""

import re
from collections.abc import Iterator

from stages.lib.core.settings import ParamsError
from stages.lib.subject import Sizes
from stages.store.costs import Costs, Row

DAY, HOUR, MINUTE = 86_400, 3600, 60
USUAL = DAY  # seconds that fit where no budget is given
FORM = "a duration is hours and minutes, such as 5h, 90m or 1h30m, from 1m to 8760h"
DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,6})m)?")
# The fewest of each that still say something: 25 pairs of an operator, some neurons of a layer.
FEWEST_PAIRS, FEWEST_NEURONS, FEWEST_SAMPLE, FEWEST_TEMPLATE = 5, 10, 20, 2
STEPS = 40  # halvings of the range between the fewest and the usual sizes
Singles = tuple[bool | None, bool | None]
# What is tried in turn: single heads, then single units, are given up where with them not even
# halfway to the usual sizes fits.
OPTIONS: list[tuple[float, Singles]] = [
    (0.5, (None, None)),
    (0.5, (False, None)),
    (0.0, (False, False)),
]


def seconds(text: str) -> float:
    """Return the seconds of a duration. Raises ParamsError where it is none."""
    parts = DURATION.fullmatch(text.strip())
    hours, minutes = (int(part or 0) for part in parts.groups()) if parts else (0, 0)
    total = hours * HOUR + minutes * MINUTE
    if not MINUTE <= total <= 8760 * HOUR:
        raise ParamsError(f"--budget {text!r} is not allowed; {FORM}")
    return total


def total(rows: list[Row]) -> float:
    """Return the seconds that stages take on this machine, one after another."""
    return sum(row.wall for row in rows)


def fitted(costs: Costs, section: str, budget: float) -> Sizes | None:
    """Return the largest sizes whose stages fit the budget, or None where none do."""

    def fits(sizes: Sizes) -> bool:
        return total(costs.rows(sizes, section)) <= budget

    if fits(Sizes()):
        return Sizes()
    if section != "subjects" or not fits(fewest(costs)):
        return None
    low, singles = next(option for option in OPTIONS if fits(between(costs, *option)))
    high = 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(between(costs, middle, singles)) else (low, middle)
    return between(costs, low, singles)


def fewest(costs: Costs) -> Sizes:
    """Return the smallest sizes that are proposed."""
    return between(costs, *OPTIONS[-1])


def between(costs: Costs, share: float, singles: Singles) -> Sizes:
    """Return sizes between the fewest (share 0) and the usual ones (1), in equal ratios.

    singles: single_heads and single_units; None: as the settings say.
    """

    def part(least: int, usual: int) -> int:
        least = min(least, usual)
        return int(least * (usual / least) ** share) if least else usual

    usual_pairs, templates = costs.params["pairs"]["pairs_per_split"], costs.per_template(Sizes())
    return Sizes(
        pairs_per_split=part(FEWEST_PAIRS, usual_pairs),
        patched_neurons=part(FEWEST_NEURONS, costs.patched(Sizes())),
        sampled_neurons=part(FEWEST_SAMPLE, costs.sampled(Sizes())),
        pairs_per_template={
            task: part(FEWEST_TEMPLATE, count) for task, count in templates.items()
        },
        single_heads=singles[0],
        single_units=singles[1],
    )


def given_up(costs: Costs, sizes: Sizes) -> Iterator[str]:
    """Yield what the sizes leave out of what the settings ask for."""
    usual = costs.params["pairs"]["pairs_per_split"]
    if sizes.patched_neurons is not None:
        every = costs.patched(Sizes())
        random = f"and {costs.sampled(sizes):,} random ones"
        yield f"neurons patched: the {sizes.patched_neurons:,} of largest attribution {random} of {every:,} of a layer"
    if sizes.pairs_per_split is not None:
        yield f"pairs of prompts: {sizes.pairs_per_split} of {usual} for each operator, split and seed"
    if sizes.pairs_per_template is not None:
        before = costs.per_template(Sizes())
        parts = [f"{task} {n} of {before[task]}" for task, n in sizes.pairs_per_template.items()]
        yield f"pairs of mediation: {', '.join(parts)} for each template"
    if sizes.single_heads is False:
        yield "mediation: heads one by one"
    if sizes.single_units is False:
        yield "mediation: neurons and coordinates of late layers one by one"


def refusal(costs: Costs, section: str, text: str) -> str:
    """Say that a budget is too short, the shortest one, and what takes most of it."""
    rows = costs.rows(fewest(costs), section)
    longest = sorted(rows, key=lambda row: -row.wall)[:3]
    parts = ", ".join(f"{row.name} {spoken(row.wall)}" for row in longest)
    return (
        f"--budget {text} is too short: the smallest sizes take {spoken(total(rows))} here, "
        f"most of it {parts}; "
        f"give --budget {duration(total(rows))} or more, lower --largest-operand, or use --store-only"
    )


def duration(time: float) -> str:
    """Return a duration of at least so many seconds as `--budget` takes it."""
    if time <= 2 * HOUR:
        return f"{-(-time // MINUTE):.0f}m"
    return f"{-(-time // HOUR):.0f}h"


def spoken(time: float) -> str:
    """Return a time in the unit that suits it."""
    for size, name in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if time >= 2 * size:
            return (
                f"{time / size:,.0f} {name}" if time >= 10 * size else f"{time / size:.1f} {name}"
            )
    return f"{max(1, time):.0f} s"

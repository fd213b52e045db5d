"""Choose how many pairs and neurons a model's experiments use, so that they fit a time budget."""

import re
from collections.abc import Iterator
from typing import Any

from stages.lib.core.settings import ParamsError
from stages.lib.subject import Sizes
from stages.store.costs import CostRow, Costs

DAY, HOUR, MINUTE = 86_400, 3600, 60
USUAL = 5 * HOUR  # seconds of the budget if none is given: an evening
FORM = "a duration is hours and minutes, such as 5h, 90m or 1h30m, from 1m to 8760h"
DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,6})m)?")
# The fewest that are still informative: 25 pairs of an operator, some neurons of a layer.
FEWEST_PAIRS, FEWEST_NEURONS, FEWEST_SAMPLE, FEWEST_TEMPLATE = 5, 10, 20, 2
FEWEST_CIRCUITS = 2  # random ones of each size, which have a spread
LISTED = 3  # stages, or layers, that a sentence names
SMALLEST_OPERAND = 9  # that largest_operand allows
STEPS = 40  # halvings of the range between the fewest and the usual sizes
Singles = tuple[bool | None, bool | None]
# The options, tried in turn. Single heads, then single units, are left out if the budget does not
# even allow sizes halfway between the fewest and the usual ones with them.
OPTIONS: list[tuple[float, Singles]] = [
    (0.5, (None, None)),
    (0.5, (False, None)),
    (0.0, (False, False)),
]


def seconds(text: str) -> float:
    """Return the seconds of a duration. Raises ParamsError if the text is not a duration."""
    match = DURATION.fullmatch(text.strip())
    total = 0
    if match:
        hours, minutes = match.groups("0")
        total = int(hours) * HOUR + int(minutes) * MINUTE
    if not MINUTE <= total <= 8760 * HOUR:
        raise ParamsError(f"--budget {text!r} is not allowed; {FORM}")
    return total


def total(rows: list[CostRow]) -> float:
    """Return the seconds of stages on this machine, one after another, without extra ones."""
    return sum(row.wall for row in rows if not row.extra)


def by_stage(rows: list[CostRow]) -> dict[str, float]:
    """Return the seconds of each stage. Stages of a common row share its seconds equally."""
    return {stage: row.wall / len(row.stages) for row in rows for stage in row.stages}


def fitted(costs: Costs, section: str, budget: float) -> Sizes | None:
    """Return the largest sizes whose stages fit the budget in seconds, or None if none do."""

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
        if fits(between(costs, middle, singles)):
            low = middle
        else:
            high = middle
    return between(costs, low, singles)


def fewest(costs: Costs) -> Sizes:
    """Return the smallest sizes that are proposed."""
    return between(costs, *OPTIONS[-1])


def between(costs: Costs, share: float, singles: Singles) -> Sizes:
    """Return sizes between the fewest (share 0) and the usual ones (1), in equal ratios.

    singles: single_heads and single_units; None: the value of the settings.
    """

    def part(least: int, usual: int) -> int:
        least = min(least, usual)
        if not least:
            return usual
        return int(least * (usual / least) ** share)

    usual_pairs, templates = costs.params["pairs"]["pairs_per_split"], costs.per_template(Sizes())
    return Sizes(
        pairs_per_split=part(FEWEST_PAIRS, usual_pairs),
        patched_neurons=part(FEWEST_NEURONS, costs.patched(Sizes())),
        sampled_neurons=part(FEWEST_SAMPLE, costs.sampled(Sizes())),
        random_head_circuits=part(
            FEWEST_CIRCUITS, costs.params["head_circuits"]["random_head_circuits"]
        ),
        pairs_per_template={
            task: part(FEWEST_TEMPLATE, count) for task, count in templates.items()
        },
        single_heads=singles[0],
        single_units=singles[1],
    )


def given_up(costs: Costs, sizes: Sizes) -> Iterator[str]:
    """Yield what is left out with these sizes, compared with the settings."""
    usual = costs.params["pairs"]["pairs_per_split"]
    if sizes.patched_neurons is not None:
        usual_patched = f"{costs.patched(Sizes()):,} of a layer"
        largest = f"the {sizes.patched_neurons:,} of largest attribution"
        random = f"{costs.sampled(sizes):,} random ones"
        yield f"neurons patched: {largest} and {random} of {usual_patched}"
    if sizes.pairs_per_split is not None:
        pairs = f"{sizes.pairs_per_split} of {usual}"
        yield f"pairs of prompts: {pairs} for each operator, split and seed"
    if sizes.random_head_circuits is not None:
        drawn = costs.params["head_circuits"]["random_head_circuits"]
        yield f"random circuits of heads: {sizes.random_head_circuits} of {drawn} of each size"
    if sizes.pairs_per_template is not None:
        before = costs.per_template(Sizes())
        parts = [f"{task} {n} of {before[task]}" for task, n in sizes.pairs_per_template.items()]
        yield f"pairs of mediation: {', '.join(parts)} for each template"
    if sizes.single_heads is False:
        yield "mediation: heads one by one"
    if sizes.single_units is False:
        yield "mediation: neurons and coordinates of late layers one by one"
    least = min(costs.params["operator_overlaps"]["operator_ks"])
    if sizes.patched_neurons is not None and sizes.patched_neurons < least:
        yield f"neurons that operators share, which take {least} patched neurons of a layer"


def unaffected(costs: Costs, section: str) -> list[CostRow]:
    """Return the stages that take as long with any sizes, such as the dump and the scores."""
    usual, least = costs.rows(Sizes(), section), costs.rows(fewest(costs), section)
    if section != "subjects":
        return usual
    return [row for row, other in zip(usual, least, strict=True) if row.cpu == other.cpu]


def savings(costs: Costs, section: str, budget: float) -> Iterator[str]:
    """Yield keys of the entry that shorten what no size shortens, if that exceeds the budget."""
    rows = unaffected(costs, section)
    whole = total(rows)
    if whole <= budget:
        return
    longest = sorted(rows, key=lambda row: -row.wall)[:LISTED]
    stages = ", ".join(f"{row.name} {spoken(row.wall)}" for row in longest)
    yield f"fixed         no size shortens these stages: {spoken(whole)}, of which {stages}"
    yield "              keys of the entry (in a file for --entry) do, each alone:"
    for text, entry in _smaller_entries(costs):
        shorter = total(unaffected(costs.changed(**entry), section))
        yield f"              {text}: {spoken(shorter)} instead of {spoken(whole)}"


def _smaller_entries(costs: Costs) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield smaller entries of a model: the text of a key, and the key with its value."""
    kept = costs.settings.kept_layers(costs.depth)
    half = kept[len(kept) // 2 :]
    if len(kept) > 1:
        listed = ", ".join(map(str, half))
        if len(half) > LISTED:
            listed = f"{half[0]}, …, {half[-1]}"
        yield f"layers: [{listed}] (the later half)", {"layers": half}
    if costs.operators > 1:
        first = costs.settings.operators[0]
        yield f"operators: [{first}]", {"operators": [first]}
    largest = max(SMALLEST_OPERAND, costs.side // 2 - 1)
    if largest < costs.side - 1:
        yield f"largest_operand: {largest}", {"largest_operand": largest}


def refusal(costs: Costs, section: str, text: str) -> str:
    """Return the message that a budget is too short, with the shortest possible one."""
    rows = costs.rows(fewest(costs), section)
    longest = sorted(rows, key=lambda row: -row.wall)[:LISTED]
    parts = ", ".join(f"{row.name} {spoken(row.wall)}" for row in longest)
    return (
        f"--budget {text} is too short: the smallest sizes take {spoken(total(rows))} here, "
        f"most of it {parts}; "
        f"give --budget {duration(total(rows))} or more, lower --largest-operand, name fewer "
        "layers or operators in a file for --entry, or use --store-only"
    )


def duration(time: float) -> str:
    """Return a duration of at least `time` seconds in the form of `--budget`."""
    if time <= 2 * HOUR:
        return f"{-(-time // MINUTE):.0f}m"
    return f"{-(-time // HOUR):.0f}h"


def spoken(time: float) -> str:
    """Return a time in seconds as text, in a suitable unit."""
    for size, name in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if time >= 10 * size:
            return f"{time / size:,.0f} {name}"
        if time >= 2 * size:
            return f"{time / size:.1f} {name}"
    return f"{max(1, time):.0f} s"

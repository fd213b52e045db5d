"""State what a model's tables show: whether the bag of heuristics holds, and up to 14 findings.

Every number of a sentence comes from a table. `python -m stages.report.findings SUBJECT` prints the
findings of a model as Markdown, with links to the tables' queries, for example for a README. An
accuracy is quoted with that of always predicting the most frequent answer of the same prompts.

The bag of heuristics makes three predictions for each operator. Neurons with a heuristic are those
that a heuristic describes beyond chance (criterion fdr). It holds for an operator if all three do:

* enough: late neurons with a heuristic, kept without all others, keep more of the correct answers
  than as many other neurons (their intervals do not overlap), and than the most frequent answer;
* needed: ablating them leaves fewer correct answers than ablating as many other late neurons of the
  same layers (their intervals do not overlap);
* selective: ablating one heuristic's neurons lowers the answer's logit, and more on the heuristic's
  own prompts than on others, and more so than ablating other neurons does (p <= LEVEL).

The other neurons are random ones, or ones without a heuristic of the nearest variance: for each
operator, those with which the prediction is harder to fulfil.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stages.lib.dictionary import tables
from stages.lib.sql.database import Database
from stages.lib.subject import load_subject
from stages.report.page.contents import contents
from stages.report.page.rows import database

LEVEL = 0.05  # largest p-value of an ablation that counts as selective
NAMES = {
    "add": "addition",
    "subtract": "subtraction",
    "multiply": "multiplication",
    "divide": "division",
}
HOLDS, PARTLY, FAILS, UNTESTED = "holds", "holds in part", "does not hold", "not testable"
ANSWERS = {HOLDS: "Yes.", PARTLY: "In part.", FAILS: "No.", UNTESTED: "This model cannot tell."}
# name -> the tables that a query reads, and the query; each gives rows of operators
QUERIES: dict[str, tuple[list[str], str]] = {
    "accuracy": (
        ["accuracy"],
        # the most frequent answer of each split
        """select operator, sum(accuracy * cells) / sum(cells) as value,
            sum(majority_accuracy * cells) / sum(cells) as majority,
            any_value(accuracy) filter (split = 'held-out') as held_out,
            any_value(majority_accuracy) filter (split = 'held-out') as held_out_majority
        from accuracy where subject = $subject group by operator""",
    ),
    "heads": (
        ["circuit_heads", "smallest_circuits", "component_effects"],
        """select operator, circuit.heads, total, reached, any_value(accuracy) as value,
            any_value(random_accuracy) as control, any_value(majority_accuracy) as majority
        from (
            select operator, count(*) as heads, bool_and(reached) as reached
            from circuit_heads where subject = $subject group by operator) as circuit
        left join (from smallest_circuits where subject = $subject) using (operator, heads)
        cross join (
            select count(distinct (layer, head)) as total
            from component_effects where subject = $subject and component = 'head')
        group by operator, circuit.heads, total, reached""",
    ),
    "late": (
        ["late_layers", "probes"],
        """with
            baselines as (
                select layer as first_layer, avg(majority_accuracy) as majority
                from probes
                where subject = $subject and position = 'last' and accuracy is not null
                group by layer
            )
        select null::varchar as operator, first_layer, layers, accuracy as value, majority,
            exists (from baselines) as is_probed
        from (from late_layers where subject = $subject) left join baselines using (first_layer)""",
    ),
    # of all numbers of neurons, the number with the largest distance from random neurons; by
    # attribution if too few neurons are patched to rank as many by their effects
    "neurons": (
        ["faithfulness"],
        """with
            circuits as (
                select operator, circuit, neurons_per_layer, avg(accuracy) as accuracy,
                    any_value(majority_accuracy) as majority
                from faithfulness
                where subject = $subject and experiment = 'neuron_circuit'
                    and circuit in ('logit_effect', 'attribution', 'random')
                    and neurons_per_layer > 0
                group by all
            ),
            ranking as (
                select circuit from circuits where circuit <> 'random' group by circuit
                order by max(neurons_per_layer) desc, circuit = 'attribution' limit 1
            ),
            paired as (
                select ranked.operator, ranked.circuit, ranked.neurons_per_layer,
                    ranked.accuracy as value, random.accuracy as control, ranked.majority
                from circuits as ranked semi join ranking using (circuit)
                join (from circuits where circuit = 'random') as random
                    using (operator, neurons_per_layer)
            )
        select * from paired
        where neurons_per_layer = (
            select arg_max(neurons_per_layer, gap) from (
                select neurons_per_layer, avg(value - control) as gap from paired group by all
                order by all))""",
    ),
    "labels": (
        ["label_limits", "labels", "neuron_variances"],
        """select operator, coalesce(value, 0) as value, total, too_few_draws, draws, needed,
            at_floor
        from (
            select operator, count(*) as total
            from neuron_variances where subject = $subject group by operator)
        left join (
            select operator, count(distinct (layer, neuron)) as value
            from labels where subject = $subject group by operator) using (operator)
        left join (from label_limits where subject = $subject) using (operator)""",
    ),
    "alone": (
        ["bag_alone"],
        """select operator, own.neurons, own.accuracy as value, own.ci_low as low,
            own.ci_high as high, control.accuracy as control, control.ci_low as control_low,
            control.ci_high as control_high, rest.accuracy as rest, rest.ci_low as rest_low,
            rest.ci_high as rest_high, others.accuracy as others, others.ci_low as others_low,
            others.ci_high as others_high, majority_accuracy as majority
        from (from bag_alone where kept = 'heuristic') as own
        left join (
            select distinct on (subject, operator, criterion, ablation) *
            from bag_alone where kept in ('random', 'matched')
            order by subject, operator, criterion, ablation, ci_high desc, kept
        ) as control using (subject, operator, criterion, ablation, majority_accuracy)
        left join (from bag_alone where kept = 'rest') as rest
            using (subject, operator, criterion, ablation, majority_accuracy)
        left join (
            select distinct on (subject, operator, criterion, ablation) *
            from bag_alone where kept in ('random_rest', 'matched_rest')
            order by subject, operator, criterion, ablation, ci_low, kept
        ) as others using (subject, operator, criterion, ablation, majority_accuracy)
        where subject = $subject and criterion = 'fdr' and ablation = 'mean'""",
    ),
    "selective": (
        ["knockout_tests", "knockouts_by_heuristic"],
        """with
            baselines as (  -- of the heuristics that are tested
                select subject, operator, criterion, ablation,
                    avg(own.majority_accuracy_associated) as majority
                from (from knockouts_by_heuristic where arm = 'heuristic') as own
                join (from knockouts_by_heuristic where arm = 'control') as control
                    using (subject, operator, criterion, ablation, heuristic)
                where own.dissociation - control.dissociation is not null
                group by all
            )
        select operator, logit.p_value, logit.difference, logit.associated, logit.other,
            answers.associated as value, majority
        from (from knockout_tests where measure = 'logit') as logit
        join (from knockout_tests where measure = 'accuracy') as answers
            using (subject, operator, criterion, ablation)
        left join baselines using (subject, operator, criterion, ablation)
        where subject = $subject and criterion = 'fdr' and ablation = 'mean'""",
    ),
    "theories": (
        ["theories"],
        """with
            accuracies as (from theories where subject = $subject and what = 'accuracy'),
            -- without a restored share, ablating the late neurons does not lower the logit
            known as (
                select operator, value is not null as is_known from theories
                where subject = $subject and what = 'restored' and theory = 'itself'
            )
        select operator, parameters, theory, if(is_known, value, null) as value,
            majority_accuracy as majority
        from accuracies join known using (operator)
        where theory = 'mean'
            or parameters = (select min(parameters) from accuracies where parameters > 1)""",
    ),
    "mediation": (
        ["relative_importance"],
        # without an interval where the result varies, effects are noise
        """select null::varchar as operator, condition, without_effect,
            if(bool_and(condition <> 'result_varies' or ci_low is not null) over (),
                importance, null) as value
        from relative_importance
        where subject = $subject and task = 'arithmetic' and operator = 'all' and which = 'all'
            and condition in ('result_varies', 'result_fixed')""",
    ),
    "discovered": (
        ["discovered", "discovered_and_labels"],
        """with
            rates as (
                select operator, max(q_value) filter (discovered) as control
                from discovered where subject = $subject group by operator
            )
        select operator, discovered as value, neurons as total, control, explained,
            catalogue_explained
        from discovered_and_labels left join rates using (operator)
        where subject = $subject and layer is null""",
    ),
    "votes": (
        ["vote_agreement"],
        """select operator, sum(neurons * correlation) / sum(neurons) as value,
            sum(neurons * chance_correlation) / sum(neurons) as control,
            sum(neurons * ceiling) / sum(neurons) as ceiling
        from vote_agreement where subject = $subject group by operator""",
    ),
    # theories with a single term, and those whose terms other tables name
    "bits": (
        ["theories"],
        """with
            known as (
                select operator from theories
                where subject = $subject and what = 'restored' and theory = 'itself'
                    and value is not null
            )
        select operator, theory, bits, value, relabelled as control,
            majority_accuracy as majority
        from theories semi join known using (operator)
        where subject = $subject and what = 'accuracy' and bits is not null
            and coalesce(parameters, 1) = 1""",
    ),
    # 50 neurons are published
    "steering": (
        ["steering"],
        """with controls as (
                select subject, operator, place, target, neurons, max(follows) as follows
                from steering where arm in ('random', 'matched') group by all
            )
        select operator, place, neurons, steering.follows as value, controls.follows as control
        from steering join controls using (subject, operator, place, target, neurons)
        where subject = $subject and arm = 'separating' and target = 'other'
        qualify row_number() over (
            partition by operator, place order by abs(neurons - 50), neurons) = 1
        order by operator, place""",
    ),
    "claims": (
        ["claims"],
        """select claim, operator, source, statement, verdict
        from claims where subject = $subject order by claim, operator nulls first""",
    ),
}
Results = dict[str, pl.DataFrame]  # a query's name -> its rows
Test = Callable[[dict[str, Any]], bool | None]  # whether a row shows what is predicted


@dataclass(frozen=True)
class Finding:
    """A sentence. item: of the page that shows its table; title: what it is about."""

    item: str
    title: str
    text: str


def collected(data: Database, subject: str, operators: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows first: by operator, and of all operators under ""."""
    every = results(data, subject, operators)
    outcomes = {operator: tested(every, operator) for operator in operators}
    parts: dict[str, Any] = {}
    for operator in ("", *operators):
        part = only(every, operator) if operator else every
        own = [operator] if operator else operators
        parts[operator] = {
            "answer": ANSWERS[overall([outcomes[name]["verdict"] for name in own])],
            "reasons": reasons(part),
            "findings": list(map(vars, findings(part))),
        }
    charts = {}
    for name in CHARTS:
        charts[name] = every[name].to_dicts() if name in every else []
    return {"parts": parts, "tested": outcomes, "charts": charts, "claims": claims(every)}


def results(data: Database, subject: str, operators: Sequence[str]) -> Results:
    """Return the rows of each query, by operator in the order given.

    A query whose tables are missing, or that gives no rows, is left out.
    """
    present, rows = set(data.tables()), {}
    places = {operator: place for place, operator in enumerate(operators)}
    for name, (names, text) in QUERIES.items():
        if not set(names) <= present:
            continue
        frame = data.sql(text, subject=subject).pl()
        place = pl.col("operator").replace_strict(places, default=-1, return_dtype=pl.Int64)
        if frame.height:
            rows[name] = frame.sort(place, maintain_order=True)
    return rows


def only(every: Results, operator: str) -> Results:
    """Return the rows about an operator, and those about all operators together."""
    is_own = pl.col("operator").is_null() | (pl.col("operator") == operator)
    filtered = {name: rows.filter(is_own) for name, rows in every.items()}
    return {name: rows for name, rows in filtered.items() if rows.height}


def is_enough(row: dict[str, Any]) -> bool | None:
    """Return whether neurons with a heuristic keep more than controls; None if it is unknown."""
    if None in (row["low"], row["control_high"], row["majority"]):
        return None
    return row["low"] > max(row["control_high"], row["majority"])


def is_needed(row: dict[str, Any]) -> bool | None:
    """Return whether ablating neurons with a heuristic hurts more than ablating as many others.

    None if it is unknown.
    """
    if row["rest_high"] is None or row["others_low"] is None:
        return None
    return row["rest_high"] < row["others_low"]


def is_selective(row: dict[str, Any]) -> bool | None:
    """Return whether ablations hurt the heuristics' own prompts most; None if there is no test.

    The test compares with other neurons. It would also hold if these neurons did not hurt at all,
    and others hurt the wrong prompts, so the change of the logit counts as well.
    """
    if row["p_value"] is None:
        return None
    is_own = row["associated"] < min(row["other"], 0)
    return row["p_value"] <= LEVEL and row["difference"] > 0 and is_own


# prediction -> the query whose rows tell, and the test of a row
PREDICTIONS: dict[str, tuple[str, Test]] = {
    "enough": ("alone", is_enough),
    "needed": ("alone", is_needed),
    "selective": ("selective", is_selective),
}


def tested(every: Results, operator: str) -> dict[str, Any]:
    """Return whether each prediction holds for an operator, None if unknown, and the verdict."""
    own = only(every, operator)
    holds: dict[str, Any] = {}
    for prediction, (name, test) in PREDICTIONS.items():
        rows = own.get(name, pl.DataFrame()).to_dicts()
        holds[prediction] = test(rows[0]) if rows else None
    is_known = not _too_few_draws(own).height
    return holds | {"verdict": verdict(list(holds.values()), _without_labels(own) and is_known)}


def verdict(holds: Sequence[bool | None], is_without_labels: bool) -> str:
    """Return the verdict from the predictions; without labels, there is no bag."""
    known = [value for value in holds if value is not None]
    if is_without_labels:
        return FAILS
    if not known:
        return UNTESTED
    if not any(known):
        return FAILS
    return HOLDS if all(holds) else PARTLY


def _without_labels(part: Results) -> bool:
    """Return whether no neuron has a label.

    Redundant matches are not labels, but the tests count their neurons (criterion fdr). So tested
    neurons are evidence to the contrary.
    """
    is_tested = "alone" in part or "selective" in part
    return "labels" in part and not part["labels"]["value"].sum() and not is_tested


def _too_few_draws(part: Results) -> pl.DataFrame:
    """Return the operators for which the permutation tests had too few draws for any label."""
    if "labels" not in part:
        return pl.DataFrame()
    return part["labels"].filter(pl.col("too_few_draws") & (pl.col("value") == 0))


def _why_no_draws(rows: pl.DataFrame) -> str:
    return (
        f"For {_names(rows)}, the permutation tests had too few draws for any label: "
        f"{count(rows, 'at_floor')} neurons are beyond all {count(rows, 'draws')} draws, and "
        f"{count(rows, 'needed')} are needed."
    )


def overall(verdicts: Sequence[str]) -> str:
    """Return the verdict on several operators together.

    What holds for some operators holds in part if others fail, or cannot be tested.
    """
    different = set(verdicts)
    if HOLDS in different and len(different) > 1:
        return PARTLY
    known = different - {UNTESTED}
    if not known:
        return UNTESTED
    return known.pop() if len(known) == 1 else PARTLY


def reasons(part: Results) -> list[str]:
    """Return sentences on the predictions of the bag of heuristics."""
    if _without_labels(part):
        untested = _too_few_draws(part)
        if untested.height:
            return [_why_no_draws(untested)]
        return ["No neuron has a label: no heuristic describes a neuron beyond chance."]
    sentences: list[str] = []
    for prediction, (name, test) in PREDICTIONS.items():
        if name in part:
            sentences += REASONS[prediction](*_divided(part[name], test))
    return sentences or ["No table tests the bag of heuristics on this model."]


def _enough(holds: pl.DataFrame, fails: pl.DataFrame) -> list[str]:
    own, sentences = "The late neurons with a heuristic, alone, keep", []
    if holds.height:
        sentences.append(
            f"{own} {span(holds, 'value')} of the correct answers, as many other neurons "
            f"{span(holds, 'control', names=False)}{_majority(holds)}."
        )
        own = "They keep"
    if fails.height:
        sentences.append(
            f"{own} {span(fails, 'value', names=False)} for {_names(fails)}, not clearly more than "
            f"both other neurons ({span(fails, 'control', names=False)}) and the most frequent "
            f"answer ({span(fails, 'majority', names=False)})."
        )
    return sentences


def _needed(holds: pl.DataFrame, fails: pl.DataFrame) -> list[str]:
    sentences = []
    if holds.height:
        sentences.append(
            f"Without these neurons, {span(holds, 'rest')} of the answers stay correct, without "
            f"as many other neurons {span(holds, 'others', names=False)}."
        )
    if fails.height:
        sentences.append(
            f"For {_names(fails)}, {span(fails, 'rest', names=False)} stay correct without them, "
            f"not clearly fewer than without other ones ({span(fails, 'others', names=False)})."
        )
    return sentences


def _hurt(holds: pl.DataFrame, fails: pl.DataFrame) -> list[str]:
    sentences = []
    if holds.height:
        sentences.append(
            "Ablating one heuristic lowers the answer's logit most on the heuristic's own prompts "
            f"for {_names(holds)}."
        )
    if fails.height:
        sentences.append(
            f"For {_names(fails)}, ablating one heuristic does not lower the answer's logit "
            "significantly more on the heuristic's own prompts."
        )
    return sentences


REASONS = {"enough": _enough, "needed": _needed, "selective": _hurt}


def _divided(rows: pl.DataFrame, test: Test) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows for which a prediction holds, and those for which it does not."""
    outcomes = pl.Series(list(map(test, rows.iter_rows(named=True))), dtype=pl.Boolean)
    return rows.filter(outcomes.fill_null(False)), rows.filter(~outcomes.fill_null(True))


def findings(part: Results) -> list[Finding]:
    """Return a sentence about each query that has rows."""
    sentences = []
    for name, (item, title, write) in SENTENCES.items():
        if name in part:
            sentences.append(Finding(item, title, write(part[name])))
    return sentences


def _accuracy(rows: pl.DataFrame) -> str:
    text = f"The model predicts the answer correctly in {span(rows, 'value')} of all cells"
    text += _majority(rows)
    if rows["held_out"].null_count() == rows.height:
        return f"{text}."
    held_out, majority = span(rows, "held_out", names=False), _majority(rows, "held_out_majority")
    return f"{text}, and in {held_out} of held-out cells{majority}."


def _heads(rows: pl.DataFrame) -> str:
    reached, missed = rows.filter("reached"), rows.filter(~pl.col("reached"))
    sentences = []
    if reached.height:
        heads, total = count(reached, "heads"), reached["total"][0]
        sentences.append(
            f"{heads} of {total} attention heads keep an accuracy of {span(reached, 'value')}, "
            f"equally many random heads {span(reached, 'control', names=False)}"
            f"{_majority(reached)}."
        )
    if missed.height:
        sentences.append(f"For {_names(missed)}, no fewer heads than all are faithful enough.")
    return " ".join(sentences)


def _late(rows: pl.DataFrame) -> str:
    first, layers, accuracy = rows.select("first_layer", "layers", "value").row(0)
    if not rows["is_probed"][0]:
        return "Too few prompts are answered correctly for a linear probe, so no layer is late."
    if first is None:
        return (
            "No linear probe reads the answer well enough after the last layer, so no layer is "
            "late."
        )
    last = layers - 1
    late = f"layer {last} is" if first == last else f"layers {first} to {last} are"
    return (
        f"A linear probe reads the answer from layer {first} on, with an accuracy of "
        f"{share(accuracy)}{_majority(rows)}. So {late} late."
    )


def _neurons(rows: pl.DataFrame) -> str:
    ranking = RANKINGS[rows["circuit"][0]]
    return (
        "With only the circuit's heads, the "
        f"{count(rows, 'neurons_per_layer')} neurons of largest {ranking} per late layer keep "
        f"an accuracy of {span(rows, 'value')}, equally many random neurons "
        f"{span(rows, 'control', names=False)}{_majority(rows)}. Averaged over operators, no other "
        "number of neurons differs more."
    )


def _labels(rows: pl.DataFrame) -> str:
    if not rows["value"].sum():
        untested = _too_few_draws({"labels": rows})
        why = f" {_why_no_draws(untested)}" if untested.height else ""
        return f"None of {rows['total'][0]:,} neurons has a label.{why}"
    return (
        f"{count(rows, 'value')} of {rows['total'][0]:,} neurons have a label: a heuristic "
        "describes them beyond chance."
    )


def _alone(rows: pl.DataFrame) -> str:
    return (
        f"{count(rows, 'neurons')} late neurons have a heuristic. They alone keep an accuracy of "
        f"{span(rows, 'value')}, as many other neurons {span(rows, 'control', names=False)}, "
        f"and all late neurons but them {span(rows, 'rest', names=False)}{_majority(rows)}."
    )


def _selective(rows: pl.DataFrame) -> str:
    return (
        "Ablating one heuristic changes the answer's logit by "
        f"{span(rows, 'associated', write=logits)} on its own prompts, and by "
        f"{span(rows, 'other', names=False, write=logits)} on other prompts. Of its own prompts, "
        f"{span(rows, 'value', names=False)} stay correct{_majority(rows)}."
    )


def _theories(rows: pl.DataFrame) -> str:
    number, parts = rows["parameters"].max(), []
    for theory, what in THEORIES.items():
        part = rows.filter(theory=theory).drop_nulls("value")
        if part.height:
            label = what.format(number)
            parts.append(f"{label} {span(part, 'value', names=False)}")
    unknown = rows.filter(pl.col("value").is_null()).unique("operator", maintain_order=True)
    why = "ablating the late neurons does not clearly lower the answer's logit"
    if not parts:
        return f"No theory of late neurons is compared: {why}."
    majority = _majority(rows.drop_nulls("value"))
    text = (
        f"Accuracy with simple formulas in place of each late neuron: {', '.join(parts)}{majority}."
    )
    return f"{text} For {_names(unknown)}, {why}." if unknown.height else text


def _mediation(rows: pl.DataFrame) -> str:
    parts = []
    for condition, when in CONDITIONS.items():
        part = rows.filter(condition=condition).drop_nulls("value")
        if part.height:
            parts.append(f"{span(part, 'value', names=False)} when {when}")
    if not parts:
        return "The effects of MLPs are too small, or the pairs too few, to compare layers."
    equal = span(rows, "without_effect", names=False)
    return (
        f"At the last position, the late half of the MLPs has {' and '.join(parts)}, as a share of "
        f"the effects of all MLPs at all positions. If all effects were equal, it would be {equal}."
    )


def _discovered(rows: pl.DataFrame) -> str:
    total = f"{rows['total'][0]:,}"
    if not rows["value"].sum():
        return f"A search without the catalogue finds no predicate for any of {total} neurons."
    largest = rows.select(pl.max("control")).item()
    rate = math.ceil(largest * 1000) / 1000  # so that it is not rounded to 0
    return (
        f"A search without the catalogue finds a predicate for {count(rows, 'value')} of {total} "
        f"neurons, at a false discovery rate of at most {rate:.3f}. Predicates explain "
        f"{span(rows, 'explained')} of the held-out variance, the best heuristics of the catalogue "
        f"{span(rows, 'catalogue_explained', names=False)}."
    )


def _votes(rows: pl.DataFrame) -> str:
    parts = []
    for column in ("value", "control", "ceiling"):
        parts.append(span(rows, column, names=column == "value", write=correlation))
    own, other, most = parts
    return (
        f"What a shifted neuron changes after all later layers correlates by {own} with its direct "
        f"logit attribution, by {other} with that of another neuron of its layer. A perfect "
        f"attribution would have {most} on so few prompts."
    )


def _bits(rows: pl.DataFrame) -> str:
    parts = []
    for theory, what in DESCRIPTIONS.items():
        part = rows.filter(theory=theory)
        if part.is_empty():
            continue
        size = span(part, "bits", names=False, write="{:,.0f}".format)
        unit = "bit" if size == "1" else "bits"
        text = f"{what} of {size} {unit} {span(part, 'value', names=False)}"
        if part["control"].count():
            text += f" (another neuron's {span(part, 'control', names=False)})"
        parts.append(text)
    listed = ", ".join(parts)
    return f"Accuracy with a description in place of each late neuron: {listed}{_majority(rows)}."


def _steering(rows: pl.DataFrame) -> str:
    parts = []
    for place, what in PLACES.items():
        part = rows.filter(place=place)
        if part.height:
            parts.append(f"{what} {span(part, 'value', names=False)}")
    return (
        f"With the {count(rows, 'neurons')} late neurons that a digit or carry explains best at "
        "their mean for another digit or carry, this share of predictions follows: "
        f"{', '.join(parts)}. With as many others, random or of the nearest variance, it is "
        f"{span(rows, 'control', names=False)}."
    )


def _claims(rows: pl.DataFrame) -> str:
    verdicts = dict(rows.group_by("verdict").len().iter_rows())
    good, bad = verdicts.get("reproduced", 0), verdicts.get("not reproduced", 0)
    untested = rows.height - good - bad
    statements = rows["claim"].n_unique()
    return (
        f"{statements} published statements have {rows.height} verdicts, most of them by operator: "
        f"{good} reproduced, {bad} not reproduced, {untested} not testable on this model."
    )


THEORIES = {  # {}: the number of terms
    "bag": "{} heuristics",
    "waves": "{} Fourier components",
    "helix": "{} terms of a helix",
    "mean": "its mean alone",
}
DESCRIPTIONS = {
    "labels": "its labels",
    "discovered": "its discovered predicate",
    "bag": "one heuristic",
    "waves": "one Fourier term",
    "helix": "one term of a helix",
}
RANKINGS = {"logit_effect": "logit effect", "attribution": "attribution"}
PLACES = {  # what is steered, as in the table steering
    "ones": "ones digit",
    "tens": "tens digit",
    "asked": "predicted digit",
    "carry": "carry or borrow",
}
CONDITIONS = {"result_varies": "the result varies", "result_fixed": "both results are equal"}
CHARTS = ("heads", "neurons", "alone")
# a query's name -> the item with its table, a title, and the function that writes its sentence
SENTENCES: dict[str, tuple[str, str, Callable[[pl.DataFrame], str]]] = {
    "accuracy": ("accuracy-grid", "Accuracy", _accuracy),
    "heads": ("heads", "Heads", _heads),
    "late": ("late-layers", "Late layers", _late),
    "neurons": ("top-k", "Neurons", _neurons),
    "labels": ("labels", "Heuristics", _labels),
    "alone": ("bag-alone", "The bag alone", _alone),
    "selective": ("knockout-tests", "Ablation", _selective),
    "theories": ("theories-table", "Theories", _theories),
    "mediation": ("relative-importance", "Mediation", _mediation),
    "discovered": ("discovered_and_labels", "Discovered predicates", _discovered),
    "votes": ("causal-votes", "Promoted numbers", _votes),
    "bits": ("explained-by-bits", "Description length", _bits),
    "steering": ("steering", "Steering", _steering),
    "claims": ("claims-table", "Claims", _claims),
}


def claims(every: Results) -> list[dict[str, Any]]:
    """Return the statements, each with its verdicts by operator ("" is all operators)."""
    listed: dict[str, dict[str, Any]] = {}
    if "claims" not in every:
        return []
    for row in every["claims"].sort("claim", maintain_order=True).iter_rows(named=True):
        own = {"claim": row["claim"], "source": row["source"], "statement": row["statement"]}
        entry = listed.setdefault(row["claim"], own | {"verdicts": {}})
        entry["verdicts"][row["operator"] or ""] = row["verdict"]
    return list(listed.values())


def share(value: float) -> str:
    """Return a share with two decimals, or with three next to 0 and 1."""
    digits = 2 if 0.005 <= value < 0.995 or value in (0, 1) else 3
    return f"{value:.{digits}f}"


def logits(value: float) -> str:
    """Return a change of a logit with its sign."""
    return f"{value:+.2f}"


def correlation(value: float) -> str:
    """Return a correlation with two decimals, without the sign of a negative zero."""
    return f"{round(value, 2) + 0:.2f}"


def _majority(rows: pl.DataFrame, column: str = "majority") -> str:
    """Return the accuracy of the most frequent answer in parentheses; empty if it is unknown."""
    if not rows[column].count():
        return ""
    return f" (most frequent answer: {span(rows, column, names=False)})"


def span(
    rows: pl.DataFrame, column: str, names: bool = True, write: Callable[[float], str] = share
) -> str:
    """Return the range of a column.

    names: whether to name the operators of the least and the greatest value; write: a value as
    text.
    """
    known = rows.drop_nulls(column).sort(column, maintain_order=True)
    if known.is_empty():
        return "an unknown share"
    low, high = known.row(0, named=True), known.row(-1, named=True)
    ends = write(low[column]), write(high[column])
    if ends[0] == ends[1]:
        return ends[0]
    if not names:
        return f"{ends[0]} to {ends[1]}"
    low_name, high_name = (NAMES[row["operator"]] for row in (low, high))
    return f"{ends[0]} ({low_name}) to {ends[1]} ({high_name})"


def count(rows: pl.DataFrame, column: str) -> str:
    """Return the range of a column of counts."""
    values = rows[column].drop_nulls().to_list()
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _names(rows: pl.DataFrame) -> str:
    """Return the names of the rows' operators as an enumeration."""
    *before, last = map(NAMES.__getitem__, rows["operator"])
    return f"{', '.join(before)} and {last}" if before else last


def main(subject: str) -> None:
    """Print the findings of a model as Markdown."""
    names = sorted({name for needed, _ in QUERIES.values() for name in needed})
    operators = load_subject(subject).operators
    every = results(database(names, subject), subject, operators)
    known, shown = tables(), {item.id: item.table for item in contents().items()}
    total = overall([tested(every, operator)["verdict"] for operator in operators])
    print(f"**Does the bag of heuristics hold for {subject}?** {ANSWERS[total]}", *reasons(every))
    print()
    for finding in findings(every):
        table = known.get(shown[finding.item] or "")
        title = f"[{finding.title}]({table.path})" if table else finding.title
        print(f"* **{title}.** {finding.text}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m stages.report.findings MODEL, such as abacus")
    main(sys.argv[1])

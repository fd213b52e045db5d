"""Claims against made tables: the published value is reproduced, and one far from it is not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.claims import ledger
from stages.lib.core.tables import write_table
from stages.lib.sql.database import Database, connect
from tests.made import Tables, frame

ENTRIES = {entry["claim"]: entry for entry in ledger.listed()}
SUBJECT = "planted"  # the only one for which recall can be measured
ARCHITECTURE = frame(subject=SUBJECT, layers=32, heads=32, neurons=14336)


def table(columns: str, *rows: tuple) -> pl.DataFrame:
    """A table of the subject, with rows in no order and more of a model that no claim is about."""
    return mixed(pl.DataFrame(rows, schema=columns.split(), orient="row", strict=False))


def mixed(rows: pl.DataFrame) -> pl.DataFrame:
    """As `table`, from rows without a subject."""
    own = rows.with_columns(subject=pl.lit(SUBJECT))
    other = rows.with_columns(subject=pl.lit("other"))
    return pl.concat([own, other]).sample(fraction=1, shuffle=True, seed=0)


def knockouts(value: float) -> Tables:
    """Heuristics whose associated prompts lose this accuracy, and others nothing."""
    measured = ("threshold", "zero", "heuristic")
    columns = "operator criterion ablation arm heuristic"
    columns += " accuracy_associated_before accuracy_associated accuracy_other"
    rows = [("add", *measured, "without associated prompts", None, None, 1.0)]
    for kind in product(("threshold", "label"), ("zero", "mean"), ("heuristic", "control")):
        for heuristic, deviation in (("a", -0.01), ("b", 0.01), ("c", 0.0)):
            left = 1 - value + deviation if kind == measured else 0.5
            rows.append(("add", *kind, heuristic, 1.0, left, 1.0))
    return {"knockouts_by_heuristic": table(columns, *rows)}


def heads(value: float) -> Tables:
    circuits = table("operator target heads", ("add", 0.9, round(value * 32 * 32)), ("add", 0.5, 1))
    return {"smallest_circuits": circuits, "architecture": ARCHITECTURE}


def better_heads(needed: int) -> Callable[[float], Tables]:
    """Circuits of so many heads, of 1,024."""

    def made(value: float) -> Tables:
        columns = "operator target heads faithfulness random_faithfulness"
        circuits = table(columns, ("add", 0.9, needed, 0.95, 0.95 - value))
        return {"smallest_circuits": circuits, "architecture": ARCHITECTURE}

    return made


def cut(value: float) -> Tables:
    """A circuit without its earlier edges."""
    rows = [("add", "circuit", 0.8, 0.7, 0.9), ("add", "circuit_cut", 0.8 * value, 0.1, 0.9)]
    return {"cut_faithfulness": table("operator circuit faithfulness ci_low ci_high", *rows)}


def top_neurons(value: float, near_chance: int = 0, width: int = 7143) -> Tables:
    """7,143 neurons of a late layer, of which 100 are the study's share, and some of an early one.

    near_chance: more neurons of the layer that score 0.6, too close to chance to be listed; width:
    all neurons of the layer, of which 7,143 are patched.
    """
    count, top = 7143, 100
    early, late = frame(layer=0, neuron=range(9)), frame(layer=1, neuron=range(count))
    effects = pl.concat([early, late]).with_columns(
        operator=pl.lit("add"),
        method=pl.lit("exact"),
        position=pl.lit("last"),
        effect=1.0,
        logit_effect=1.0,
        rank=count - pl.col("neuron"),
        rank_mean_plus_std=count - pl.col("neuron"),
        rank_logit=pl.col("neuron") + 1,
    )
    described = [*range(round(value * top)), *range(top, 200)]
    scores = []
    for neuron in range(200):
        scores.append(("add", 1, neuron, "c", 0.5, 0.4))
    for neuron, heuristic in product(described, ("a", "b")):
        scores.append(("add", 1, neuron, heuristic, 0.7, 0.6))
    raw = ("add", 1, "raw", "any", 0.6, len(described) + near_chance)
    counted = table(
        "operator layer criterion quantities threshold neurons",
        raw,
        (*raw[:3], "result", *raw[4:]),
    )
    return {
        "neuron_effects": mixed(effects),
        "scores": table("operator layer neuron heuristic score chance_corrected", *scores),
        "classified_share": counted,
        "late_layers": frame(subject=SUBJECT, first_layer=[1], layers=2),
        "architecture": frame(subject=SUBJECT, neurons=width),
    }


def recall(value: float) -> Tables:
    """Twenty planted pairs, of which this share scores 0.6, and a neuron of noise."""
    names = ["operator", "layer", "neuron", "heuristic"]
    pairs = product(["add"], [1], range(10), ["a", "b"])
    planted = pl.DataFrame(list(pairs), schema=names, orient="row")
    noise = pl.DataFrame([("add", 1, 99, None)], schema=planted.schema, orient="row")
    right = round(value * 20)
    scores = planted.with_columns(score=pl.Series([0.7] * right + [0.5] * (20 - right)))
    return {"planted_truth": pl.concat([planted, noise]), "scores": mixed(scores)}


def importance(
    task: str,
    condition: str,
    baseline: float = 0.402,
    is_noise: bool = False,
) -> Callable[[float], Tables]:
    """Relative importance of late MLPs in one condition, beside that when the result varies.

    is_noise: whether the latter has no interval.
    """

    def made(value: float) -> Tables:
        measured = {(task, "result_varies"): baseline}
        if condition in ("query_varies", "entity_varies"):
            measured["arithmetic", "result_varies"] = baseline
        measured[task, condition] = value
        rows = []
        for kind, operator, which in product(measured, ("all", "add"), ("all", "answered")):
            x = measured[kind] if (operator, which) == ("all", "all") else 0.25
            is_null = is_noise and kind[1] == "result_varies"
            ends = (None, None) if is_null else (x - 0.02, x + 0.02)
            rows.append((*kind, operator, which, x, *ends, 0.2))
        columns = "task condition operator which importance ci_low ci_high without_effect"
        return {"relative_importance": table(columns, *rows)}

    return made


def noisy_words(value: float) -> Tables:
    """13 coordinates of 128, of which two halves of the pairs have 5 in common."""
    return overlap("coordinate", "number_words", 13, 128, 5 / 13)(value)


def overlap(
    component: str,
    other: str,
    k: int = 400,
    width: int = 4096,
    ceiling: float = 0.9,
) -> Callable[[float], Tables]:
    """Units that a kind of question shares with arithmetic, of two layers."""
    detectable = {400: 0.115, 13: 4 / 13}[k]  # as the table's query has it

    def made(value: float) -> Tables:
        kept = ("effect", "whole", "arithmetic_words", other)
        rows = []
        for layer, size, share in ((1, k, 0.3), (2, k, value), (2, 5, 0.3)):
            measured = (size, share, size / width, ceiling, detectable)
            rows.append((component, layer, *kept, *measured))
        columns = "component layer ranking sample question other k share chance ceiling detectable"
        return {"neuron_overlap": table(columns, *rows)}

    return made


def finetuned(measure: str) -> Callable[[float], Tables]:
    def made(value: float) -> Tables:
        row = {"importance_before": 0.135, "importance": 0.247, "ci_low": 0.2, "ci_high": 0.3}
        row |= {"correct_before": 0.009, "correct": 0.397} | {measure: value}
        kind = {"before": SUBJECT, "tuned_on": "three_operands", "task": "three_operands"}
        tuned = frame(subject="tuned", condition="result_varies", **kind, **row)
        return {"finetuned": tuned}

    return made


def faithfulness(circuit: str, share: float) -> Callable[[float], Tables]:
    """The circuit restores this with this share of the neurons, and all with twice as many."""

    def made(value: float) -> Tables:
        k = round(share * 14336)
        kept = {0: 0.0, k // 2: value / 2, k: value, 2 * k: 1.0}
        rows = []
        for size, restored in kept.items():
            rows.append(("add", "neuron_circuit", circuit, size, restored, 0.0, 1.0))
            rows.append(("add", "neuron_circuit", "random", size, 0.5, 0.0, 1.0))
        rows.append(("add", "head_circuit", circuit, None, 0.7, 0.0, 1.0))  # of heads
        columns = "operator experiment circuit neurons_per_layer faithfulness ci_low ci_high"
        return {"faithfulness": table(columns, *rows), "architecture": ARCHITECTURE}

    return made


def overlaps(value: float) -> Tables:
    rows = []
    for other, iou in (("divide", value - 0.02), ("multiply", value + 0.02)):
        rows.append(("logit_effect", "add", other, None, "last", 50, iou, 0.05))
        rows.append(("logit_effect", "add", other, None, "last", 400, 0.65, 0.6))
    columns = "ranking operator_a operator_b layer position k iou chance"
    return {"operator_overlaps": table(columns, *rows)}


def beyond_chance(value: float) -> Tables:
    return overlaps(value + 0.05)


def trajectory(value: float) -> Tables:
    """Two checkpoints before the last, and one that has learnt too little to count."""
    columns = {
        "subject": ["late", "middle", "early", SUBJECT],
        "last": SUBJECT,
        "operator": "add",
        "accuracy_trained": [0.9, 0.6, 0.1, 1.0],
        "faithfulness_all": 0.8,
        "faithfulness_shared": [0.8 * value, 0.8 * value, 0.0, 0.8 * value],
    }
    lost = {"late": value, "middle": value, "early": -0.5, SUBJECT: value}
    rows = []
    for name, k in product(lost, (5, 25)):
        accuracy = 0.9 - lost[name] if k == 25 else 0.9
        rows.append((name, SUBJECT, "add", "heuristic", k, accuracy))
        rows.append((name, SUBJECT, "add", "control", k, 0.9))
    names = ["subject", "last", "operator", "arm", "neurons_per_layer", "accuracy"]
    knockouts = pl.DataFrame(rows, schema=names, orient="row")
    return {"trajectory": frame(**columns), "trajectory_knockouts": knockouts}


def appearance(value: float, last: float = 0.95) -> Tables:
    """Three checkpoints; the second and third have these shares of the last one's pairs."""
    shares = np.array([0.0, value, last, 1.0])
    columns = {
        "subject": ["first", "second", "third", SUBJECT],
        "last": SUBJECT,
        "operator": "add",
        "step": [0, 1, 2, 3],
        "shared_with_last": 0.2 + 0.8 * shares,
        "shared_by_chance": 0.2,
    }
    return {"trajectory": frame(**columns)}


def selective(value: float, effective: float = 6) -> Tables:
    """Rows of knockout_tests: differences from the control in accuracy, by effective heuristics."""
    tested = effective >= 2
    p_value = (0.01 if value > 0 else 0.9) if tested else None
    numbers = (6, effective, value, 0.1, 0.1 / effective**0.5 if tested else None, p_value)
    kind = ("add", "threshold", "zero")
    rows = [(*kind, "accuracy", *numbers), (*kind, "logit", *numbers)]
    columns = (
        "operator criterion ablation measure heuristics effective difference deviation "
        "standard_error p_value"
    )
    return {"knockout_tests": table(columns, *rows)}


def last_mlp(value: float) -> Tables:
    """Log effects of three MLPs at the last position, of which the last layer has this part."""
    kind = ("arithmetic", "result_varies", "all", "all", "mlp", "last")
    early = 4 * (1 - value)
    rows = [(*kind, 0, early), (*kind, 1, early), (*kind, 2, 8 * value)]
    columns = "task condition operator which component position_class layer log_effect"
    return {"mediation_effects": table(columns, *rows)}


def failures(measure: str) -> Callable[[float], Tables]:
    def made(value: float) -> Tables:
        kind = ("add", "threshold")
        rows = [
            (*kind, measure, value, value - 0.02, value + 0.02),
            (*kind, "other", 0.5, 0.5, 0.5),
            (*kind, "another", 0.5, 0.5, 0.5),
        ]
        columns = "operator criterion measure auc auc_ci_low auc_ci_high"
        return {"failure_tests": table(columns, *rows)}

    return made


def steered(place: str) -> Callable[[float], Tables]:
    """The share that follows at a place, with 50 neurons; other rows say something else."""

    def made(value: float) -> Tables:
        interval = value, value - 0.02, value + 0.02
        rows = [
            ("add", place, "labelled", "other", 50, *interval),
            ("add", place, "labelled", "other", 200, 0.5, 0.45, 0.55),
            ("add", place, "labelled", "own", 50, 0.99, 0.98, 1.0),
            ("add", place, "random", "other", 50, 0.0, 0.0, 0.0),
            ("add", "hundreds", "labelled", "other", 50, 0.5, 0.45, 0.55),
            ("subtract", place, "labelled", "other", 50, 0.5, 0.45, 0.55),
        ]
        columns = "operator place arm target neurons follows ci_low ci_high"
        return {"steering": table(columns, *rows)}

    return made


def steered_beyond(place: str, arm: str) -> Callable[[float], Tables]:
    """The share that follows beyond others of the nearest variance; random ones follow less."""

    def made(value: float) -> Tables:
        shares = {arm: 0.2 + value, "matched": 0.2, "random": 0.01}
        rows = []
        for name, share in shares.items():
            rows.append(("add", place, name, "other", 50, share, share - 0.005, share + 0.005))
            rows.append(("add", place, name, "other", 200, 0.5, 0.4, 0.6))
            rows.append(("add", place, name, "own", 50, 0.9, 0.8, 1.0))
        columns = "operator place arm target neurons follows ci_low ci_high"
        return {"steering": table(columns, *rows)}

    return made


THEORIES = "operator theory parameters what value ci_low ci_high bits"


def at_equal_bits(value: float, width: float = 0.01) -> Tables:
    """One heuristic explains 0.2 with 10 bits, two 0.4 with 20 bits; a predicate has 15 bits."""
    rows = []
    for theory, parameters, share, bits in (
        ("bag", 1, 0.2, 10.0),
        ("bag", 2, 0.4, 20.0),
        ("bag", 4, 0.9, 40.0),
        ("discovered", None, 0.3 - value, 15.0),
        ("helix", 1, 0.8, 15.0),
    ):
        own = share - width, share + width, bits
        rows.append(("add", theory, parameters, "activation", share, *own))
        rows.append(("add", theory, parameters, "accuracy", 1 - share, *own))
    return {"theories": table(THEORIES, *rows)}


def beyond_helix(value: float) -> Tables:
    """Heuristics against sixteen terms of a helix; more heuristics would take more bits."""
    rows = []
    for theory, parameters, accuracy, bits in (
        ("bag", 4, 0.2, 60.0),
        ("bag", 8, 0.5, 114.0),
        ("bag", 16, 1.0, 215.0),
        ("helix", 8, 0.0, 69.0),
        ("helix", 16, 0.5 - value, 118.0),
    ):
        interval = accuracy - 0.01, accuracy + 0.01
        rows.append(("add", theory, parameters, "accuracy", accuracy, *interval, bits))
        rows.append(("add", theory, parameters, "activation", 0.7, 0.6, 0.8, bits))
    return {"theories": table(THEORIES, *rows)}


def described(value: float, spread: float = 0.0, count: int = 40) -> Tables:
    """Late neurons that heuristics describe this much better than predicates do.

    This is the ratio of bits saved. count: number of these neurons; spread: difference of each
    neuron's ratio from the mean. Neurons of early layers, and without a predicate, do not count.
    """
    rows = []
    for neuron in range(count):
        own = value + (spread if neuron % 2 else -spread)
        rows.append(("add", 1, neuron, True, 400.0 * own, 400.0))
        other = 2 - value
        rows.append(("add", 0, neuron, True, 400.0 * other, 400.0))
        rows.append(("add", 1, count + neuron, False, 400.0 * other, 400.0))
    columns = "operator layer neuron discovered catalogue_gain gain"
    late = frame(subject=SUBJECT, first_layer=[1], layers=2)
    return {"discovered": table(columns, *rows), "late_layers": late}


def kept_labels(value: float, control: float = 0.1, count: int = 100) -> Tables:
    """Late neurons of which this share keeps its label; control: share by another neuron's change.

    Neurons of early layers do not count.
    """
    rows = []
    for neuron in range(count):
        verdicts = ("kept" if neuron < share * count else "lost" for share in (value, control))
        rows.append(("add", 1, neuron, *verdicts))
        rows.append(("add", 0, neuron, "inverted" if neuron < value * count else "kept", None))
    columns = "operator layer neuron verdict control_verdict"
    late = frame(subject=SUBJECT, first_layer=[1], layers=2)
    return {"label_votes": table(columns, *rows), "late_layers": late}


def promoted(value: float, control: float = 0.0, spread: float = 0.0, count: int = 40) -> Tables:
    """Two late layers, in the second of which value logits have this correlation with changes.

    control: correlation with another neuron's value logits; spread, count: as above.
    """
    rows = [("add", 2, count, 0.0, None, None)]
    for neuron in range(count):
        own = value + (spread if neuron % 2 else -spread)
        rows.append(("add", 0, neuron, 2.0, -own, control))
        rows.append(("add", 1, neuron, 2.0, own + 0.1, control))
        rows.append(("add", 2, neuron, 2.0, own, control))
        rows.append(("add", 2, 2 * count + neuron, 1e-9, -1.0, 1.0))  # too weak to matter
    columns = "operator layer neuron strength correlation chance_correlation"
    late = frame(subject=SUBJECT, first_layer=[1], layers=3)
    return {"causal_votes": table(columns, *rows), "late_layers": late}


@dataclass
class Case:
    """How a claim's tables are made from a value, and two values on either side of its bar."""

    made: Callable[[float], Tables]
    holds: float | None  # null: the published values
    fails: float


CASES = {
    "knockout_costs_accuracy": Case(knockouts, None, 0.02),
    "knockout_hurts_associated_prompts": Case(knockouts, None, -0.2),
    "knockout_is_selective": Case(selective, 0.2, -0.2),
    "knockout_is_selective_in_logits": Case(selective, 0.2, -0.2),
    "failures_have_more_neurons": Case(failures("associated_neurons"), 0.7, 0.3),
    "steered_ones_follow": Case(steered("ones"), None, 0.15),
    "steered_tens_follow": Case(steered("tens"), None, 0.15),
    "failures_get_less": Case(failures("answer_contribution"), 0.3, 0.7),
    "few_heads": Case(heads, None, 0.5),
    "better_than_random_heads": Case(better_heads(100), 0.5, 0.05),
    "earlier_attention_is_not_needed": Case(cut, 0.9, 0.5),
    "top_neurons_are_classified": Case(top_neurons, None, 0.3),
    "top_neurons_are_classified_above_chance": Case(top_neurons, 0.9, 0.3),
    "classification_has_low_recall": Case(recall, 0.3, 0.9),
    "catalogue_misses_little": Case(described, 0.95, 0.8),
    "catalogue_explains_as_much_at_equal_bits": Case(at_equal_bits, 0.1, -0.1),
    "bag_beats_helix": Case(beyond_helix, 0.2, -0.2),
    "steering_needs_these_neurons": Case(steered_beyond("ones", "labelled"), 0.3, 0.05),
    "carries_can_be_steered": Case(steered_beyond("carry", "separating"), 0.6, 0.3),
    "labels_tell_what_neurons_promote": Case(kept_labels, 0.75, 0.25),
    "value_vectors_tell_what_neurons_promote": Case(promoted, 0.8, 0.3),
    "small_circuit_is_faithful": Case(faithfulness("logit_effect", 0.014), None, 0.5),
    "few_neurons_of_the_first_mlp": Case(faithfulness("first_mlp_logit_effect", 0.01), 0.95, 0.5),
    "operators_have_neurons_of_their_own": Case(overlaps, None, 0.9),
    "operators_share_neurons_beyond_chance": Case(beyond_chance, 0.4, 0.02),
    "heuristics_appear_gradually": Case(appearance, 0.45, 0.05),
    "shared_neurons_carry_most": Case(trajectory, None, 0.2),
    "heuristics_carry_prompts_throughout": Case(trajectory, 0.4, -0.1),
    "late_mlps_carry_the_result": Case(importance("arithmetic", "result_varies"), None, 0.1),
    "late_mlps_carry_only_the_result": Case(importance("arithmetic", "result_fixed"), None, 0.3),
    "late_mlps_carry_results_in_words": Case(
        importance("number_words", "result_varies"),
        None,
        0.1,
    ),
    "late_mlps_carry_only_results_in_words": Case(
        importance("number_words", "result_fixed", baseline=0.278),
        None,
        0.3,
    ),
    "late_mlps_carry_the_result_of_another_operator": Case(
        importance("arithmetic", "operator_varies"),
        0.4,
        0.1,
    ),
    "retrieval_needs_no_late_mlps": Case(importance("retrieval", "query_varies"), None, 0.5),
    "facts_need_no_late_mlps": Case(importance("factual", "entity_varies"), None, 0.5),
    "fine_tuning_moves_results_to_late_mlps": Case(finetuned("importance"), None, 0.1),
    "fine_tuning_teaches_three_operands": Case(finetuned("correct"), None, 0.0),
    "last_mlp_writes_the_result": Case(last_mlp, 0.5, 0.05),
    "words_share_neurons": Case(overlap("coordinate", "number_words"), None, 0.1),
    "retrieval_shares_few_neurons": Case(overlap("coordinate", "retrieval"), None, 0.1),
    "facts_do_not": Case(overlap("coordinate", "factual"), None, 0.3),
    "words_share_hidden_neurons": Case(overlap("neuron", "number_words"), 0.4, 0.1),
    "retrieval_shares_few_hidden_neurons": Case(overlap("neuron", "retrieval"), 0.2, 0.1),
    "facts_share_no_hidden_neurons": Case(overlap("neuron", "factual"), 0.1, 0.3),
}


def judged(claim: str, tables: Tables, folder: Path) -> tuple[float | None, str]:
    """What a claim measures in these tables, and its verdict."""
    files = {}
    for name, rows in tables.items():
        files[name] = [folder / f"{name}.parquet"]
        write_table(rows, *files[name])
    answers = ledger.judged(ENTRIES[claim], Database(files, threads=1), SUBJECT)
    (row,) = (row for row in answers if row["operator"] in ("add", None))
    return row["measured"], row["verdict"]


def numbers(claim: str) -> set[float]:
    published = dict(ENTRIES[claim]["published"])
    del published["of"]
    return set(published.values())


def test_every_published_number_that_is_measured_has_a_case():
    for claim, entry in ENTRIES.items():
        if "query" in entry and numbers(claim):
            assert claim in CASES


@pytest.mark.parametrize("claim", CASES)
def test_the_published_value_is_reproduced_and_its_opposite_is_not(claim: str, tmp_path: Path):
    """It fails where the bar lies on the wrong side of the study, or something else is measured."""
    case = CASES[claim]
    expected = numbers(claim) if case.holds is None else {case.holds}
    assert expected
    for value in expected:
        measured = pytest.approx(value, abs=1e-4)
        assert judged(claim, case.made(value), tmp_path) == (measured, "reproduced")
    assert judged(claim, case.made(case.fails), tmp_path)[1] == "not reproduced"


@pytest.mark.parametrize(
    ("claim", "value", "made", "verdict"),
    [
        # Coordinates of 128: with this noise the published share is 3 of 13, which has p = 0.128.
        ("retrieval_shares_few_neurons", 3 / 13, overlap("coordinate", "retrieval", 13, 128), None),
        ("retrieval_shares_few_neurons", 6 / 13, overlap("coordinate", "retrieval", 13, 128), None),
        ("words_share_neurons", 3 / 13, noisy_words, None),
        ("words_share_neurons", 6 / 13, noisy_words, None),
        ("words_share_neurons", 6 / 13, overlap("coordinate", "number_words", 13, 128), True),
        ("words_share_neurons", 3 / 13, overlap("coordinate", "number_words", 13, 128), False),
        # Heuristics that share nearly all of their neurons cannot be tested.
        ("knockout_is_selective", 0.4, partial(selective, effective=1.7), None),
        ("knockout_is_selective_in_logits", 0.4, partial(selective, effective=1.0), None),
        # So many more of the layer score 0.6 that the top ones may be among them, or too few.
        ("top_neurons_are_classified", 0.7, partial(top_neurons, near_chance=30), None),
        ("top_neurons_are_classified", 0.7, partial(top_neurons, near_chance=5), False),
        ("top_neurons_are_classified", 0.9, partial(top_neurons, near_chance=5), True),
        # The circuit of all heads is the random circuit of as many.
        ("better_than_random_heads", 0.0, better_heads(1024), None),
        # Far fewer neurons than the study's share were measured.
        ("small_circuit_is_faithful", 1.0, faithfulness("logit_effect", 0.003), None),
        ("few_neurons_of_the_first_mlp", 1.0, faithfulness("first_mlp_logit_effect", 0.001), None),
        # The importance that the other one is compared with is a ratio of noise.
        (
            "late_mlps_carry_only_the_result",
            0.6,
            importance("arithmetic", "result_fixed", 3.0, is_noise=True),
            None,
        ),
        (
            "late_mlps_carry_only_results_in_words",
            0.6,
            importance("number_words", "result_fixed", 3.0, is_noise=True),
            None,
        ),
        # The last checkpoint's pairs appear at once, in the last step.
        ("heuristics_appear_gradually", 0.2, partial(appearance, last=0.3), False),
        # So few neurons that the interval has the bar in it.
        ("catalogue_misses_little", 0.95, partial(described, spread=0.3, count=6), None),
        ("labels_tell_what_neurons_promote", 0.52, kept_labels, None),
        ("labels_tell_what_neurons_promote", 0.7, partial(kept_labels, control=0.7), False),
        # Intervals overlap.
        ("catalogue_explains_as_much_at_equal_bits", 0.01, partial(at_equal_bits, width=0.1), None),
        ("bag_beats_helix", 0.01, beyond_helix, None),
        (
            "value_vectors_tell_what_neurons_promote",
            0.55,
            partial(promoted, spread=0.3, count=6),
            None,
        ),
        # Another neuron's value vector tells nearly as much.
        ("value_vectors_tell_what_neurons_promote", 0.8, partial(promoted, control=0.7), False),
        # Two halves of one question's pairs agree no better than chance: the rankings are noise.
        ("words_share_neurons", 0.5, overlap("coordinate", "number_words", ceiling=0.11), None),
        ("words_share_neurons", 0.1, overlap("coordinate", "number_words", ceiling=0.11), None),
        ("retrieval_shares_few_neurons", 0.3, overlap("coordinate", "retrieval", ceiling=0), None),
        ("facts_do_not", 0.098, overlap("coordinate", "factual", ceiling=0.11), None),
        ("words_share_hidden_neurons", 0.1, overlap("neuron", "number_words", ceiling=0.1), None),
        ("facts_share_no_hidden_neurons", 0.1, overlap("neuron", "factual", ceiling=0.1), None),
    ],
)
def test_a_test_without_power_says_nothing(
    claim: str,
    value: float,
    made: Callable[[float], Tables],
    verdict: bool | None,
    tmp_path: Path,
):
    expected = (pytest.approx(value), ledger.VERDICTS[verdict])
    assert judged(claim, made(value), tmp_path) == expected


def test_a_circuit_of_which_nothing_is_cut_says_nothing(tmp_path: Path):
    whole = cut(1.0)["cut_faithfulness"].filter(circuit="circuit")
    expected = (None, ledger.VERDICTS[None])
    assert judged("earlier_attention_is_not_needed", {"cut_faithfulness": whole}, tmp_path) == (
        expected
    )


@pytest.mark.parametrize(
    ("claim", "place"),
    [
        ("few_neurons", ""),
        ("small_circuit_is_faithful", ""),
        ("few_neurons_of_the_first_mlp", "first_mlp_"),
    ],
)
def test_where_few_neurons_are_patched_circuits_are_those_of_attribution(
    claim: str, place: str, tmp_path: Path
):
    few = faithfulness(f"{place}logit_effect", 0.001)(1.0)
    for value, verdict in ((0.95, "reproduced"), (0.5, "not reproduced")):
        many = faithfulness(f"{place}attribution", 0.03 if claim == "few_neurons" else 0.012)(value)
        both = pl.concat([few["faithfulness"], many["faithfulness"]])
        assert judged(claim, many | {"faithfulness": both}, tmp_path)[1] == verdict


@pytest.mark.parametrize(
    "claim", ["top_neurons_are_classified", "top_neurons_are_classified_above_chance"]
)
def test_a_sample_of_the_neurons_has_no_known_top(claim: str, tmp_path: Path):
    whole, sample = top_neurons(0.9), top_neurons(0.9, width=20_000)
    assert judged(claim, whole, tmp_path)[1] == "reproduced"
    assert judged(claim, sample, tmp_path)[1] == "not testable here"


def test_every_other_query_gives_a_row_of_a_real_model(micro: Path):
    database = connect(micro / "data")
    not_of_the_project = {"digits_have_circuits_of_their_own"}
    for claim in ENTRIES.keys() - CASES.keys() - not_of_the_project:
        query = ENTRIES[claim].get("query")
        if query:
            planted = database.sql(query, subject="planted").pl()
            trained = database.sql(query, subject="abacus").pl()
            assert len(planted) + len(trained) > 0, claim

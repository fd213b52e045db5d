"""The pipeline on the synthetic model finds the planted heuristics, and ablations confirm them."""

from pathlib import Path

import polars as pl

KEYS = ["operator", "layer", "neuron"]


def planted(micro: Path, table: str) -> pl.DataFrame:
    return pl.read_parquet(micro / f"data/planted/{table}.parquet")


def truth(micro: Path) -> pl.DataFrame:
    return pl.read_parquet(micro / "data/subjects/planted_truth.parquet")


def test_planted_heuristics_are_found_and_noise_is_not_labelled(micro: Path):
    scores = planted(micro, "heuristics/scores").filter(side="top")
    exact = truth(micro).filter(grade="exact")
    matched = exact.join(scores, on=[*KEYS, "heuristic"], how="left")
    assert len(matched) > 0
    assert (matched["chance_corrected"] == 1).all()  # Algorithm 1 finds all of them
    labels = planted(micro, "heuristics/labels")
    right = exact.join(labels, on=[*KEYS, "heuristic"])
    # Without control for chance, for which 20 operands are too few. The table label_setting has the
    # recall at 300 operands.
    assert right.select(KEYS).n_unique() / exact.select(KEYS).n_unique() > 0.9
    noise = truth(micro).filter(grade="noise").select(KEYS).unique()
    assert len(noise) > 50
    labelled = noise.join(labels.select(KEYS).unique(), on=KEYS)
    assert len(labelled) / len(noise) <= 0.1


def test_the_setting_follows_from_the_calibration(micro: Path):
    [setting] = pl.read_parquet(micro / "data/heuristics/label_setting.parquet").rows(named=True)
    calibration = pl.read_parquet(micro / "data/heuristics/label_calibration.parquet")
    rows = calibration.filter(pl.col("labels") > 0, grade="all", kind="all", level=setting["level"])
    f1 = 2 * rows["right_labels"] / (rows["labels"] + rows["planted"])
    assert setting["f1"] == f1.max()
    for subject in ("abacus", "planted"):
        labels = pl.read_parquet(micro / f"data/{subject}/heuristics/labels.parquet")
        assert len(labels) > 0
        assert (labels["chance_corrected"] >= setting["threshold"] - 1e-6).all()
        assert (labels["q_value"] <= setting["level"]).all()


def test_ablating_a_planted_heuristic_breaks_exactly_its_prompts(micro: Path):
    """Heuristics that write the answers, and whose neurons were all labelled."""
    keys = ["operator", "heuristic"]
    writers = truth(micro).filter("votes").select(*KEYS, "heuristic")
    labels = planted(micro, "heuristics/labels").select(*KEYS, "heuristic", is_labelled=True)
    both = writers.join(labels, on=[*KEYS, "heuristic"], how="left")
    is_whole = pl.col("is_labelled").fill_null(False).all()
    whole = both.group_by(keys).agg(is_whole).filter("is_labelled")
    ablations = planted(micro, "bag/knockouts_by_heuristic")
    ablated = ablations.filter(arm="heuristic", criterion="label").join(whole, on=keys)
    associated = ablated.filter(pl.col("prompts_associated") > 0)
    assert associated.select(keys).n_unique() >= 3
    assert set(associated["ablation"]) == {"zero", "mean"}
    assert (associated["accuracy_associated_before"] == 1).all()
    assert (associated["accuracy_associated"] == 0).all()
    assert (ablated["accuracy_other"] == 1).all()
    controls = ablations.filter(pl.col("prompts_associated") > 0, arm="control", ablation="zero")
    assert len(controls) > 0
    assert controls["accuracy_associated"].mean() > 0.95

"""Nothing is wrong in silence, whatever family, tokenizer, template, dtype and damage come together. `python -m tests.combinations` tries 300."""

from pathlib import Path

import pytest

from tests import combinations
from tests.combinations import Combination

ANOTHER = ("a tensor of zeros", "another weight", "another activation", "another epsilon", "tokens swapped")  # models as whole as the first
PLAIN = ("{op1}{symbol}{op2}=", True)


def test_random_combinations_are_refused_in_a_sentence_or_exact():
    found = combinations.results(25, seed=7)
    assert not [(str(one), said) for one, said in found if said.startswith("WRONG")]
    assert {said.partition(":")[0] for _, said in found} == {"exact", "refused"}


@pytest.mark.parametrize("damage", combinations.DAMAGES)
def test_each_damage_of_a_usual_model_is_refused_or_changes_it_as_it_says(tmp_path: Path, damage: str):
    one = Combination("llama", "words", *PLAIN, "float32", damage, sums=False)
    said = combinations.outcome(one, tmp_path / "model", 0)
    assert (said == "exact") == (damage in {"none", *ANOTHER})
    with_sums = combinations.outcome(Combination("llama", "words", *PLAIN, "float32", damage, sums=True), tmp_path / "again", 0)
    assert (with_sums == "exact") == (damage == "none")


@pytest.mark.parametrize("dtype", combinations.ALLOWED)
def test_a_mixture_of_experts_is_right_in_every_dtype(tmp_path: Path, dtype: str):
    assert combinations.outcome(Combination("mixtral", "words", *PLAIN, dtype, "none", sums=True), tmp_path / "model", 0) == "exact"


def test_a_router_that_transformers_keeps_in_float32_is_computed_in_float64(tmp_path: Path):
    assert combinations.outcome(Combination("hunyuan_v1_moe", "words", *PLAIN, "float64", "none", sums=True), tmp_path, 0) == "exact"

"""No model is wrong without an error, whatever its family, tokenizer, template, dtype and damage.

`python -m tests.combinations` tries 300 combinations.
"""

from pathlib import Path

import pytest

from tests import combinations
from tests.combinations import Combination

# damages that leave a whole model, though another one
ANOTHER = {
    "a tensor of zeros",
    "another weight",
    "another activation",
    "another epsilon",
    "tokens swapped",
}
TEMPLATE = "{op1}{symbol}{op2}="


def result(
    folder: Path, family: str, dtype: str = "float32", damage: str = "none", sums: bool = True
) -> str:
    combination = Combination(family, "words", TEMPLATE, True, dtype, damage, sums)
    return combinations.outcome(combination, folder, 0)


def test_random_combinations_are_refused_in_a_sentence_or_exact():
    outcomes = combinations.results(25, seed=7)
    wrong = [(str(combination), text) for combination, text in outcomes if text.startswith("WRONG")]
    assert not wrong
    assert {text.partition(":")[0] for _, text in outcomes} == {"exact", "refused"}


@pytest.mark.parametrize("damage", combinations.DAMAGES)
def test_damage_to_a_usual_model_is_refused_unless_another_model_results(
    tmp_path: Path, damage: str
):
    unlisted = result(tmp_path / "model", "llama", damage=damage, sums=False)
    assert (unlisted == "exact") == (damage in {"none", *ANOTHER})
    listed = result(tmp_path / "again", "llama", damage=damage)
    assert (listed == "exact") == (damage == "none")


@pytest.mark.parametrize("dtype", combinations.ALLOWED)
def test_a_mixture_of_experts_is_right_in_every_dtype(tmp_path: Path, dtype: str):
    assert result(tmp_path / "model", "mixtral", dtype) == "exact"


def test_a_router_that_transformers_keeps_in_float32_is_computed_in_float64(tmp_path: Path):
    assert result(tmp_path, "hunyuan_v1_moe", "float64") == "exact"

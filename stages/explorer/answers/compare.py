"""Two subjects side by side: how often they are right, what their neurons stand for, and the same neuron or prompt in both."""

import polars as pl

from stages.explorer.project import Project

ACCURACY = """
    select operator,
        sum(accuracy * cells) filter (subject = $left) / sum(cells) filter (subject = $left) as left_accuracy,
        sum(accuracy * cells) filter (subject = $right) / sum(cells) filter (subject = $right) as right_accuracy
    from accuracy
    where subject in ($left, $right)
    group by operator
    order by operator
"""
HEURISTICS = """
    with
        layers as (
            select distinct layer from scores where subject = $left and operator = $operator
            intersect select distinct layer from scores where subject = $right and operator = $operator
        ),
        counted as (
            select {by} as heuristic,
                count(distinct (layer, neuron)) filter (subject = $left) as left_neurons,
                count(distinct (layer, neuron)) filter (subject = $right) as right_neurons
            from scores join layers using (layer)
            where subject in ($left, $right) and operator = $operator and corrected >= (select max(threshold) from label_setting)
            group by all
        )
    select * from counted
    where left_neurons + right_neurons > 0
    order by abs(left_neurons - right_neurons) desc, heuristic
    limit $count
"""
CELLS = """
    select op1, op2, result, mine.predicted as left_says, other.predicted as right_says,
        mine.answer_probability as left_probability, other.answer_probability as right_probability
    from predictions as mine
    join predictions as other using (operator, op1, op2)
    join cells using (operator, op1, op2)
    where mine.subject = $left and other.subject = $right and operator = $operator and mine.correct <> other.correct
    order by abs(mine.answer_probability - other.answer_probability) desc, op1, op2
    limit 200
"""


def accuracy(project: Project, left: str, right: str) -> pl.DataFrame:
    """Share of cells answered right, by operator."""
    for subject in (left, right):
        project.need(subject, "accuracy")
    return project.ask(ACCURACY, left=left, right=right)


def heuristics(project: Project, given: dict, by: str, most: int) -> pl.DataFrame:
    """How many neurons of the layers that both have pass the threshold, by heuristic or by kind, the largest differences first."""
    for subject in (given["left"], given["right"]):
        project.need(subject, "scores")
    return project.ask(HEURISTICS.format(by=by), **given, count=most)


def cells(project: Project, given: dict) -> pl.DataFrame:
    """Cells that one answers right and the other does not."""
    return project.ask(CELLS, **given)

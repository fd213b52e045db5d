"""The field's words, of which tables, settings and figures take theirs; each list in the order in which it is shown."""

from typing import Literal, get_args

# The questions that the pipeline asks, in the order of its data: imports and data run this way, never back.
CHAPTERS = (
    "corpus", "subjects", "store", "circuit", "neurons", "heuristics", "bag", "trajectory", "mediation", "theories", "claims", "report",
)  # fmt: skip

Operator = Literal["add", "subtract", "multiply", "divide"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
ROLES = (
    "op1",
    "operator",
    "op2",
    "last",
)  # of tokens in a prompt of the grid; positions are named after them
QUANTITIES = ("op1", "op2", "result")  # numbers of a cell, which a heuristic may be about

Arithmetic = Literal[
    "arithmetic", "number_words", "three_operands"
]  # tasks that ask for a calculation
Task = Literal[Arithmetic, "retrieval", "factual"]
ARITHMETIC: tuple[Arithmetic, ...] = get_args(Arithmetic)
TASKS: tuple[Task, ...] = get_args(Task)  # a user's own come behind them
ARITHMETIC_CONDITIONS = (
    "result_varies",
    "result_fixed",
    "operator_varies",
)  # how the two prompts of a pair differ in such a task
CONDITIONS = (*ARITHMETIC_CONDITIONS, "query_varies", "entity_varies")

# Ways of counting a heuristic's neurons, from the strictest on (see heuristic_neurons.sql). A label leaves out what says the same as a
# better one, and with it neurons of a prompt's heuristics: whatever is about single prompts or cells takes the others.
MEMBERSHIPS = ("label", "called", "scored")
OVERLAPPING_MEMBERSHIPS = ("called", "scored")

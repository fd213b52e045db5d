"""Names that tables, settings and figures use; each list is in the order in which it is shown."""

from typing import Literal, get_args

# The questions of the pipeline, in the order of its data: imports and data run this way only.
CHAPTERS = (
    "corpus", "subjects", "store", "circuit", "neurons", "heuristics",
    "bag", "trajectory", "mediation", "theories", "claims", "report",
)  # fmt: skip

Operator = Literal["add", "subtract", "multiply", "divide"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
# roles of tokens in a prompt of the grid; positions are named after them
ROLES = ("op1", "operator", "op2", "last")
QUANTITIES = ("op1", "op2", "result")  # numbers of a cell that a heuristic may be about

# tasks that ask for a calculation
Arithmetic = Literal["arithmetic", "number_words", "three_operands"]
Task = Literal[Arithmetic, "retrieval", "factual"]
ARITHMETIC: tuple[Arithmetic, ...] = get_args(Arithmetic)
TASKS: tuple[Task, ...] = get_args(Task)  # a user's own tasks follow these
# how the two prompts of a pair differ in an arithmetic task
ARITHMETIC_CONDITIONS = ("result_varies", "result_fixed", "operator_varies")
CONDITIONS = (*ARITHMETIC_CONDITIONS, "query_varies", "entity_varies")

# Criteria by which a neuron counts for a heuristic, from the strictest (see heuristic_neurons.sql).
# A label leaves out a heuristic that a better one makes redundant, and with it neurons of a
# prompt's heuristics. So analyses of single prompts or cells use the other two criteria.
CRITERIA = ("label", "fdr", "threshold")
OVERLAPPING_CRITERIA = ("fdr", "threshold")

"""Settings of the subjects that are made from others by training them further."""

from stages.lib.params.sections import Count, ParamsError, check, read
from stages.lib.params.training import Optimisation
from stages.lib.words import Task

SECTION = "finetune"


class Finetuning(Optimisation):
    source: str
    before: str
    bos: bool
    task: Task
    batch: Count
    evaluation_prompts: Count


def load_finetuning(name: str) -> Finetuning:
    """The checked entry of this name in the section finetune. Raises ParamsError naming those there are."""
    known = read().get(SECTION) or {}
    if name not in known:
        raise ParamsError(f"nothing to fine-tune is called {name!r}; params.yaml has {', '.join(known) or 'nothing under ' + SECTION}")
    return check(Finetuning, known[name], f"{SECTION}.{name}")

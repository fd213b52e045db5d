"""List the views by the first part of their address."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part
from stages.explorer.question import Question
from stages.explorer.views import compare, find, neuron, prompt, silence


@dataclass(frozen=True)
class View:
    """A page: its fields, which may depend on the question, its content, and slower parts.

    later: parts by name, which are filled in once the page shows the content around them.
    """

    path: str
    title: str
    fields: Callable[[Explorer, Question], list[Field]]
    content: Callable[[Explorer, Question], Part]
    later: Mapping[str, Callable[[Explorer, Question], Part]] = field(default_factory=dict)


LISTED = (
    View("prompt", "A prompt", prompt.fields, prompt.content),
    View("silence", "Ablate it", silence.fields, silence.content),
    View("neuron", "A neuron", neuron.fields, neuron.content, neuron.LATER),
    View("find", "Find", find.fields, find.content),
    View("compare", "Compare", compare.fields, compare.content, compare.LATER),
)
VIEWS = {view.path: view for view in LISTED}

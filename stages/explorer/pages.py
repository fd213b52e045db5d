"""The views, by the first part of their address. A view has fields, which may depend on what is asked, and content."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stages.explorer.explorer import Explorer
from stages.explorer.parts import Field, Part
from stages.explorer.question import Question
from stages.explorer.views import compare, find, neuron, prompt, silence


@dataclass(frozen=True)
class View:
    path: str
    title: str
    fields: Callable[[Explorer, Question], list[Field]]
    content: Callable[[Explorer, Question], Part]
    later: Mapping[str, Callable[[Explorer, Question], Part]] = field(default_factory=dict)  # what its content leaves out at first, by name


VIEWS = {
    view.path: view
    for view in (
        View("prompt", "A prompt", prompt.fields, prompt.content),
        View("silence", "Ablate it", silence.fields, silence.content),
        View("neuron", "A neuron", neuron.fields, neuron.content, neuron.LATER),
        View("find", "Find", find.fields, find.content),
        View("compare", "Compare", compare.fields, compare.content, compare.LATER),
    )
}

"""Several GPUs on a machine that has none: tensors are on the CPU, say that they are elsewhere, and refuse to meet as on GPUs.

    with Devices():
        spread(model, {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, …})

It follows what CUDA refuses (operands, indices, and NumPy), and what it does not wait for: a copy to pinned memory that nobody waits for is
made at the last moment. Layers are spread by accelerate itself. It is no proof for CUDA.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from accelerate import dispatch_model
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel

FACTS = {
    "size",
    "dim",
    "numel",
    "stride",
    "__len__",
    "__repr__",
    "__format__",
    "data_ptr",
    "element_size",
    "is_floating_point",
    "is_complex",
    "is_contiguous",
    "item",
    "tolist",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
}
MADE_LIKE = ("new_", "_like")
NUMPY = {"numpy", "__array__"}


class ElsewhereError(RuntimeError):
    """Tensors of several devices meet."""


def place(x: Any) -> int | None:
    """The number of the device that a tensor says it is on, None for the CPU."""
    return getattr(x, "_place", None)


def put(x: Any, where: int | None) -> Any:
    if isinstance(x, torch.Tensor):
        x._place = where  # type: ignore[attr-defined]
    return x


class Event:
    """What GPUs have come to; copies from them that nobody has waited for are nonsense."""

    asked: ClassVar[list[tuple[torch.Tensor, torch.Tensor]]] = []  # into what, of what

    def record(self, _: Any = None) -> None:
        self.before = len(self.asked)

    def synchronize(self) -> None:
        for into, x in self.asked[: self.before]:
            into.copy_(x)
        for into, _ in self.asked[self.before :]:
            into.fill_(torch.nan)


class Stream:
    """Work beside a GPU's other work; here everything is done in turn."""

    def __init__(self, _: Any = None) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass


def _made_where_it_was(new: Any) -> Any:
    """How a weight is made of a tensor, which no mode sees."""
    return lambda kind, data=None, *more, **named: put(new(kind, data, *more, **named), place(data))


CUDA: dict[str, Any] = {  # what stands for torch.cuda's own
    "Event": Event,
    "Stream": Stream,
    "stream": lambda _: nullcontext(),
    "current_stream": lambda _=None: None,
}


class Devices(TorchFunctionMode):
    """Within it, what is computed is where its operands are."""

    def __enter__(self) -> Any:
        self.kept = {name: getattr(torch.cuda, name) for name in CUDA}
        self.new, self.record = nn.Parameter.__new__, torch.Tensor.record_stream
        torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign, assignment]
        for name, stand_in in CUDA.items():
            setattr(torch.cuda, name, stand_in)
        nn.Parameter.__new__ = _made_where_it_was(self.new)  # type: ignore[method-assign]
        Event.asked.clear()
        return super().__enter__()

    def __exit__(self, *of: Any) -> None:
        for name, real in self.kept.items():
            setattr(torch.cuda, name, real)
        nn.Parameter.__new__ = self.new  # type: ignore[method-assign]
        torch.Tensor.record_stream = self.record  # type: ignore[method-assign]
        super().__exit__(*of)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(function, "__name__", "")
        first = args[0] if args else None
        if (
            name == "__get__"
            and getattr(function, "__self__", None) is torch.Tensor.device
            and place(first) is not None
        ):
            return torch.device("cuda", place(first))
        if name in ("__get__", "__deepcopy__"):
            return put(function(*args, **named), place(first))
        if name in NUMPY and place(first) is not None:
            raise ElsewhereError("numpy() of a tensor on a GPU")
        if name in FACTS | NUMPY:
            return function(*args, **named)
        if special := getattr(
            self,
            {
                "to": "_moved",
                "cpu": "_moved",
                "cuda": "_moved",
                "copy_": "_copied",
                "grad": "_gradients",
            }.get(name, ""),
            None,
        ):
            return special(function, *args, **named)
        return self._computed(function, name, args, named)

    def _computed(self, function: Any, name: str, args: tuple, named: dict) -> Any:
        first = args[0] if args else None
        asked = named.pop("device", None)
        named.pop("pin_memory", None)  # nothing copies by itself here
        if name in ("__getitem__", "__setitem__"):
            self._indexed(name, *args)
            where = place(first)
        elif asked is not None:
            where = torch.device(asked).index
            named["device"] = "cpu"
        elif name.startswith(MADE_LIKE[0]) or name.endswith(MADE_LIKE[1]):
            where = place(first)
        else:
            where = self._common(name, tree_leaves((args, named)))
        return tree_map(lambda x: put(x, where), function(*args, **named))

    @staticmethod
    def _common(name: str, operands: list) -> int | None:
        """Where all operands are; numbers, tensors without axes, may be on the CPU."""
        places = {
            place(x)
            for x in operands
            if isinstance(x, torch.Tensor) and (x.dim() or place(x) is not None)
        }
        if len(places) > 1:
            raise ElsewhereError(f"{name} of tensors on {sorted(map(str, places))}")
        return places.pop() if places else None

    @staticmethod
    def _copied(
        _: Any, into: torch.Tensor, x: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        """A copy between any devices. One from a GPU that is not waited for is made when its event is, and is nonsense until then."""
        if not non_blocking or place(x) is None or place(into) is not None:
            return into.copy_(x)
        Event.asked.append((into.fill_(torch.nan), put(x.clone(), None)))
        return into

    @staticmethod
    def _indexed(name: str, x: torch.Tensor, at: Any, value: Any = None) -> None:
        indices = [i for i in tree_leaves(at) if isinstance(i, torch.Tensor)]
        if any(place(i) not in (None, place(x)) for i in indices):
            raise ElsewhereError(
                f"indices of a tensor on {place(x)} are on {[place(i) for i in indices]}"
            )
        if isinstance(value, torch.Tensor) and value.dim() and place(value) != place(x):
            raise ElsewhereError(
                f"{name}: a tensor on {place(value)} is put into one on {place(x)}"
            )

    @staticmethod
    def _gradients(
        function: Any, of: torch.Tensor, by: Sequence[torch.Tensor], **how: Any
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of a number by tensors anywhere, each where its tensor is."""
        return tuple(
            put(gradient, place(x)) for gradient, x in zip(function(of, by, **how), by, strict=True)
        )

    @staticmethod
    def _moved(function: Any, x: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        where, kinds = place(x), []
        for asked in (*args, *named.values()):
            if isinstance(asked, torch.Tensor):
                where, kinds = place(asked), [asked.dtype]
            elif isinstance(asked, str | torch.device):
                where = torch.device(asked).index
            elif isinstance(asked, torch.dtype):
                kinds = [asked]
        where = None if function.__name__ == "cpu" else where
        out = torch.Tensor.to(x, *kinds) if kinds else x
        if out is x and where != place(x):
            out = (
                nn.Parameter(x.clone(), x.requires_grad)
                if isinstance(x, nn.Parameter)
                else x.clone()
            )
        return put(out, where)


def spread(model: PreTrainedModel, places: Mapping[str, int]) -> None:
    """Puts modules, by name, and all below them, on devices, as transformers does when it loads a model."""
    home = place_of(model, places)
    named = {name: f"cuda:{where}" for name, where in places.items()}
    dispatch_model(
        model,
        named,
        main_device=f"cuda:{home}",
        skip_keys=model._skip_keys_device_placement,
        force_hooks=True,
    )


def place_of(model: PreTrainedModel, places: Mapping[str, int]) -> int:
    """Where a model's embeddings are, and so what it is given."""
    embeddings = next(
        name for name, module in model.named_modules() if module is model.get_input_embeddings()
    )
    return next(
        where
        for name, where in places.items()
        if embeddings == name or embeddings.startswith(f"{name}.")
    )

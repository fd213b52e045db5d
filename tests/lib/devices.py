"""Simulate several GPUs on a machine that has none.

Tensors stay on the CPU, report another device, and refuse to meet as on GPUs.

    with Devices():
        spread(model, {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, …})

The simulation follows what CUDA refuses (operands, indices, and NumPy). It also follows what CUDA
does not wait for: a copy to pinned memory happens only when its event is waited for. accelerate
itself spreads the layers. The simulation does not prove anything about CUDA.
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

# Methods that only describe a tensor.
FACTS = {
    *("size", "dim", "numel", "stride", "data_ptr", "element_size"),
    *("is_floating_point", "is_complex", "is_contiguous", "item", "tolist"),
    *("__len__", "__repr__", "__format__", "__bool__", "__float__", "__int__", "__index__"),
}
MADE_LIKE = ("new_", "_like")
NUMPY = {"numpy", "__array__"}


class ElsewhereError(RuntimeError):
    """Tensors of several devices meet."""


def place(x: Any) -> int | None:
    """Return the number of the device that a tensor reports, None for the CPU."""
    return getattr(x, "_place", None)


def put(x: Any, device: int | None) -> Any:
    """Let a tensor report a device; return it."""
    if isinstance(x, torch.Tensor):
        x._place = device  # type: ignore[attr-defined]
    return x


class Event:
    """A point in the work of the GPUs; copies from them are NaN until they are waited for."""

    copies: ClassVar[list[tuple[torch.Tensor, torch.Tensor]]] = []  # target and source

    def record(self, _: Any = None) -> None:
        self.before = len(self.copies)

    def synchronize(self) -> None:
        for target, source in self.copies[: self.before]:
            target.copy_(source)
        for target, _ in self.copies[self.before :]:
            target.fill_(torch.nan)


class Stream:
    """A stream of a GPU; the simulation does everything in turn."""

    def __init__(self, _: Any = None) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass


def _weight_maker(new: Any) -> Any:
    """Return a constructor of weights that keeps their device; no mode sees the original."""
    return lambda kind, data=None, *more, **named: put(new(kind, data, *more, **named), place(data))


CUDA: dict[str, Any] = {  # stand-ins for members of torch.cuda
    "Event": Event,
    "Stream": Stream,
    "stream": lambda _: nullcontext(),
    "current_stream": lambda _=None: None,
}


class Devices(TorchFunctionMode):
    """Let results be on the device of their operands, within the context."""

    special: ClassVar = {
        "to": "_moved",
        "cpu": "_moved",
        "cuda": "_moved",
        "copy_": "_copied",
        "grad": "_gradients",
    }

    def __enter__(self) -> Any:
        self.kept = {name: getattr(torch.cuda, name) for name in CUDA}
        self.new, self.record = nn.Parameter.__new__, torch.Tensor.record_stream
        torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign, assignment]
        for name, stand_in in CUDA.items():
            setattr(torch.cuda, name, stand_in)
        nn.Parameter.__new__ = _weight_maker(self.new)  # type: ignore[method-assign]
        Event.copies.clear()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for name, real in self.kept.items():
            setattr(torch.cuda, name, real)
        nn.Parameter.__new__ = self.new  # type: ignore[method-assign]
        torch.Tensor.record_stream = self.record  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(function, "__name__", "")
        first = args[0] if args else None
        is_device = getattr(function, "__self__", None) is torch.Tensor.device
        if name == "__get__" and is_device and place(first) is not None:
            return torch.device("cuda", place(first))
        if name in ("__get__", "__deepcopy__"):
            return put(function(*args, **named), place(first))
        if name in NUMPY and place(first) is not None:
            raise ElsewhereError("numpy() of a tensor on a GPU")
        if name in FACTS | NUMPY:
            return function(*args, **named)
        if name in self.special:
            return getattr(self, self.special[name])(function, *args, **named)
        return self._computed(function, name, args, named)

    def _computed(self, function: Any, name: str, args: tuple, named: dict) -> Any:
        """Compute on one device: that of the operands, or the one that `device` names."""
        first = args[0] if args else None
        device = named.pop("device", None)
        named.pop("pin_memory", None)  # the simulation copies nothing by itself
        if name in ("__getitem__", "__setitem__"):
            self._check_indices(name, *args)
            target = place(first)
        elif device is not None:
            target = torch.device(device).index
            named["device"] = "cpu"
        elif name.startswith(MADE_LIKE[0]) or name.endswith(MADE_LIKE[1]):
            target = place(first)
        else:
            target = self._common(name, tree_leaves((args, named)))
        return tree_map(lambda x: put(x, target), function(*args, **named))

    @staticmethod
    def _common(name: str, operands: list) -> int | None:
        """Return the device of all operands; numbers (tensors without axes) may be on the CPU."""
        places = set()
        for x in operands:
            if isinstance(x, torch.Tensor) and (x.dim() or place(x) is not None):
                places.add(place(x))
        if len(places) > 1:
            raise ElsewhereError(f"{name} of tensors on {sorted(map(str, places))}")
        return places.pop() if places else None

    @staticmethod
    def _copied(
        _: Any, target: torch.Tensor, x: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        """Copy between any devices. A copy from a GPU without waiting is NaN until its event."""
        if not non_blocking or place(x) is None or place(target) is not None:
            return target.copy_(x)
        Event.copies.append((target.fill_(torch.nan), put(x.clone(), None)))
        return target

    @staticmethod
    def _check_indices(name: str, x: torch.Tensor, at: Any, value: Any = None) -> None:
        """Raise ElsewhereError if indices, or a tensor to be stored, are on another device."""
        for index in tree_leaves(at):
            if isinstance(index, torch.Tensor) and place(index) not in (None, place(x)):
                raise ElsewhereError(f"an index on {place(index)} of a tensor on {place(x)}")
        if isinstance(value, torch.Tensor) and value.dim() and place(value) != place(x):
            raise ElsewhereError(f"{name}: a tensor on {place(value)} for one on {place(x)}")

    @staticmethod
    def _gradients(
        function: Any, number: torch.Tensor, by: Sequence[torch.Tensor], **how: Any
    ) -> tuple[torch.Tensor, ...]:
        """Return gradients of a number by tensors anywhere, each on its tensor's device."""
        return tuple(map(put, function(number, by, **how), map(place, by)))

    @staticmethod
    def _moved(function: Any, x: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        device, kinds = place(x), []
        for wanted in (*args, *named.values()):
            if isinstance(wanted, torch.Tensor):
                device, kinds = place(wanted), [wanted.dtype]
            elif isinstance(wanted, str | torch.device):
                device = torch.device(wanted).index
            elif isinstance(wanted, torch.dtype):
                kinds = [wanted]
        if function.__name__ == "cpu":
            device = None
        out = torch.Tensor.to(x, *kinds) if kinds else x
        if out is x and device != place(x):
            out = x.clone()
            if isinstance(x, nn.Parameter):
                out = nn.Parameter(out, x.requires_grad)
        return put(out, device)


def spread(model: PreTrainedModel, places: Mapping[str, int]) -> None:
    """Put modules, by name, on devices, as transformers does when it loads a model."""
    named = {name: f"cuda:{device}" for name, device in places.items()}
    dispatch_model(
        model,
        named,
        main_device=f"cuda:{place_of(model, places)}",
        skip_keys=model._skip_keys_device_placement,
        force_hooks=True,
    )


def place_of(model: PreTrainedModel, places: Mapping[str, int]) -> int:
    """Return the device of a model's embeddings, where its inputs must be."""
    names = {id(module): name for name, module in model.named_modules()}
    embeddings = names[id(model.get_input_embeddings())]
    for name, device in places.items():
        if embeddings == name or embeddings.startswith(f"{name}."):
            return device
    raise KeyError(embeddings)

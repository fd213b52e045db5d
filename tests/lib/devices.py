"""Several devices on a machine that has none: tensors are on the CPU, say that they are elsewhere, and refuse to meet as on GPUs.

    with Devices():
        spread(model, {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, …})

It follows what CUDA refuses (operands, indices, and NumPy), and what the hooks of a model spread by accelerate move. It is no proof for CUDA.
"""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

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
}
MADE_LIKE = ("new_", "_like")


class ElsewhereError(RuntimeError):
    """Tensors of several devices meet."""


def place(x: Any) -> int | None:
    """The number of the device that a tensor says it is on, None for the CPU."""
    return getattr(x, "_place", None)


def put(x: Any, where: int | None) -> Any:
    if isinstance(x, torch.Tensor):
        x._place = where  # type: ignore[attr-defined]
    return x


class Devices(TorchFunctionMode):
    """Within it, what is computed is where its operands are."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        named, name = dict(kwargs or {}), getattr(function, "__name__", "")
        first = args[0] if args else None
        if name == "__get__" and getattr(function, "__self__", None) is torch.Tensor.device and place(first) is not None:
            return torch.device("cuda", place(first))
        if name == "__get__":
            return put(function(*args, **named), place(first))
        if name in FACTS:
            return function(*args, **named)
        if name in ("to", "cpu", "cuda"):
            return self._moved(name, args, named)
        if name == "numpy" and place(first) is not None:
            raise ElsewhereError("numpy() of a tensor on a GPU")
        if name == "copy_":  # between any devices
            return function(*args, **named)
        asked = named.pop("device", None)
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
        places = {place(x) for x in operands if isinstance(x, torch.Tensor) and (x.dim() or place(x) is not None)}
        if len(places) > 1:
            raise ElsewhereError(f"{name} of tensors on {sorted(map(str, places))}")
        return places.pop() if places else None

    @staticmethod
    def _indexed(name: str, x: torch.Tensor, at: Any, value: Any = None) -> None:
        indices = [i for i in tree_leaves(at) if isinstance(i, torch.Tensor)]
        if any(place(i) not in (None, place(x)) for i in indices):
            raise ElsewhereError(f"indices of a tensor on {place(x)} are on {[place(i) for i in indices]}")
        if isinstance(value, torch.Tensor) and value.dim() and place(value) != place(x):
            raise ElsewhereError(f"{name}: a tensor on {place(value)} is put into one on {place(x)}")

    @staticmethod
    def _moved(name: str, args: tuple, named: dict) -> torch.Tensor:
        x, where, kinds = args[0], place(args[0]), []
        for asked in (*args[1:], *named.values()):
            if isinstance(asked, torch.Tensor):
                where, kinds = place(asked), [asked.dtype]
            elif isinstance(asked, str | torch.device):
                where = torch.device(asked).index
            elif isinstance(asked, torch.dtype):
                kinds = [asked]
        where = None if name == "cpu" else where
        out = torch.Tensor.to(x, *kinds) if kinds else x
        return put(out.clone() if out is x and where != place(x) else out, where)


def spread(model: nn.Module, places: Mapping[str, int]) -> None:
    """Says of modules, by name, and of all below them, on which device they are; what is handed to one of them is moved there."""
    for name, where in places.items():
        module = model.get_submodule(name)
        for tensor in (*module.parameters(), *module.buffers()):
            put(tensor, where)
        module.forward = _moving(module.forward, lambda _, where=where: where)  # type: ignore[method-assign]
    model.forward = _moving(model.forward, lambda _: None, lambda operands: place(operands[0]))  # type: ignore[method-assign]


def _moving(forward: Any, into: Any, back: Any = None) -> Any:
    """Moves what a module is given, if `into` says where to, and what it returns, if `back` does."""

    @functools.wraps(forward)
    def moving(*args: Any, **kwargs: Any) -> Any:
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        where = into(operands)

        def move(to: int, x: Any) -> Any:
            return x.to(torch.device("cuda", to)) if isinstance(x, torch.Tensor) else x

        if where is not None:
            args, kwargs = tree_map(functools.partial(move, where), (args, kwargs))
        out = forward(*args, **kwargs)
        if back and (home := back(operands)) is not None:
            out.logits = move(home, out.logits)
        return out

    return moving

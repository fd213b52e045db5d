"""Lay a model's layers on the devices of one worker.

A model lies on one device if its weights fit, and otherwise on several: whole layers, in their
order. A layer computes the same on every GPU of a kind, so all splits give the same bytes. (A model
that is cut through its layers, as by tensor parallelism, computes something else and is refused.)

Weights that fit on no GPU stay in this machine's memory or in the model's own files, and are
fetched in every pass. A dump has few, large passes and can be made this way. Interventions have
many passes, and refuse.

accelerate decides where each part goes, and moves tensors between devices. It is needed only if a
model does not fit on one device. Two environment variables, neither of which changes a result:

    BAG_GPUS=4      number of GPUs; default: the fewest of the visible GPUs that hold the weights
    BAG_WEIGHTS=40  GiB of weights that a device may hold; default: 4/5 of the free memory of a GPU,
                    and all weights on a CPU
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.lib.core import environment, progress
from stages.lib.core.settings import ParamsError
from stages.lib.model.experts import mixtures
from stages.lib.model.folder import ModelError

Places = dict[str, int | str]  # name of a module -> number of a GPU, "cpu" or "disk"
Rooms = Mapping[int | str, int]  # device -> bytes of weights that it may hold
SHARE = 0.8  # of the free memory; the rest is for activations


def places(model: PreTrainedModel, blocks: set[str]) -> Places | None:
    """Return the device of each part of a model; None if all parts go to one device.

    model: without weights, as transformers makes it; blocks: classes of its decoder layers, which
    are never split. Raises ParamsError if the environment asks for more GPUs than there are, or if
    accelerate is missing.
    """
    size, room = nbytes(model), environment.weights()
    if environment.device() == "cpu":
        if not room or size <= room:
            return None
        return over(model, blocks, {"cpu": room})
    visible, least = torch.cuda.device_count(), environment.gpus()
    if least > visible:
        problem = f"the environment says {environment.GPUS}={least}"
        raise ParamsError(f"{problem}, but torch sees {visible} GPUs here")
    gpus = range(least if environment.GPUS in os.environ else visible)
    rooms = [room or int(SHARE * torch.cuda.mem_get_info(gpu)[0]) for gpu in gpus]
    if least == 1 and size <= rooms[0]:
        return None
    held = on_gpus(model, blocks, rooms, least)
    return held or over(model, blocks, {**dict(enumerate(rooms)), "cpu": _free()})


def on_gpus(
    model: PreTrainedModel,
    blocks: set[str],
    rooms: list[int],
    least: int = 1,
) -> Places | None:
    """Spread the model evenly over as few GPUs as hold it; return None if all do not hold it.

    rooms: bytes that each GPU may hold; least: number of GPUs.
    """
    size = nbytes(model)
    largest = max(nbytes(part) for part in model.modules() if _is_whole(part, blocks))
    for count in range(least, len(rooms) + 1):
        # with this limit each GPU but the last holds at least an equal share, as layers stay whole
        share = size // count + largest
        # GPUs count from 1: on GPU 0 accelerate would keep room for fetched weights
        limits: dict[int | str, int] = {0: 0}
        for gpu, room in enumerate(rooms[:count], 1):
            limits[gpu] = min(share, room)
        inferred = _inferred(model, blocks, {**limits, "cpu": 0})
        if not offloaded(inferred):
            return {name: max(0, int(where) - 1) for name, where in inferred.items()}
    return None


def over(model: PreTrainedModel, blocks: set[str], rooms: Rooms) -> Places:
    """Spread the model over devices that do not hold it; the rest goes to the next device or disk.

    rooms: bytes that each device may hold, in the order in which they are filled, "cpu" last.
    Raises ModelError if the embeddings do not fit on the first device, or if the model has mixtures
    of experts: a pass needs few of their weights, but it is not known in advance which.
    """
    kind = type(model).__name__
    if mixtures(model):
        problem = f"{kind} does not fit on its devices"
        raise ModelError(f"{problem}, and a mixture of experts is not fetched in every pass")
    inferred = _inferred(model, blocks, rooms)
    names = {id(module): name for name, module in model.named_modules()}
    embeddings = names[id(model.get_input_embeddings())]
    if _place(embeddings, inferred) != next(iter(rooms)):
        problem = f"the embeddings of {kind} do not fit on one device"
        raise ModelError(f"{problem}; {environment.WEIGHTS} says how much it may hold")
    devices = ", ".join(sorted(set(map(str, inferred.values()))))
    progress.say(
        f"{kind} does not fit on its devices, and lies on {devices}: "
        "its weights are fetched in every pass"
    )
    return inferred


def _place(module: str, places: Places) -> int | str:
    """Return the device of a module, which is listed itself or as part of a listed module."""
    for name, where in places.items():
        if not name or module == name or module.startswith(f"{name}."):
            return where
    raise KeyError(module)


def _inferred(model: PreTrainedModel, blocks: set[str], rooms: Rooms) -> Places:
    try:
        from accelerate import infer_auto_device_map
    except ImportError:
        raise ParamsError(
            f"{type(model).__name__} does not fit on one device, and accelerate, which spreads it "
            "over several, is not installed here: pip install -e '.[cluster]'"
        ) from None
    model.tie_weights()
    return dict(infer_auto_device_map(model, dict(rooms), sorted(blocks)))


def _is_whole(part: nn.Module, blocks: set[str]) -> bool:
    """Return whether a part is never split: a decoder layer, or a module with its own weights."""
    return type(part).__name__ in blocks or next(part.parameters(recurse=False), None) is not None


def _free() -> int:
    """Return how many bytes of this machine's memory weights may take; many if it is unknown."""
    pages = "SC_AVPHYS_PAGES"
    if pages not in os.sysconf_names:
        return 1 << 60
    return int(SHARE * os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE"))


def nbytes(part: nn.Module) -> int:
    """Return the bytes of a module's weights and buffers."""
    return sum(tensor.nbytes for tensor in (*part.parameters(), *part.buffers()))


def offloaded(places: Mapping[str, int | str]) -> bool:
    """Return whether some weights are fetched in every pass: from the disk, or from memory while
    other weights are on GPUs."""
    devices = set(places.values())
    return "disk" in devices or ("cpu" in devices and len(devices) > 1)


def refuse_offloaded(name: str, places: Places | None) -> None:
    """Raise ModelError if weights are fetched in every pass, which is too slow for many passes."""
    if offloaded(places or {}):
        raise ModelError(
            f"{name} does not fit on this machine's devices: it can be dumped, but to run "
            "interventions all of its weights must be on GPUs or in memory"
        )


@contextmanager
def at_hand(module: nn.Module) -> Iterator[None]:
    """Within the context, a module's own weights can be read, wherever they are stored."""
    hook: Any = getattr(module, "_hf_hook", None)
    if hook is None or not getattr(hook, "offload", False):
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def beside(x: torch.Tensor, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the indices on the device of x. A model's layers may lie on several devices."""
    return tuple(index.to(x.device) for index in indices)


def follow(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Make a second model with the same weights fetch and move tensors as the first model does."""
    if not hasattr(model, "hf_device_map"):
        return
    from accelerate.hooks import add_hook_to_module

    for name, part in model.named_modules():
        if hasattr(part, "_hf_hook"):
            add_hook_to_module(twin.get_submodule(name), part._hf_hook)
    twin.hf_device_map = model.hf_device_map

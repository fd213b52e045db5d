"""A model's layers on the devices of one worker: on one of them where the weights fit, otherwise spread, whole layers in their order.

A layer computes on one GPU of a kind what it computes on another, so the bytes are the same for every split. (Cut through its layers, as by
tensor parallelism, a model computes something else, and is refused.) Weights that no GPU has room for stay in this machine's memory, or in
the model's own files, and are fetched in every pass: a dump, which has few and large ones, can be made so; runs, which have many, refuse.

accelerate says where each part goes, and moves what is handed from one to the next; it is needed only where a model does not fit on one
device. The environment says (none of which changes a result):
    BAG_GPUS=4      spread over four GPUs; by default over as few of those that torch sees as hold the weights
    BAG_WEIGHTS=40  GiB of weights that a device may hold; by default 4/5 of what is free on a GPU, and everything in memory
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.lib.core import machine, progress
from stages.lib.core.settings import ParamsError
from stages.lib.model.experts import mixtures
from stages.lib.model.folder import ModelError

Places = dict[str, int | str]  # module, by name, -> GPU's number, "cpu" or "disk"
SHARE = 0.8  # of what is free; the rest is for what flows through the layers


def places(model: PreTrainedModel, blocks: set[str]) -> Places | None:
    """Where each part of a model goes on this machine, None where all of it goes to one device.

    model: without weights, as transformers makes it; blocks: the classes of its decoder layers, which are never split.
    Raises ParamsError where the environment asks for GPUs that are not here, or accelerate is missing.
    """
    size, asked = nbytes(model), machine.weights()
    if machine.device() == "cpu":
        return None if not asked or size <= asked else over(model, blocks, {"cpu": asked})
    seen = torch.cuda.device_count()
    least = machine.gpus()
    if least > seen:
        raise ParamsError(f"the environment says {machine.GPUS}={least}, but torch sees {seen} GPUs here")
    rooms = [asked or int(SHARE * torch.cuda.mem_get_info(number)[0]) for number in range(least if machine.GPUS in os.environ else seen)]
    if least == 1 and size <= rooms[0]:
        return None
    return on_gpus(model, blocks, rooms, least) or over(model, blocks, {**dict(enumerate(rooms)), "cpu": _free()})


def on_gpus(model: PreTrainedModel, blocks: set[str], rooms: list[int], least: int = 1) -> Places | None:
    """The model on as few GPUs as hold it, at least so many, about as much of it on each; None where all of them do not.

    rooms: bytes that each may hold.
    """
    size, largest = nbytes(model), max(nbytes(part) for part in model.modules() if _whole(part, blocks))
    for number in range(least, len(rooms) + 1):
        share = size // number + largest  # so much, and each but the last holds its part
        limits: dict[int | str, int] = {gpu: min(share, room) for gpu, room in enumerate(rooms[:number], 1)}
        found = _inferred(model, blocks, {0: 0, **limits, "cpu": 0})  # on the first one accelerate would keep room for what is fetched
        if not offloaded(found):
            return {name: max(0, int(where) - 1) for name, where in found.items()}
    return None


def over(model: PreTrainedModel, blocks: set[str], rooms: Mapping[int | str, int]) -> Places:
    """The model on devices that do not hold it: what one has no room for goes to the next, what none has stays on disk.

    rooms: bytes that each may hold, in this order, "cpu" last. Raises ModelError where not even the embeddings fit on the first, or the
    model has mixtures of experts: of those each pass needs few weights, but it is not known which.
    """
    if mixtures(model):
        raise ModelError(f"{type(model).__name__} does not fit on its devices, and a mixture of experts is not fetched in every pass")
    found = _inferred(model, blocks, rooms)
    first = next(iter(rooms))
    names = {id(module): name for name, module in model.named_modules()}
    embeddings = names[id(model.get_input_embeddings())]
    if next(where for name, where in found.items() if not name or embeddings == name or embeddings.startswith(f"{name}.")) != first:
        raise ModelError(f"the embeddings of {type(model).__name__} do not fit on one device; {machine.WEIGHTS} says how much it may hold")
    held = sorted({str(where) for where in found.values()})
    progress.say(
        f"{type(model).__name__} does not fit on its devices, and lies on {', '.join(held)}: its weights are fetched in every pass"
    )
    return found


def _inferred(model: PreTrainedModel, blocks: set[str], rooms: Mapping[int | str, int]) -> Places:
    try:
        from accelerate import infer_auto_device_map
    except ImportError:
        raise ParamsError(
            f"{type(model).__name__} does not fit on one device, and accelerate, which spreads it over several, is not installed here: "
            "pip install -e '.[cluster]'"
        ) from None
    model.tie_weights()
    return dict(infer_auto_device_map(model, dict(rooms), sorted(blocks)))


def _whole(part: nn.Module, blocks: set[str]) -> bool:
    """Whether a part is never split: a decoder layer, or what has weights itself."""
    return type(part).__name__ in blocks or next(part.parameters(recurse=False), None) is not None


def _free() -> int:
    """Bytes of this machine's memory that weights may take, as far as it says."""
    pages = "SC_AVPHYS_PAGES"
    return int(SHARE * os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")) if pages in os.sysconf_names else 1 << 60


def nbytes(part: nn.Module) -> int:
    """Of its weights, and of what else it keeps."""
    return sum(tensor.numel() * tensor.itemsize for tensor in (*part.parameters(), *part.buffers()))


def offloaded(places: Mapping[str, int | str]) -> bool:
    """Whether some of a model is fetched in every pass: from the disk, or from memory while the rest is on GPUs."""
    return "disk" in places.values() or len({where == "cpu" for where in places.values()}) > 1


def refuse_offloaded(name: str, places: Places | None) -> None:
    """Raises ModelError where weights are fetched in every pass: whoever makes many small ones must have them at hand."""
    if offloaded(places or {}):
        raise ModelError(
            f"{name} does not fit on this machine's devices: it can be dumped, but to run interventions all of its weights must be on GPUs "
            "or in memory"
        )


@contextmanager
def at_hand(module: nn.Module) -> Iterator[None]:
    """Within the context a module's own weights can be read, wherever they are kept."""
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
    """Indices where x is: the layers of a model may lie on several devices."""
    return tuple(index.to(x.device) for index in indices)


def follow(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Lets a second model of the same weights and parts fetch and move what the first one does."""
    if not hasattr(model, "hf_device_map"):
        return
    from accelerate.hooks import add_hook_to_module

    for name, part in model.named_modules():
        if hasattr(part, "_hf_hook"):
            add_hook_to_module(twin.get_submodule(name), part._hf_hook)
    twin.hf_device_map = model.hf_device_map

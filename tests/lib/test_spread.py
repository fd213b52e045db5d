"""A model that does not fit on one device: where its parts go, what is dumped of it, and who refuses it. accelerate does so on a CPU, too."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.lib import ask
from stages.lib.core import machine
from stages.lib.core.settings import ParamsError
from stages.lib.executor import runs
from stages.lib.executor.executor import Executor
from stages.lib.model import checkpoint, spread, value_logits
from stages.lib.model.folder import ModelError
from stages.lib.subject import Subject
from stages.neurons import neuron_attributions
from stages.store import dump, grid
from tests import families
from tests.micro import ROOT


def outlined(loaded: checkpoint.Checkpoint) -> tuple[torch.nn.Module, set[str]]:
    """The model without its weights, and the classes of its layers."""
    return checkpoint.bare(loaded.model.config, "float32"), {
        type(layer.block).__name__ for layer in loaded.architecture.layers
    }


def on_disk(loaded: checkpoint.Checkpoint, share: float = 0.75) -> spread.Places:
    """Where the parts of a model go where memory has room for a share of it."""
    bare, blocks = outlined(loaded)
    return spread.over(bare, blocks, {"cpu": int(share * spread.nbytes(bare))})


def test_a_dump_of_a_model_that_is_partly_on_disk_is_the_same(checkpoint_folder: Path):
    whole = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    apart = checkpoint.load(checkpoint_folder, "float32", "cpu", 1, on_disk(whole))
    assert any(parameter.is_meta for parameter in apart.model.parameters())
    tokens = np.random.default_rng(0).integers(3, 130, (4, 6, 5))
    tokens[:, :, :3] = tokens[:, :1, :3]
    asked = ask.EncodedPrompts([[3, 4], [5, 6, 7]], np.array([7, 8]))
    ways, dumped = [], []
    for loaded in (whole, apart):
        ways.append(grid.sharing(loaded, tokens))
        a = loaded.architecture
        into = {layer: np.empty((a.neurons, 4, 6), np.float16) for layer in range(len(a.layers))}
        means = grid.Means.zeros(loaded, 5)
        said = list(grid.run(loaded, tokens, np.full((4, 6), 7), 2, into, means, sharing=ways[0]))
        votes = list(value_logits.value_logits(loaded, [5, 6, 7]))
        answered = vars(ask.ask(loaded, asked, 9, desc=""))
        dumped.append(
            [
                *into.values(),
                means.neurons,
                means.heads,
                means.residual,
                *votes,
                *(s.max_logit for s in said),
                *answered.values(),
            ]
        )
    assert ways[0] is ways[1] is not grid.Sharing.NONE
    assert all(np.array_equal(one, other) for one, other in zip(*dumped, strict=True))
    assert checkpoint.canary(apart) == checkpoint.canary(whole)
    with pytest.raises(
        ModelError,
        match="does not fit on this machine's devices: it can be dumped, but to run interventions",
    ):
        Executor(apart, None, 10, 1 << 28)


@pytest.mark.parametrize("family", ["falcon, ALiBi", "opt", "mixtral"])
def test_what_is_put_in_place_of_parts_is_fetched_as_well(family: str, tmp_path: Path):
    """The usual attention, output projections of another shape; a mixture's are not, and it is refused."""
    name, more = families.VARIANTS.get(family, (family, {}))
    families.random_model(name, **more).save_pretrained(tmp_path)
    whole = checkpoint.load(tmp_path, "float32", "cpu", 1)
    if family == "mixtral":
        with pytest.raises(ModelError, match="a mixture of experts is not fetched in every pass"):
            on_disk(whole)
        return
    apart = checkpoint.load(tmp_path, "float32", "cpu", 1, on_disk(whole))
    assert any(parameter.is_meta for parameter in apart.model.parameters())
    assert checkpoint.canary(apart) == checkpoint.canary(whole)
    for votes in zip(
        *(value_logits.value_logits(loaded, [5, 6]) for loaded in (whole, apart)), strict=True
    ):
        assert np.array_equal(*votes)


def test_layers_stay_whole_and_in_order_on_as_few_gpus_as_hold_them(checkpoint_folder: Path):
    loaded = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    bare, blocks = outlined(loaded)
    names = [name for name, module in bare.named_modules() if type(module).__name__ in blocks]
    size, layer = spread.nbytes(bare), spread.nbytes(bare.get_submodule(names[0]))
    for room, least in itertools.product((size, size * 2 // 3, size // 2, layer), (1, 2)):
        places = spread.on_gpus(bare, blocks, [room] * 4, least)
        if places is None:
            assert room < size * 2 // 3
            continue
        where = [
            place
            for name in names
            for part, place in places.items()
            if name == part or name.startswith(f"{part}.") or not part
        ]
        assert len(where) == len(names)
        assert where == sorted(where)
        used: dict[int | str, dict[int, int]] = {place: {} for place in places.values()}
        for part, place in places.items():
            of = bare.get_submodule(part)
            used[place] |= {
                id(tensor): tensor.numel() * tensor.itemsize
                for tensor in (*of.parameters(), *of.buffers())
            }  # tied ones once
        assert max(sum(held.values()) for held in used.values()) <= room
        assert room < size or least > 1 or len(used) == 1
    assert spread.on_gpus(bare, blocks, [layer // 2] * 4) is None


def test_the_environment_says_over_how_many_gpus(
    checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    bare, blocks = outlined(loaded)
    size = spread.nbytes(bare)
    monkeypatch.setenv(machine.DEVICE, "cuda")

    def found(free: float, **said: str) -> spread.Places | None:
        """Where four GPUs, of which each has so many times the weights free, take the model."""
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        monkeypatch.setattr(
            torch.cuda, "mem_get_info", lambda _: (int(free * size), int(free * size))
        )
        for name in (machine.GPUS, machine.WEIGHTS):
            monkeypatch.delenv(name, raising=False)
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        return spread.places(bare, blocks)

    assert found(2) is None
    assert set((found(2, BAG_GPUS="2") or {}).values()) == {0, 1}
    assert set((found(1) or {}).values()) == {0, 1}
    assert set((found(2, BAG_WEIGHTS=f"{0.8 * size / (1 << 30):.9f}") or {}).values()) == {0, 1}
    held = found(1.1, BAG_GPUS="1") or {}
    assert set(held.values()) == {0, "cpu"}
    spread.refuse_offloaded("it", found(2, BAG_GPUS="3"))
    with pytest.raises(ModelError, match="it does not fit on this machine's devices"):
        spread.refuse_offloaded("it", held)
    with pytest.raises(ParamsError, match="BAG_GPUS=5, but torch sees 4 GPUs here"):
        found(2, BAG_GPUS="5")


def test_a_subject_that_does_not_fit_is_dumped_alike_and_not_run(
    micro_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(micro_copy)
    store = micro_copy / "data/abacus/store"
    outputs = [
        store / "predictions.parquet",
        store / "value_logits.h5",
        store / "means.h5",
        store / "activations/add.h5",
    ]
    expected = [output.read_bytes() for output in outputs]
    for output in outputs:
        output.unlink()
    weights = spread.nbytes(checkpoint.outline(Subject.named("abacus").settings).model)
    monkeypatch.setenv(machine.WEIGHTS, f"{0.8 * weights / (1 << 30):.9f}")
    dump.main("abacus")
    assert "its weights are fetched in every pass" in capsys.readouterr().err
    assert [output.read_bytes() for output in outputs] == expected
    (micro_copy / "data/abacus/neurons/runs/neuron.parquet").unlink()
    for main, of in (
        (runs.main, ("neurons/neuron", "abacus")),
        (neuron_attributions.main, ("abacus",)),
    ):
        with pytest.raises(
            ModelError,
            match="does not fit on this machine's devices: it can be dumped, but to run interventions",
        ):
            main(*of)
    monkeypatch.setenv(machine.WEIGHTS, "0.000001")
    (store / "predictions.parquet").unlink()
    with pytest.raises(
        ModelError,
        match=r"the embeddings of .* do not fit on one device; BAG_WEIGHTS says how much it may hold",
    ):
        dump.main("abacus")


@pytest.mark.parametrize("kind", ["llama"])
def test_without_accelerate_what_fits_works_and_the_rest_says_so(checkpoint_folder: Path):
    code = """
import os, sys
sys.modules["accelerate"] = None
from pathlib import Path
from stages.lib.model import checkpoint
from tests.lib.test_outline import settings
for room in sys.argv[2:]:
    os.environ["BAG_WEIGHTS"] = room
    print(room, checkpoint.canary(checkpoint.of(settings(Path(sys.argv[1])))))
"""
    own = checkpoint.canary(checkpoint.load(checkpoint_folder, "float32", "cpu", 1))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", code, str(checkpoint_folder), "1", "0.00008"]
    ended = subprocess.run(
        command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.stdout == f"1 {own}\n", ended.stderr
    assert ended.returncode == 1
    assert (
        "accelerate, which spreads it over several, is not installed here: pip install -e '.[cluster]'"
        in ended.stderr
    )


@pytest.mark.parametrize("given", ["0", "-1", "many", "1e3", ""])
def test_a_wrong_share_of_weights_is_named(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(machine.WEIGHTS, given)
    with pytest.raises(ParamsError, match=f"BAG_WEIGHTS='{given}', but it is GiB of weights"):
        machine.weights()


def test_passes_are_larger_on_a_gpu_and_there_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(machine.PASSES, "3")
    assert machine.passes(machine.RUNS) == 1
    monkeypatch.setenv(machine.DEVICE, "cuda")
    assert machine.passes(machine.RUNS) == 3
    monkeypatch.delenv(machine.PASSES)
    assert machine.passes(machine.RUNS) == machine.RUNS
    monkeypatch.setenv(machine.PASSES, "0")
    with pytest.raises(ParamsError, match="BAG_PASSES='0'"):
        machine.passes(machine.RUNS)


def test_runs_begun_with_other_passes_are_not_gone_on_with(
    micro_copy: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their parts are cut by what a pass holds. A dump in float64 goes on: its parts are the same."""
    monkeypatch.chdir(micro_copy)
    monkeypatch.setenv(machine.DEVICE, "cuda")
    keys, dump_keys, sizes = set(), set(), set()
    for passes in ("1", "2", "16"):
        monkeypatch.setenv(machine.PASSES, passes)
        work = runs.RunsWork("neurons/neuron", "abacus")
        keys.add(work.parts.folder.name)
        dump_keys.add(dump.DumpWork("abacus").parts.folder.name)
        sizes.add((work.sizes.most_rows, work.sizes.memory))
    assert len(keys) == 3
    assert len(dump_keys) == 1
    assert len(sizes) == 3

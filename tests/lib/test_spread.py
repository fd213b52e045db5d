"""Test models that do not fit on one device: where their parts go, dumps, and refusals.

accelerate also spreads models over memory and disk, so these tests need no GPU.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.lib import ask
from stages.lib.core import environment
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

GIB = 1 << 30
REFUSED = "does not fit on this machine's devices: it can be dumped, but to run interventions"


def outlined(loaded: checkpoint.Checkpoint) -> tuple[torch.nn.Module, set[str]]:
    """Return the model without its weights, and the classes of its layers."""
    blocks = {type(layer.block).__name__ for layer in loaded.architecture.layers}
    return checkpoint.bare(loaded.model.config, "float32"), blocks


def on_disk(loaded: checkpoint.Checkpoint, share: float = 0.75) -> spread.Places:
    """Return the places of a model's parts if memory has room for a share of its weights."""
    bare, blocks = outlined(loaded)
    return spread.over(bare, blocks, {"cpu": int(share * spread.nbytes(bare))})


def results(loaded: checkpoint.Checkpoint, tokens: np.ndarray) -> list[np.ndarray]:
    """Return everything that a dump computes from a grid of prompts."""
    a, means = loaded.architecture, grid.Means.zeros(loaded, 5)
    activations = {i: np.empty((a.neurons, 4, 6), np.float16) for i in range(len(a.layers))}
    sharing, answers = grid.sharing(loaded, tokens), np.full((4, 6), 7)
    assert sharing is not grid.Sharing.NONE
    rows = list(grid.run(loaded, tokens, answers, 2, activations, means, sharing=sharing))
    prompts = ask.EncodedPrompts([[3, 4], [5, 6, 7]], np.array([7, 8]))
    return [
        *activations.values(),
        means.neurons,
        means.heads,
        means.residual,
        *value_logits.value_logits(loaded, [5, 6, 7]),
        *(row.max_logit for row in rows),
        *vars(ask.ask(loaded, prompts, 9, desc="")).values(),
    ]


def test_a_dump_of_a_model_that_is_partly_on_disk_is_the_same(checkpoint_folder: Path):
    whole = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    apart = checkpoint.load(checkpoint_folder, "float32", "cpu", 1, on_disk(whole))
    assert any(parameter.is_meta for parameter in apart.model.parameters())
    tokens = np.random.default_rng(0).integers(3, 130, (4, 6, 5))
    tokens[:, :, :3] = tokens[:, :1, :3]
    assert grid.sharing(whole, tokens) is grid.sharing(apart, tokens)
    for expected, values in zip(results(whole, tokens), results(apart, tokens), strict=True):
        assert np.array_equal(values, expected)
    assert checkpoint.parity_digest(apart) == checkpoint.parity_digest(whole)
    with pytest.raises(ModelError, match=REFUSED):
        Executor(apart, None, 10, 1 << 28)


@pytest.mark.parametrize("family", ["falcon, ALiBi", "opt", "mixtral"])
def test_replaced_parts_are_fetched_as_well(family: str, tmp_path: Path):
    """Usual attention and reshaped output projections are fetched; mixtures are refused."""
    name, more = families.VARIANTS.get(family, (family, {}))
    families.random_model(name, **more).save_pretrained(tmp_path)
    whole = checkpoint.load(tmp_path, "float32", "cpu", 1)
    if family == "mixtral":
        with pytest.raises(ModelError, match="a mixture of experts is not fetched in every pass"):
            on_disk(whole)
        return
    apart = checkpoint.load(tmp_path, "float32", "cpu", 1, on_disk(whole))
    assert any(parameter.is_meta for parameter in apart.model.parameters())
    assert checkpoint.parity_digest(apart) == checkpoint.parity_digest(whole)
    expected = np.stack(list(value_logits.value_logits(whole, [5, 6])))
    assert np.array_equal(np.stack(list(value_logits.value_logits(apart, [5, 6]))), expected)


def test_layers_stay_whole_and_in_order_on_the_fewest_gpus(checkpoint_folder: Path):
    loaded = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    bare, blocks = outlined(loaded)
    layers = [name for name, module in bare.named_modules() if type(module).__name__ in blocks]
    size, layer = spread.nbytes(bare), spread.nbytes(bare.get_submodule(layers[0]))
    for room, least in itertools.product((size, size * 2 // 3, size // 2, layer), (1, 2)):
        places = spread.on_gpus(bare, blocks, [room] * 4, least)
        if places is None:
            assert room < size * 2 // 3
            continue
        gpus = [spread._place(name, places) for name in layers]
        assert gpus == sorted(gpus)
        tensors: dict[int | str, dict[int, int]] = {gpu: {} for gpu in places.values()}
        for name, gpu in places.items():
            part = bare.get_submodule(name)
            for tensor in (*part.parameters(), *part.buffers()):
                tensors[gpu][id(tensor)] = tensor.nbytes  # tied tensors count once
        assert max(sum(sizes.values()) for sizes in tensors.values()) <= room
        assert room < size or least > 1 or len(tensors) == 1
    assert spread.on_gpus(bare, blocks, [layer // 2] * 4) is None


def test_the_environment_sets_the_number_of_gpus(
    checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded = checkpoint.load(checkpoint_folder, "float32", "cpu", 1)
    bare, blocks = outlined(loaded)
    size = spread.nbytes(bare)
    monkeypatch.setenv(environment.DEVICE, "cuda")

    def places(free: float, **variables: str) -> spread.Places:
        """Return the places on four GPUs. free: memory of each, in sizes of the model."""
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        memory = (int(free * size), int(free * size))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: memory)
        for name in (environment.GPUS, environment.WEIGHTS):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return spread.places(bare, blocks) or {}

    assert places(2) == {}
    assert set(places(2, BAG_GPUS="2").values()) == {0, 1}
    assert set(places(1).values()) == {0, 1}
    assert set(places(2, BAG_WEIGHTS=f"{0.8 * size / GIB:.9f}").values()) == {0, 1}
    held = places(1.1, BAG_GPUS="1")
    assert set(held.values()) == {0, "cpu"}
    spread.refuse_offloaded("it", places(2, BAG_GPUS="3"))
    with pytest.raises(ModelError, match="it does not fit on this machine's devices"):
        spread.refuse_offloaded("it", held)
    with pytest.raises(ParamsError, match="BAG_GPUS=5, but torch sees 4 GPUs here"):
        places(2, BAG_GPUS="5")


def test_a_subject_that_does_not_fit_gets_the_same_dump_and_no_interventions(
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
    monkeypatch.setenv(environment.WEIGHTS, f"{0.8 * weights / GIB:.9f}")
    dump.main("abacus")
    assert "its weights are fetched in every pass" in capsys.readouterr().err
    assert [output.read_bytes() for output in outputs] == expected
    (micro_copy / "data/abacus/neurons/runs/neuron.parquet").unlink()
    with pytest.raises(ModelError, match=REFUSED):
        runs.main("neurons/neuron", "abacus")
    with pytest.raises(ModelError, match=REFUSED):
        neuron_attributions.main("abacus")
    monkeypatch.setenv(environment.WEIGHTS, "0.000001")
    (store / "predictions.parquet").unlink()
    message = "the embeddings of .* do not fit on one device; BAG_WEIGHTS says how much it may hold"
    with pytest.raises(ModelError, match=message):
        dump.main("abacus")


@pytest.mark.parametrize("kind", ["llama"])
def test_only_models_that_do_not_fit_need_accelerate(checkpoint_folder: Path):
    code = """
import os, sys
sys.modules["accelerate"] = None
from pathlib import Path
from stages.lib.model import checkpoint
from tests.lib.test_outline import settings
for room in sys.argv[2:]:
    os.environ["BAG_WEIGHTS"] = room
    print(room, checkpoint.parity_digest(checkpoint.from_settings(settings(Path(sys.argv[1])))))
"""
    own = checkpoint.parity_digest(checkpoint.load(checkpoint_folder, "float32", "cpu", 1))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", code, str(checkpoint_folder), "1", "0.00008"]
    ended = subprocess.run(
        command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.stdout == f"1 {own}\n", ended.stderr
    assert ended.returncode == 1
    assert "accelerate, which spreads it over several, is not installed here" in ended.stderr
    assert "pip install -e '.[cluster]'" in ended.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many", "1e3", ""])
def test_a_wrong_share_of_weights_is_named(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(environment.WEIGHTS, value)
    with pytest.raises(ParamsError, match=f"BAG_WEIGHTS='{value}'"):
        environment.weights()


def test_passes_are_larger_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(environment.PASSES, "3")
    assert environment.passes() == 1
    monkeypatch.setenv(environment.DEVICE, "cuda")
    assert environment.passes() == 3
    monkeypatch.delenv(environment.PASSES)
    assert environment.passes() == environment.PASSES_ON_GPU
    monkeypatch.setenv(environment.PASSES, "0")
    with pytest.raises(ParamsError, match="BAG_PASSES='0'"):
        environment.passes()


def test_runs_with_other_passes_start_anew(micro_copy: Path, monkeypatch: pytest.MonkeyPatch):
    """Their parts depend on the size of a pass. The parts of a dump in float64 do not."""
    monkeypatch.chdir(micro_copy)
    monkeypatch.setenv(environment.DEVICE, "cuda")
    keys, dump_keys, sizes = set(), set(), set()
    for passes in ("1", "2", "16"):
        monkeypatch.setenv(environment.PASSES, passes)
        work = runs.RunsWork("neurons/neuron", "abacus")
        keys.add(work.parts.folder.name)
        dump_keys.add(dump.DumpWork("abacus").parts.folder.name)
        sizes.add((work.sizes.most_rows, work.sizes.memory))
    assert len(keys) == 3
    assert len(dump_keys) == 1
    assert len(sizes) == 3

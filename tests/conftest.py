"""Share real parts: tiny random models of each architecture, and a micro project that was run."""

import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run one process on each core
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("BAG_WORKERS", "1")
# for repositories that a test makes; the project's own configuration has it
os.environ.setdefault("DVC_NO_ANALYTICS", "1")

import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from transformers import AutoModelForCausalLM, GPTJConfig, GPTNeoXConfig, LlamaConfig, Olmo2Config

from stages.lib.model import tokenizer as tokenizers
from stages.lib.units import local
from tests.micro import ROOT, copy_compiled, copy_project

torch.set_num_threads(1)
# Python would spend a tenth of the time looking for garbage among all libraries and tests
gc.set_threshold(100_000, 50, 100)
settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")
# this process has computed with several threads and must not fork; the stages, in processes of
# their own, do
local.FORKS = False
SIZES = {"vocab_size": 140, "tie_word_embeddings": False}
CONFIGS = {
    "llama": lambda: LlamaConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    "llama-tied": lambda: LlamaConfig(
        **{**SIZES, "tie_word_embeddings": True},
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    ),
    "olmo2": lambda: Olmo2Config(  # normalises what attention and MLP write, not what they read
        **SIZES,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
    ),
    "gptj": lambda: GPTJConfig(**SIZES, n_embd=32, n_layer=3, n_head=4, rotary_dim=4, n_inner=80),
    "neox": lambda: GPTNeoXConfig(
        **SIZES, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4
    ),
    "neox-sequential": lambda: GPTNeoXConfig(
        **SIZES,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        use_parallel_residual=False,
    ),
}


def random_model(kind: str, **more: Any) -> torch.nn.Module:
    """Make a tiny random model whose weights are large enough that every part matters.

    more: settings of its configuration.
    """
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    config.update(more)
    config.bos_token_id, config.eos_token_id = 1, None
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data = torch.randn_like(parameter) * 0.1 + 1
        else:
            parameter.data = torch.randn_like(parameter) * 0.3
    return model.requires_grad_(False)


@pytest.fixture(params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def checkpoint_folder(kind: str, tmp_path: Path) -> Path:
    """Return a folder with a random model and a tokenizer of the numbers 0..99."""
    random_model(kind).save_pretrained(tmp_path / kind)
    tokenizers.build(99, ["+ - * / = ( ) Q"]).save_pretrained(tmp_path / kind)
    return tmp_path / kind


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random Llama and its tokenizer, for tests to copy, not to change."""
    folder = tmp_path_factory.mktemp("models") / "mine"
    random_model("llama").save_pretrained(folder)
    tokenizers.build(99, ["+ - * / = ( ) Q"]).save_pretrained(folder)
    return folder


# make, in an environment that is set up already
MAKE = ("make", "--no-print-directory", "-o", ".venv/installed")


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Let Ctrl-C reach the processes that a test starts.

    They would inherit that it is ignored: a background job ignores it, and so does this process
    after a test in which DVC ran a stage in it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_in(
    folder: Path,
    *command: str,
    check: bool = True,
    more: dict[str, str] | None = None,
    **options,
) -> subprocess.CompletedProcess:
    """Run a command in a project folder. more: further environment variables.

    DVC waits for its lock, since other tests may read the same project.
    """
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    environment = {**os.environ, **own, **(more or {})}
    if command[0] == "dvc":
        command = ("dvc", "--wait-for-lock", *command[1:])
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    ends = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert not check or done.returncode == 0, f"{command}\n{ends}"
    return done


def bag_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run `bag` in a project folder within this process; a new process takes a second to start."""
    from stages.lib.console import command  # only here: most tests need no queries

    stdout, stderr, status = io.StringIO(), io.StringIO(), 0
    before = signal.getsignal(signal.SIGINT)
    try:
        with chdir(folder), redirect_stdout(stdout), redirect_stderr(stderr):
            command.main(list(arguments))
    except SystemExit as end:
        if isinstance(end.code, int):
            status = end.code
        else:
            status = 1
            stderr.write(f"{end.code}\n")
    finally:
        signal.signal(signal.SIGINT, before)
    words = ["bag", *arguments]
    return subprocess.CompletedProcess(words, status, stdout.getvalue(), stderr.getvalue())


def planned(project: Path, *options: str) -> list[str]:
    """Return the stages that `dvc repro --force` would run, in order, as DVC names them.

    These are <file>:<name>; for stages of the root, <name>.
    """
    printed = run_in(project, "dvc", "repro", "--dry", "--force", *options).stdout
    return re.findall(r"^(?:Running s|S)tage '([^']+)'", printed, re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--micro",
        help="a micro project that `dvc repro` has already run, instead of a new one",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use one process more than processors, since some tests wait for servers or a browser."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests so that all processes end at about the same time.

    Tests of the micro project come first: one process makes it (minutes on one core) while the
    others take the rest, from the end. Among them, those that are marked to run early and those
    that change a copy of it come first, as they take long, that of a deep model above all.
    """
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[bool, ...]:
    is_early = item.get_closest_marker("early") is not None
    fixtures = ("deep_project", "micro_copy", "micro")
    deep, *others = (not _uses(item, fixture) for fixture in fixtures)
    return deep, not is_early, *others


def _uses(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder that all processes of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def micro(
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    worker_id: str,
) -> Path:
    """Return the micro project after `make study`; tests only read it."""
    ready = request.config.getoption("--micro")
    if ready:
        return Path(ready)
    folder = _shared(tmp_path_factory, worker_id) / "micro"
    made = folder.with_suffix(".made")
    with FileLock(folder.with_suffix(".lock")):
        if not made.exists():
            repro = ("dvc", "repro", "--all-pipelines", "--quiet")
            run_in(copy_project(folder), "python", "-m", "stages.warm", *repro)
            copy_compiled(folder, ROOT)
            made.touch()
    return folder


@pytest.fixture(scope="session")
def starter_project(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a clone of this project's last commit after `make quick`; tests only read it."""
    folder = _shared(tmp_path_factory, worker_id) / "starter"
    made = folder.with_suffix(".made")
    with FileLock(folder.with_suffix(".lock")):
        if not made.exists():
            run_in(ROOT, "git", "clone", "--quiet", str(ROOT), str(folder))
            run_in(folder, "python", "-m", "stages.lib.console.starter", "fetch")
            made.touch()
    return folder


@pytest.fixture(scope="session")
def everything(micro: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> list[str]:
    """Return the stages that `dvc repro --force --all-pipelines` would run, see `planned`."""
    kept = _shared(tmp_path_factory, worker_id) / "planned.json"
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            kept.write_text(json.dumps(planned(micro, "--all-pipelines")))
    return json.loads(kept.read_text())


@pytest.fixture(scope="session")
def page(micro: Path) -> Path:
    """Return the report page of all subjects of the micro project; tests only read it."""
    return micro / "reports/study.html"


@pytest.fixture(scope="module")
def reader(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Open the report page in a real Chromium."""
    from tests.report.browsing import reading  # only here: it imports this module

    with reading(page, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def close_figures() -> Iterator[None]:
    """Close the figures that a test has drawn."""
    yield
    from stages.lib.drawing import drawing  # only here: most tests draw nothing

    drawing.plt.close("all")


def copied(project: Path, folder: Path) -> Path:
    """Copy a project, with outputs that are links to the copy's own cache."""
    subprocess.run(["cp", "-a", project, folder], check=True)
    return folder


@pytest.fixture
def micro_copy(micro: Path, tmp_path: Path) -> Path:
    """Return a copy of the micro project for a test that changes it."""
    return copied(micro, tmp_path / "project")

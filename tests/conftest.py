"""Real parts for the tests: tiny random models of each architecture, and a micro project that dvc repro has run."""

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
os.environ.setdefault("BAG_WORKERS", "1")
os.environ.setdefault(
    "DVC_NO_ANALYTICS", "1"
)  # of repositories that a test makes; the project's own says so itself

import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from transformers import AutoModelForCausalLM, GPTJConfig, GPTNeoXConfig, LlamaConfig, Olmo2Config

from stages.lib.model import tokenizer as tokenizers
from stages.lib.units import local
from tests.micro import copy_project

# A background job ignores Ctrl-C, and so would the processes that tests start.
torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")
local.FORKS = False  # this process has computed with several threads; stages, processes of their own, fork as they do
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
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1) + (
            parameter.ndim == 1
        )
    return model.requires_grad_(False)


@pytest.fixture(params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def checkpoint_folder(kind: str, tmp_path: Path) -> Path:
    """A random model saved beside a tokenizer of the numbers 0..99."""
    random_model(kind).save_pretrained(tmp_path / kind)
    tokenizers.build(99, ["+ - * / = ( ) Q"]).save_pretrained(tmp_path / kind)
    return tmp_path / kind


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama and its tokenizer, to be copied, not changed."""
    folder = tmp_path_factory.mktemp("models") / "mine"
    random_model("llama").save_pretrained(folder)
    tokenizers.build(99, ["+ - * / = ( ) Q"]).save_pretrained(folder)
    return folder


MAKE = (
    "make",
    "--no-print-directory",
    "-o",
    ".venv/installed",
)  # in an environment that is set up already


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Let Ctrl-C reach the processes that a test starts. They inherit it ignored from a background
    job, and from a test before in which DVC ran a stage in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_in(
    folder: Path, *command: str, check: bool = True, more: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess:
    """Runs a command of this environment, with `more` in it, in a project folder. DVC waits for its lock, as other tests may look at the
    same project."""
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    environment = {**os.environ, **own, **(more or {})}
    if command[0] == "dvc":
        command = ("dvc", "--wait-for-lock", *command[1:])
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, **options
    )
    assert not check or done.returncode == 0, (
        f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


def bag_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """What `bag` does in a project folder, which this process does at once: to start another takes a second."""
    from stages.lib.console import command  # only here: most tests ask nothing

    printed, said, status = io.StringIO(), io.StringIO(), 0
    before = signal.getsignal(signal.SIGINT)
    try:
        with chdir(folder), redirect_stdout(printed), redirect_stderr(said):
            command.main(list(arguments))
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
        said.write("" if status == ended.code else f"{ended.code}\n")
    finally:
        signal.signal(signal.SIGINT, before)
    return subprocess.CompletedProcess(
        ["bag", *arguments], status, printed.getvalue(), said.getvalue()
    )


def planned(project: Path, *options: str) -> list[str]:
    """The stages that `dvc repro --force` would run, in order, as DVC calls them: <file>:<name>, of the root just the name."""
    printed = run_in(project, "dvc", "repro", "--dry", "--force", *options).stdout
    return re.findall(r"^(?:Running s|S)tage '([^']+)'", printed, re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--micro",
        help="a micro project that `dvc repro` has already run, instead of one made for these tests",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than there are processors: some tests wait, for servers, for clusters, for a browser."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts tests of the micro project first: one process makes it (one core, minutes) while the others take the rest, from the end. Among
    them those that change a copy of it, which take long, and most of all those of another processor: whoever is left alone with one at the
    end keeps the others waiting. Of these each is the first of one process, which waits for the project and takes no processor meanwhile."""
    items.sort(
        key=lambda item: [
            name not in getattr(item, "fixturenames", ())
            for name in ("processor", "micro_copy", "micro")
        ]
    )
    share = len(items) // getattr(config, "workerinput", {}).get("workercount", len(items) or 1)
    for number, item in enumerate(
        [item for item in items if "processor" in getattr(item, "fixturenames", ())]
    ):
        items.remove(item)
        items.insert(number * share, item)


@pytest.fixture(scope="session")
def micro(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, worker_id: str
) -> Path:
    """The micro project after what `make study` runs; tests only read it."""
    if ready := request.config.getoption("--micro"):
        return Path(ready)
    own = tmp_path_factory.getbasetemp()
    folder = (
        own if worker_id == "master" else own.parent
    ) / "micro"  # one for all processes of the tests
    made = folder.with_suffix(".made")
    with FileLock(folder.with_suffix(".lock")):
        if not made.exists():
            run_in(
                copy_project(folder),
                "python",
                "-m",
                "stages.warm",
                "dvc",
                "repro",
                "--all-pipelines",
                "--quiet",
            )
            made.touch()
    return folder


@pytest.fixture(scope="session")
def everything(micro: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> list[str]:
    """The stages that `dvc repro --force --all-pipelines` would run of it, as `planned` says them, asked once for all processes."""
    own = tmp_path_factory.getbasetemp()
    kept = (own if worker_id == "master" else own.parent) / "planned.json"
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            kept.write_text(json.dumps(planned(micro, "--all-pipelines")))
    return json.loads(kept.read_text())


@pytest.fixture(scope="session")
def page(micro: Path) -> Path:
    """The report page of all subjects of the micro project; tests only read it."""
    return micro / "reports/study.html"


@pytest.fixture(scope="module")
def reader(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Someone who looks at it in a real Chromium."""
    from tests.report.browsing import reading  # it needs what is defined above

    with reading(page, tmp_path_factory.mktemp("profile")) as someone:
        yield someone


@pytest.fixture
def close_figures() -> Iterator[None]:
    """Frees the figures that a test has drawn."""
    yield
    from stages.lib.drawing import drawing  # only here: most tests draw nothing

    drawing.plt.close("all")


def copied(project: Path, folder: Path) -> Path:
    """A copy of a project, with outputs that are links to its own cache."""
    subprocess.run(["cp", "-a", project, folder], check=True)
    return folder


@pytest.fixture
def micro_copy(micro: Path, tmp_path: Path) -> Path:
    """A copy of the micro project for a test that changes it."""
    return copied(micro, tmp_path / "project")

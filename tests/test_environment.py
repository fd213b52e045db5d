"""Test environments that users have: locales, settings of matplotlib, file systems.

Locales without UTF-8, matplotlib settings of Jupyter and users, read-only folders, file systems
without locks.
"""

import ast
import errno
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stages.lib.core import hdf5_store
from stages.lib.core.compiled import compiled
from stages.lib.core.settings import ParamsError
from stages.lib.core.tables import write_table
from stages.lib.sql.files import dataset
from tests.conftest import run_in
from tests.micro import ROOT, copy_project

# in which Python takes text files for ASCII
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_every_text_file_is_read_and_written_with_an_encoding():
    """Ruff's PLW1514 sees only calls on what it knows to be a path."""
    for file in (ROOT / "stages").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
                "read_text",
                "write_text",
            ):
                assert "encoding" in {keyword.arg for keyword in node.keywords}, (
                    f"{file}, line {node.lineno}"
                )


def test_settings_tables_and_queries_are_read_in_any_locale(tmp_path: Path):
    project = copy_project(tmp_path / "project")
    write_table(
        pl.DataFrame({"subject": ["größe"], "accuracy": [1.0]}),
        project / "data/abacus/store/accuracy.parquet",
    )
    code = (
        "import sys; from stages import settings; from stages.lib.console import bag; "
        "settings.main();"
        "sys.argv = ['bag', 'tables', 'accuracy']; bag.main(); sys.argv = ['bag', 'select subject "
        "from accuracy']; bag.main()"
    )
    done = run_in(project, "python", "-c", code, more=ASCII)
    assert "gr??e" in done.stdout
    assert (project / "data/settings.txt").exists()


NO_LOCKS = """
#include <errno.h>
int flock(int file, int operation) { errno = ENOLCK; return -1; }
"""
STORE = """
import numpy as np
from pathlib import Path
from stages.lib.core import hdf5_store
from stages.lib.core.compiled import compiled
from stages.lib.core.settings import ParamsError
hdf5_store.write_array(Path("store.h5"), {"means": np.arange(3.0)}, {"subject": "a"})
store = Path("store.h5")
print(hdf5_store.read_array(store, "means"), hdf5_store.read_attributes(store))
"""


@pytest.mark.skipif(
    not shutil.which("gcc") or sys.platform != "linux",
    reason="builds a library that takes flock away",
)
def test_stores_are_written_and_read_on_a_file_system_without_locks(tmp_path: Path):
    (tmp_path / "no_locks.c").write_text(NO_LOCKS)
    run_in(tmp_path, "gcc", "-shared", "-fPIC", "-o", "no_locks.so", "no_locks.c")
    more = {"LD_PRELOAD": str(tmp_path / "no_locks.so"), "PYTHONPATH": str(ROOT)}
    flock = "import fcntl; fcntl.flock(open('no_locks.c'), fcntl.LOCK_SH)"
    assert (
        "No locks available"
        in run_in(tmp_path, "python", "-c", flock, more=more, check=False).stderr
    )
    assert (
        run_in(tmp_path, "python", "-c", STORE, more=more).stdout == "[0. 1. 2.] {'subject': 'a'}\n"
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOLCK, errno.EMFILE])
def test_what_the_system_refuses_is_not_called_damage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
):
    store, table = tmp_path / "store/activations/add.h5", tmp_path / "store/accuracy.parquet"
    hdf5_store.write_array(store, {"means": np.arange(3.0)}, {})
    write_table(pl.DataFrame({"accuracy": [1.0]}), table)

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("h5py.File", refuse)
    monkeypatch.setattr("pyarrow.parquet.read_schema", refuse)
    for read in (hdf5_store.LayerStore, hdf5_store.read_attributes):
        with pytest.raises(
            hdf5_store.StoreError,
            match=r"add\.h5 cannot be read, but need not be damaged",
        ) as refused:
            read(store)
        assert "heal" not in str(refused.value)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        dataset([table])


FIGURE = """
from pathlib import Path
from stages.lib.drawing import drawing
figure, axes = drawing.panels(1, 2, "title")
drawing.curve(axes[0, 0], [0, 1], [0, 1000.5], "line", drawing.BLUE)
drawing.legend(figure)
drawing.save(figure, Path("figure"))
"""
TASTES = (
    "font.size: 20\nfont.family: serif\naxes.grid: True\nlines.linewidth: 7\nsavefig.facecolor: "
    "red\nsvg.fonttype: none\nbackend: tkagg\n"
)


def test_a_figure_has_the_same_bytes_whatever_a_user_sets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Jupyter's backend, which is not installed, a user's matplotlibrc, and one in the folder."""
    for folder in ("plain", "own", "settings"):
        (tmp_path / folder).mkdir()
    for folder in ("own", "settings"):
        (tmp_path / folder / "matplotlibrc").write_text(TASTES)
    more = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MPLCONFIGDIR": str(tmp_path / "settings"),
    }
    run_in(tmp_path / "own", "python", "-c", FIGURE, more=more | {"PYTHONPATH": str(ROOT)})
    monkeypatch.chdir(tmp_path / "plain")
    exec(compile(FIGURE, "figure", "exec"), {})
    for name in ("figure.png", "figure.svg"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_a_ray_address_where_nothing_listens_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    from stages.lib.units import actors  # only here: Ray is slow to import

    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        for scheme in ("", "ray://"):
            monkeypatch.setenv("RAY_ADDRESS", f"{scheme}127.0.0.1:{bound.getsockname()[1]}")
            with pytest.raises(
                ParamsError,
                match=rf"no Ray cluster answers at RAY_ADDRESS='{scheme}127\.0\.0\.1:\d+'",
            ):
                actors.ready(print).__enter__()


def test_a_folder_too_long_for_the_sockets_of_ray_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    from stages.lib.units import actors  # only here: Ray is slow to import

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "/tmp/" + "x" * 60)
        with pytest.raises(
            ParamsError, match=r"a path of 65 bytes; at most \d\d are possible: set RAY_TMPDIR=/tmp"
        ):
            actors.ready(print).__enter__()
        monkeypatch.setenv(name, "/tmp")
    actors._check_folder()


@pytest.mark.parametrize("given", [["tables"], ["select 1"], ["check", "models/mine"]])
def test_a_path_that_the_locale_cannot_name_is_refused_with_what_to_set(
    tmp_path: Path, given: list[str]
):
    (tmp_path / "größe").mkdir()
    code = "import sys; from stages.lib.console import bag; sys.argv[0] = 'bag'; bag.main()"
    done = run_in(
        tmp_path / "größe",
        "python",
        "-c",
        code,
        *given,
        check=False,
        more=ASCII | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "gr" in done.stderr
    assert done.stderr.endswith("file names are ascii here, not UTF-8; set PYTHONUTF8=1\n")


def test_functions_are_compiled_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert compiled(fastmath={"reassoc"})(lambda number: number + 1)(41) == 42

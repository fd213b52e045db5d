"""Fill and read data/starter, a small DVC remote in Git: results of the default model.

`make starter` and `make quick` call this module:

    python -m stages.lib.console.starter fill     # from DVC's cache
    python -m stages.lib.console.starter fetch    # into data/ and reports/

The starter has the tables that SQL, `bag explore`, the notebooks and the page read, and the page.
It leaves out activations, which one stage makes in a minute or two, and large tables. `fill` makes
the folder exactly what the locks say, so that Git gets no file that nothing reads. `fetch` verifies
every file against the locks, as `make pull` does.
"""

import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from stages.lib.console import locks, remote
from stages.lib.console.remote import Pulled, RemoteError, Source
from stages.lib.console.verify import file_sum, object_of
from stages.lib.core.files import replacing
from stages.lib.core.settings import read

FOLDER = Path("data/starter")
MOST = 12_000_000  # bytes of the folder, as Git keeps every version of it
LARGEST = 300_000  # bytes of a table that is in the starter unless LEFT_OUT names it
# larger tables that the explorer and the notebooks read
LARGER = re.compile(r"/(matches|neuron_effects|predictions|spectra)\.parquet$")
# what experiments ran, prompt by prompt, and what is made together with the activations
LEFT_OUT = re.compile(
    r"/runs/|/(\w+_)?(interventions|pairs|weights|associations|neuron_sums)\.parquet$"
)
# The origins of models are a folder of tables. Ablations need the means.
OTHERS = (
    "data/settings.txt",
    "data/subjects/origins",
    "data/{subject}/store/means.h5",
    "reports/index.html",
)
STARTER = Source(
    remote="starter",
    command="make quick",
    place=f"{FOLDER}",
    repair=f"restore the folder with `git checkout -- {FOLDER}`",
    fill="`make` makes them",
)


def main() -> None:
    [command] = sys.argv[1:]
    locks.main()
    try:
        repo = Repo()
        lines = fill(repo) if command == "fill" else fetch(repo)
    except DvcException as error:
        raise RemoteError(f"{error}") from None
    print("\n".join(lines))


def belongs(name: str, size: int, subject: str) -> bool:
    """Return whether an output is in the starter.

    name: its path; size: bytes; subject: the default model. The output is of a stage of this model,
    or of no model.
    """
    if name in {other.format(subject=subject) for other in OTHERS}:
        return True
    if not name.startswith("data/") or not name.endswith(".parquet") or LEFT_OUT.search(name):
        return False
    return size <= LARGEST or LARGER.search(name) is not None


def outputs(repo: Repo) -> list[Pulled]:
    """Return the outputs that are in the starter, as far as they are in a lock.

    Raises RemoteError if there are none.
    """
    subject = read()["default"]
    made = repo.stage.collect("dvc.yaml", with_deps=True)  # what `make` makes
    own = [stage for stage in made if stage.name.partition("@")[2] in ("", subject)]
    listed = remote.cached(repo, own)
    wanted = [output for output in listed if output.sum and _is_in(output, subject)]
    if not wanted:
        raise RemoteError(f"no lock names a result of {subject}; `make` makes them")
    return wanted


def _is_in(output: Pulled, subject: str) -> bool:
    return belongs(output.name, output.size, subject)


def fetch(repo: Repo) -> list[str]:
    """Check out what the starter has, and return the lines to print; see `remote.fetch`."""
    target = f"stages/store/dvc.yaml:dump@{read()['default']}"
    later = f"activations are not among them: `dvc repro {target}` makes them in a minute or two"
    return [*remote.fetch(repo, outputs(repo), STARTER), later]


def fill(repo: Repo) -> list[str]:
    """Copy the starter's files from DVC's cache, remove all others, and return lines to print.

    Raises RemoteError, before it changes anything, if the cache lacks an output or has it with
    other bytes, or if the files are too large.
    """
    cache, folder = Path(repo.cache.local.path), Path(repo.cloud.get_remote_odb("starter").path)
    wanted = outputs(repo)
    lacking = [output.name for output in wanted if not remote.is_whole(output, cache)]
    if lacking:
        problem = f"DVC's cache lacks {remote.some(lacking)}"
        raise RemoteError(f"make starter: {problem}; `make` makes them")
    sums: set[str] = set()
    for output in wanted:
        sums |= {output.sum, *remote.files_of(output, cache).values()}
    files = {object_of(folder, md5): object_of(cache, md5) for md5 in sorted(sums)}
    size = _checked(list(files.values()))
    new = _copied(files)
    removed = _removed(Path(repo.root_dir) / FOLDER, files.keys())
    return [
        f"{FOLDER}: {len(wanted)} outputs, {size / 1e6:.1f} MB in {len(files)} files",
        f"{new} files of them new, {removed} others removed",
    ]


def _checked(objects: list[Path]) -> int:
    """Return the bytes of objects in the cache. Raises RemoteError, see `fill`."""
    for path in objects:
        md5 = path.parent.name + path.name.removesuffix(".dir")
        if file_sum(path) != md5:
            way_out = "`bag verify --heal` removes it, and names the stage to rerun"
            raise RemoteError(f"make starter: {path} in DVC's cache is damaged; {way_out}")
    size = sum(path.stat().st_size for path in objects)
    if size > MOST:
        problem = f"{size / 1e6:.1f} MB are more than {MOST / 1e6:.0f} MB"
        way_out = f"leave out more tables in {Path(__file__).name} (LARGEST, LARGER, LEFT_OUT)"
        raise RemoteError(f"make starter: {problem}; {way_out}")
    return size


def _copied(files: dict[Path, Path]) -> int:
    """Copy objects that a folder lacks or has with other bytes. files: target -> its source."""
    new = 0
    for target, source in files.items():
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as partial:
            shutil.copyfile(source, partial)
        new += 1
    return new


def _removed(folder: Path, kept: Collection[Path]) -> int:
    """Remove all files of a folder but those kept, and folders that are empty then."""
    others = [path for path in folder.rglob("*") if path.is_file() and path not in kept]
    for path in others:
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return len(others)


if __name__ == "__main__":
    main()

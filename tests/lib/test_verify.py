"""`bag verify` names every damaged copy; `--heal` and `dvc repro` restore the bytes of the lock."""

import os
import random
import re
from pathlib import Path

import pytest
import yaml
from dvc.schema import COMPILED_LOCKFILE_SCHEMA

from stages.lib.console import locks
from stages.lib.console.locks import LockError, cut
from stages.lib.console.verify import verify
from tests.conftest import MAKE, bag_in, copied, run_in
from tests.micro import ROOT

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t")


def commit(project: Path, message: str = "-") -> None:
    run_in(project, "git", *IDENTITY, "commit", "-qm", message, "--allow-empty")


@pytest.fixture
def project(micro_copy: Path) -> Path:
    """Return the micro project with its locks committed."""
    run_in(micro_copy, "git", "add", "-A")
    commit(micro_copy)
    return micro_copy


def flip(path: Path, random: random.Random, keep_time: bool) -> None:
    """Change one bit of a file, even a read-only one, in all its links."""
    status = path.stat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    with path.open("r+b") as file:
        file.write(content)
    path.chmod(status.st_mode)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def stages_of(lock: Path) -> dict[str, dict]:
    return yaml.load(lock.read_text(), yaml.CSafeLoader)["stages"]


def outputs(project: Path) -> dict[str, str]:
    """Return the sum of every output by its path."""
    sums = {}
    for lock in [project / "dvc.lock", *project.glob("stages/**/dvc.lock")]:
        for entry in stages_of(lock).values():
            sums |= {out["path"]: out["md5"] for out in entry["outs"]}
    return sums


def test_an_undamaged_project_is_well(project: Path):
    lines, well = verify(project)
    assert well
    assert len(lines) == 1
    assert re.fullmatch(r"[\d,]+ files compared with \d+ locked stages: 0 damaged", lines[0])


def test_damage_is_named_and_healed(project: Path):
    """Flip a bit in a file of several kinds, also in its link in the cache.

    Every second time, the time of the file's last change is kept.
    """
    rolls = random.Random(1)
    files = []
    for path in sorted([*(project / "data").rglob("*"), *(project / "reports").rglob("*")]):
        if path.is_file() and path.stat().st_nlink > 1:
            files.append(path)
    last_of_kind = {path.suffix: path for path in files}  # few stages read these
    flipped = sorted(last_of_kind[kind] for kind in (".parquet", ".h5", ".png", ".safetensors"))
    for number, path in enumerate(flipped):
        flip(path, rolls, keep_time=number % 2 == 0)
    linked = {path.stat().st_ino for path in flipped}
    damaged = {path for path in files if path.stat().st_ino in linked}  # equal outputs are one file
    whole = outputs(project)
    lines, well = verify(project, heal=True)
    assert not well
    named, cached = set(), set()
    for line in lines:
        name, separator, _ = line.partition(" differs from its lock")
        if separator:
            (cached if ".dvc" in name else named).add(project / name)
    assert named == damaged
    assert len(cached) == len(flipped)
    run_in(project, "python", "-m", "stages.warm", *repro_of(lines))
    assert outputs(project) == whole
    assert verify(project)[1]
    assert all((project / path).exists() for path in whole)


def repro_of(lines: list[str]) -> list[str]:
    """Return the command that `bag verify --heal` names to make removed outputs again."""
    [line] = [line for line in lines if line.startswith("The damaged copies are removed")]
    return re.search(r"`(dvc repro [^`]*)`", line)[1].split()


def test_damage_is_named_by_the_console_and_left_until_healing_is_asked_for(project: Path):
    table = project / "data/abacus/store/accuracy.parquet"
    weights = project / "data/models/abacus/step-00200/model.safetensors"
    list_file = next((project / ".dvc/cache").rglob("*.dir"))
    for path in (table, weights, list_file):
        flip(path, random.Random(1), keep_time=True)
    done = run_in(project, "bag", "verify", check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    differs = "differs from its lock: stages"
    store, subjects = "store/dvc.yaml:accuracy@abacus", "subjects/dvc.yaml:train@abacus"
    assert f"data/abacus/store/accuracy.parquet {differs}/{store} wrote it" in lines
    assert f"data/models/abacus {differs}/{subjects} wrote it" in lines
    heal = "`bag verify --heal` removes the damaged copies; then"
    assert re.match(rf"{heal} `dvc repro .*stages/{store}.*` makes", lines[-1])
    assert "`git checkout -- data/models/abacus` restores what Git keeps" in lines[-1]
    assert bag_in(project, "verify").stdout == done.stdout


def test_a_lock_that_was_cut_is_seen(project: Path):
    lock = project / "stages/store/dvc.lock"
    text = lock.read_text()
    names = list(stages_of(lock))
    lock.write_text(text[: text.index(f"  {names[-2]}:\n")])
    lost = rf"lacks 2 of the {len(names)} stages .*{', '.join(sorted(names[-2:]))}"
    with pytest.raises(LockError, match=rf"stages/store/dvc.lock {lost}.*git checkout"):
        verify(project)
    problem = r"bag: stages/store/dvc.lock (cannot be read|lacks \d+ of the)"
    for content in ("", text[:-40].rpartition("md5")[0], text[: len(text) // 2] + "\n  - {"):
        lock.write_text(content)
        done = bag_in(project, "verify")
        assert done.returncode == 1
        assert re.match(rf"{problem}.*`git checkout -- stages/store/dvc.lock`", done.stderr)
    run_in(project, "git", "checkout", "--", "stages/store/dvc.lock")
    assert verify(project)[1]


FOUR = ("task_predictions@abacus", "prompts@abacus", "architecture@abacus", "dump@abacus")


@pytest.mark.parametrize("committed", [True, False])
def test_a_lock_that_is_cut_anywhere_is_reported_or_complete(tmp_path: Path, committed: bool):
    """Cut a lock of four stages, one of several outputs, at many places.

    What is not reported, DVC accepts, and it has every sum; or, if Git does not know the lock,
    every sum of the stages that it still lists.
    """
    name = "stages/store/dvc.lock"
    lock, shipped = tmp_path / name, stages_of(ROOT / name)
    four = {name: shipped[name] for name in FOUR}
    whole = yaml.safe_dump({"schema": "2.0", "stages": four}, sort_keys=False)
    lock.parent.mkdir(parents=True)
    lock.write_text(whole)
    run_in(tmp_path, "git", "init", "-q")
    if committed:
        run_in(tmp_path, "git", "add", "-A")
    commit(tmp_path)
    rolls = random.Random(0)
    places = {*rolls.sample(range(len(whole)), 60)}
    for end in re.finditer("\n", whole):
        places.add(end.start() + rolls.randrange(-8, 2))
    unseen = 0
    for place in places:
        lock.write_text(whole[:place])
        if not list(cut(tmp_path)):
            unseen += 1
            left = COMPILED_LOCKFILE_SCHEMA(yaml.load(whole[:place], yaml.CSafeLoader))["stages"]
            assert not committed or left.keys() == four.keys()
            *complete, last = left
            for stage in complete:
                assert sums_of(left[stage]) == sums_of(four[stage])
            assert all(out["size"] for out in left[last]["outs"])
    lock.write_text(whole)
    assert not list(cut(tmp_path))
    assert unseen < 20
    assert unseen or committed


def sums_of(entry: dict) -> list[tuple]:
    return [(out.get("path"), out.get("md5"), out.get("size")) for out in entry["outs"]]


def test_a_lock_that_was_cut_is_put_back_before_anything_is_made_or_pushed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    lock = project / "stages/store/dvc.lock"
    whole = lock.read_text()
    names = list(stages_of(lock))
    problem = r"stages/store/dvc.lock (lacks 2 of|cannot be read)"
    monkeypatch.chdir(project)
    for content in (
        whole[: whole.index(f"  {names[-2]}:\n")],
        whole[: len(whole) // 2] + "\n  - {",
    ):
        lock.write_text(content)
        locks.main()
        assert re.search(rf"{problem}.* restored the committed lock", capfd.readouterr().err)
        assert lock.read_text() == whole
    for text in ("", '{"data/x": {"wri', "[]"):
        (project / ".dvc/tmp/rwlock").write_text(text)
        locks.main()
        assert "which was cut off" in capfd.readouterr().err
    run_in(project, "dvc", "status", "stages/corpus/dvc.yaml")
    lock.write_text("")
    run_in(project, "git", "rm", "-q", "--cached", str(lock))
    commit(project, "no lock")
    locks.main()
    assert "removed the lock" in capfd.readouterr().err
    assert not lock.exists()


@pytest.mark.parametrize("target", ["all", "study", "model", "example"])
def test_make_looks_at_the_locks_first(target: str):
    """`make push` does so, too, see test_remotes.py."""
    commands = run_in(ROOT, *MAKE, "-n", target, "NAME=abacus").stdout.splitlines()
    of_ours = [command for command in commands if command.startswith("python -m stages")]
    assert of_ours[0] == "python -m stages.lib.console.locks"
    branches = "python -m stages.lib.console.branches"
    then = {"all": f"{branches} default", "study": f"{branches} study"}
    assert of_ours[1].startswith(then.get(target, "python -m stages.warm dvc repro"))


def test_missing_files_are_no_damage(project: Path):
    (project / "data/abacus/store/predictions.parquet").unlink()
    assert verify(project)[1]
    for path in list((project / "data/planted").rglob("*.h5")):
        path.unlink()
    lines, well = verify(project)
    assert well
    assert len(lines) == 1  # the cache still has them


def repository(folder: Path) -> None:
    """Make a folder a repository of Git and of DVC."""
    run_in(folder, "git", "init", "-q")
    commit(folder)
    run_in(folder, "dvc", "init", "-q")


def test_a_model_and_a_table_that_no_stage_makes_are_compared_with_what_was_read(tmp_path: Path):
    repository(tmp_path)
    (tmp_path / "stages/store").mkdir(parents=True)
    (tmp_path / "models/own").mkdir(parents=True)
    (tmp_path / "models/own/model.safetensors").write_bytes(bytes(100))
    command = "cat models/own/* > data.txt"
    stage = {"cmd": command, "wdir": "../..", "deps": ["models/own"], "outs": ["data.txt"]}
    (tmp_path / "stages/store/dvc.yaml").write_text(yaml.safe_dump({"stages": {"copy": stage}}))
    run_in(tmp_path, "dvc", "repro", "stages/store/dvc.yaml")
    assert verify(tmp_path)[1]
    flip(tmp_path / "models/own/model.safetensors", random.Random(0), keep_time=True)
    lines, well = verify(tmp_path, heal=True)
    assert not well
    problem = "models/own differs from its lock: stages/store/dvc.yaml:copy read it"
    assert lines[0] == f"{problem} with other bytes"
    assert "No stage writes models/own: restore the original files" in lines[-1]
    assert (tmp_path / "models/own/model.safetensors").exists()


@pytest.fixture(scope="module")
def with_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose only output is a folder of four files; two of them are equal.

    The files are links into DVC's cache.
    """
    project = tmp_path_factory.mktemp("folder") / "project"
    (project / "stages/store").mkdir(parents=True)
    repository(project)
    (project / ".dvc/config").write_text("[cache]\n    type = hardlink\n")
    (project / ".dvcignore").write_text("*.partial\n*.parts/\n")
    files = {"a.h5": 1, "b.h5": 2, "deeper/c.h5": 3, "deeper/d.h5": 3}
    commands = ["mkdir -p data/out/deeper && cd data/out"]
    commands += [f"echo {number} > {name}" for name, number in files.items()]
    stage = {"cmd": " && ".join(commands), "wdir": "../..", "outs": ["data/out"]}
    (project / "stages/store/dvc.yaml").write_text(yaml.safe_dump({"stages": {"dump": stage}}))
    run_in(project, "dvc", "repro", "stages/store/dvc.yaml")
    return project


@pytest.fixture
def folder(with_a_folder: Path, tmp_path: Path) -> Path:
    """Return that output in a copy of its project."""
    return copied(with_a_folder, tmp_path / "project") / "data/out"


def contents(folder: Path) -> dict[str, str]:
    files = filter(Path.is_file, folder.rglob("*"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def heal(project: Path) -> None:
    """Do what the last line of `bag verify --heal` says."""
    run_in(project, *repro_of(verify(project, heal=True)[0]))
    assert verify(project)[1]


def test_damaged_and_extra_files_of_a_folder_are_named_and_healed(folder: Path):
    """Neither missing files nor half-written leftovers of a killed stage are named."""
    project, whole = folder.parents[1], contents(folder)
    flip(folder / "a.h5", random.Random(0), keep_time=True)
    (folder / "b.h5").unlink()
    (folder / "deeper/stray.h5").write_text("4\n")
    (folder / "c.h5.partial").write_text("half")
    lines, well = verify(project)
    assert not well
    dump = "stages/store/dvc.yaml:dump"
    [cached] = [line for line in lines if "a copy in the cache" in line]
    assert [line for line in lines[:-2] if line != cached] == [
        f"data/out/a.h5 differs from its lock: {dump} wrote it",
        f"data/out/deeper/stray.h5 differs from its lock: {dump} has no such file",
    ]
    assert contents(folder).keys() == {*whole, "deeper/stray.h5", "c.h5.partial"} - {"b.h5"}
    heal(project)
    assert contents(folder) == whole


def test_an_extra_file_alone_is_removed(folder: Path):
    project, whole = folder.parents[1], contents(folder)
    (folder / "stray.h5").write_text("4\n")
    assert not verify(project, heal=True)[1]
    assert contents(folder) == whole
    assert verify(project)[1]


@pytest.mark.parametrize("damaged", ["a.h5", "deeper/c.h5", None])
def test_a_folder_whose_list_is_lost_is_removed_with_its_damaged_copies(
    folder: Path,
    damaged: str | None,
):
    project, whole = folder.parents[1], contents(folder)
    [list_file] = (project / ".dvc/cache").rglob("*.dir")
    list_file.unlink()
    (folder / "c.h5.partial").write_text("half")
    assert verify(project)[1]  # DVC ignores half-written files
    if damaged:
        flip(folder / damaged, random.Random(0), keep_time=True)
    else:
        (folder / "stray.h5").write_text("4\n")
    lines, well = verify(project)
    assert not well
    assert lines[0] == "data/out differs from its lock: stages/store/dvc.yaml:dump wrote it"
    heal(project)
    assert contents(folder) == whole

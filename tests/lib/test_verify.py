"""bag verify: every damaged copy is named, and `--heal` and `dvc repro` bring the lock's bytes back."""

import os
import random
import re
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo
from dvc.schema import COMPILED_LOCKFILE_SCHEMA

from stages.lib.console.locks import LockError, cut
from stages.lib.console.verify import verify
from tests.conftest import MAKE, bag_in, copied, run_in
from tests.micro import ROOT


@pytest.fixture
def project(micro_copy: Path) -> Path:
    """The micro project with its locks committed."""
    for command in (
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "made"],
    ):
        run_in(micro_copy, "git", *command)
    return micro_copy


def flip(path: Path, random: random.Random, keep_time: bool) -> None:
    """Changes one bit of a file, whatever its mode, in all its links."""
    status = path.stat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    with path.open("r+b") as file:
        file.write(content)
    path.chmod(status.st_mode)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def outputs(project: Path) -> dict[str, str]:
    """The sum of every output by its path."""
    locks = [project / "dvc.lock", *project.glob("stages/**/dvc.lock")]
    entries = [
        entry
        for lock in locks
        for entry in yaml.load(lock.read_text(), yaml.CSafeLoader)["stages"].values()
    ]
    return {out["path"]: out["md5"] for entry in entries for out in entry["outs"]}


def test_an_undamaged_project_is_well(project: Path):
    lines, well = verify(project)
    assert well
    assert len(lines) == 1
    assert re.fullmatch(r"\d+ files compared with \d+ locked stages: 0 damaged", lines[0])


def test_damage_is_named_and_healed(project: Path):
    """One bit in a file of every kind, the first one, in the links to the cache as well, with the time of its last change kept and not."""
    rolls = random.Random(1)
    files = sorted(
        path
        for folder in ("data", "reports")
        for path in (project / folder).rglob("*")
        if path.is_file() and path.stat().st_nlink > 1
    )
    kinds = {
        kind: [path for path in files if path.suffix == kind]
        for kind in {path.suffix for path in files}
    }
    assert kinds.keys() >= {".parquet", ".h5", ".json", ".html", ".png", ".svg", ".safetensors"}
    chosen = {same[0] for same in kinds.values()}
    for number, path in enumerate(sorted(chosen)):
        flip(path, rolls, keep_time=number % 2 == 0)
    linked = {path.stat().st_ino for path in chosen}
    damaged = {
        path for path in files if path.stat().st_ino in linked
    }  # outputs that are equal are one file
    whole = outputs(project)
    lines, well = verify(project, heal=True)
    assert not well
    named = {
        project / line.split(" differs from ")[0]
        for line in lines
        if " differs from its lock" in line
    }
    assert {path for path in named if ".dvc" not in path.parts} == damaged
    assert len({path for path in named if ".dvc" in path.parts}) == len(chosen)
    [said] = [line for line in lines if line.startswith("The damaged copies are removed")]
    run_in(
        project, "python", "-m", "stages.warm", *re.search(r"`(dvc repro [^`]*)`", said)[1].split()
    )
    assert outputs(project) == whole
    assert verify(project)[1]
    assert "up to date" in run_in(project, "dvc", "status").stdout


def test_damage_is_named_by_the_console_and_left_until_healing_is_asked_for(project: Path):
    table, weights = (
        project / "data/abacus/store/accuracy.parquet",
        project / "data/models/abacus/step-00200/model.safetensors",
    )
    listed = next((project / ".dvc/cache").rglob("*.dir"))
    for path in (table, weights, listed):
        flip(path, random.Random(1), keep_time=True)
    done = run_in(project, "bag", "verify", check=False)
    assert done.returncode == 1
    said = done.stdout.splitlines()
    assert (
        "data/abacus/store/accuracy.parquet differs from its lock: "
        "stages/store/dvc.yaml:accuracy@abacus wrote it" in said
    )
    assert (
        "data/models/abacus differs from its lock: stages/subjects/dvc.yaml:train@abacus wrote it"
        in said
    )
    assert re.match(
        (
            "`bag verify --heal` removes the damaged copies; then `dvc repro "
            ".*stages/store/dvc.yaml:accuracy@abacus.*` makes"
        ),
        said[-1],
    )
    assert "`git checkout -- data/models/abacus` restores what Git keeps" in said[-1]
    assert bag_in(project, "verify").stdout == done.stdout


def test_a_lock_that_was_cut_is_seen(project: Path):
    lock = project / "stages/store/dvc.lock"
    text = lock.read_text()
    names = list(yaml.load(text, yaml.CSafeLoader)["stages"])
    lock.write_text(text[: text.index(f"  {names[-2]}:\n")])
    with pytest.raises(
        LockError,
        match=(
            rf"stages/store/dvc.lock lacks 2 of the {len(names)} stages .*{names[-2]}, "
            rf"{names[-1]}.*git checkout"
        ),
    ):
        verify(project)
    for content in ("", text[:-40].rpartition("md5")[0], text[: len(text) // 2] + "\n  - {"):
        lock.write_text(content)
        done = bag_in(project, "verify")
        assert done.returncode == 1
        assert re.match(
            (
                r"bag: stages/store/dvc.lock (cannot be read|lacks \d+ of the).*`git checkout -- "
                r"stages/store/dvc.lock`"
            ),
            done.stderr,
        )
    run_in(project, "git", "checkout", "--", "stages/store/dvc.lock")
    assert verify(project)[1]


@pytest.mark.parametrize("committed", [True, False])
def test_wherever_a_lock_is_cut_it_is_seen_or_says_nothing_wrong(tmp_path: Path, committed: bool):
    """Of four stages, one of several outputs: DVC accepts what is not seen, and it has every sum that it had, or in a lock that Git does
    not know, that of every stage it still lists."""
    name = "stages/store/tensors/dvc.lock"
    lock, shipped = (
        tmp_path / name,
        yaml.load((ROOT / name).read_text(), yaml.CSafeLoader)["stages"],
    )
    four = {
        name: shipped[name]
        for name in (
            "task_predictions@abacus",
            "prompts@abacus",
            "architecture@abacus",
            "dump@abacus",
        )
    }
    whole = yaml.safe_dump({"schema": "2.0", "stages": four}, sort_keys=False)
    lock.parent.mkdir(parents=True)
    lock.write_text(whole)
    run_in(tmp_path, "git", "init", "-q")
    run_in(tmp_path, "git", "add", *(["-A"] if committed else []))
    run_in(
        tmp_path,
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "commit",
        "-qm",
        "-",
        "--allow-empty",
    )
    rolls, ends = random.Random(0), [place for place, letter in enumerate(whole) if letter == "\n"]
    unseen = 0
    for place in {
        *rolls.sample(range(len(whole)), 60),
        *(end + rolls.randrange(-8, 2) for end in ends),
    }:
        lock.write_text(whole[:place])
        if not list(cut(tmp_path)):
            unseen += 1
            left = COMPILED_LOCKFILE_SCHEMA(yaml.load(whole[:place], yaml.CSafeLoader))["stages"]
            assert not committed or left.keys() == four.keys()
            sums = [
                [{name: out.get(name) for name in ("path", "md5", "size")} for out in entry["outs"]]
                for entry in left.values()
            ]
            assert (
                sums[:-1]
                == [
                    [{n: out[n] for n in ("path", "md5", "size")} for out in four[name]["outs"]]
                    for name in left
                ][:-1]
            )
            assert all(out["size"] for out in sums[-1])
    lock.write_text(whole)
    assert not list(cut(tmp_path))
    assert unseen < 20


def test_a_lock_that_was_cut_is_put_back_before_anything_is_made_or_pushed(
    project: Path, tmp_path: Path
):
    lock = project / "stages/store/dvc.lock"
    whole = lock.read_text()
    names = list(yaml.load(whole, yaml.CSafeLoader)["stages"])
    run_in(project, *MAKE, "remote", f"URL={tmp_path / 'remote'}")
    for target, content in (
        ("push", whole[: whole.index(f"  {names[-2]}:\n")]),
        ("all", whole[: len(whole) // 2] + "\n  - {"),
    ):
        lock.write_text(content)
        done = run_in(project, *MAKE, target)
        assert re.search(
            r"stages/store/dvc.lock (lacks 2 of|cannot be read).* restored the committed lock",
            done.stderr,
        )
        assert lock.read_text() == whole
        assert "Running stage" not in done.stdout
    there = {path.name for path in (tmp_path / "remote").rglob("*") if path.is_file()}
    assert {md5[2:] for md5 in outputs(project).values() if not md5.endswith(".dir")} - there <= {
        md5[2:] for md5 in uncached(project)
    }
    for text in ("", '{"data/x": {"wri', "[]"):
        (project / ".dvc/tmp/rwlock").write_text(text)
        assert (
            "which was cut off"
            in run_in(project, "python", "-m", "stages.lib.console.locks").stderr
        )
    run_in(project, "dvc", "status", "stages/corpus/dvc.yaml")
    lock.write_text("")
    run_in(project, "git", "rm", "-q", "--cached", str(lock))
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "no lock")
    assert "removed the lock" in run_in(project, "python", "-m", "stages.lib.console.locks").stderr
    assert not lock.exists()


def uncached(project: Path) -> set[str]:
    """The sums of outputs that Git keeps, not DVC."""
    with Repo(project) as repo:
        return {out.hash_info.value for out in repo.index.outs if not out.use_cache}


def test_what_is_not_here_is_no_damage(project: Path):
    (project / "data/abacus/store/predictions.parquet").unlink()
    assert verify(project)[1]
    for path in [*(project / "data/planted").rglob("*.h5")]:
        path.unlink()
    lines, well = verify(project)
    assert well
    assert len(lines) == 1  # the cache still has them


def test_a_model_and_a_table_that_no_stage_makes_are_held_against_what_was_read(tmp_path: Path):
    for command in (
        ["init", "-q"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "-", "--allow-empty"],
    ):
        run_in(tmp_path, "git", *command)
    run_in(tmp_path, "dvc", "init", "-q")
    (tmp_path / "stages/store").mkdir(parents=True)
    (tmp_path / "models/own").mkdir(parents=True)
    (tmp_path / "models/own/model.safetensors").write_bytes(bytes(100))
    stage = {
        "cmd": "cat models/own/* > data.txt",
        "wdir": "../..",
        "deps": ["models/own"],
        "outs": ["data.txt"],
    }
    (tmp_path / "stages/store/dvc.yaml").write_text(yaml.safe_dump({"stages": {"copy": stage}}))
    run_in(tmp_path, "dvc", "repro", "stages/store/dvc.yaml")
    assert verify(tmp_path)[1]
    flip(tmp_path / "models/own/model.safetensors", random.Random(0), keep_time=True)
    lines, well = verify(tmp_path, heal=True)
    assert not well
    assert (
        lines[0]
        == "models/own differs from its lock: stages/store/dvc.yaml:copy read it with other bytes"
    )
    assert "No stage writes models/own: restore the original files" in lines[-1]
    assert (tmp_path / "models/own/model.safetensors").exists()


@pytest.fixture(scope="module")
def with_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose only output is a folder of four files that are links into DVC's cache; two are equal."""
    project = tmp_path_factory.mktemp("folder") / "project"
    (project / "stages/store").mkdir(parents=True)
    for command in (
        ["init", "-q"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "-", "--allow-empty"],
    ):
        run_in(project, "git", *command)
    run_in(project, "dvc", "init", "-q")
    (project / ".dvc/config").write_text("[cache]\n    type = hardlink\n")
    (project / ".dvcignore").write_text("*.partial\n*.parts/\n")
    made = (
        "mkdir -p data/out/deeper && cd data/out && echo 1 > a.h5 && echo 2 > b.h5 && echo 3 > "
        "deeper/c.h5 && echo 3 > deeper/d.h5"
    )
    stage = {"cmd": made, "wdir": "../..", "outs": ["data/out"]}
    (project / "stages/store/dvc.yaml").write_text(yaml.safe_dump({"stages": {"dump": stage}}))
    run_in(project, "dvc", "repro", "stages/store/dvc.yaml")
    return project


@pytest.fixture
def folder(with_a_folder: Path, tmp_path: Path) -> Path:
    """That output, in a copy of its project."""
    return copied(with_a_folder, tmp_path / "project") / "data/out"


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def healed(project: Path) -> None:
    """Does what the last line of `bag verify --heal` says."""
    [said] = [
        line
        for line in verify(project, heal=True)[0]
        if line.startswith("The damaged copies are removed")
    ]
    run_in(project, *re.search(r"`(dvc repro [^`]*)`", said)[1].split())  # type: ignore[index]
    assert verify(project)[1]


def test_of_a_folder_what_is_damaged_and_what_it_never_had_is_named_and_healed(folder: Path):
    """And nothing else: neither what is not here, nor what a stage that was killed has left half-written."""
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
    healed(project)
    assert contents(folder) == whole


def test_a_stray_file_alone_is_taken_away_and_all_is_well(folder: Path):
    project, whole = folder.parents[1], contents(folder)
    (folder / "stray.h5").write_text("4\n")
    assert not verify(project, heal=True)[1]
    assert contents(folder) == whole
    assert verify(project)[1]


@pytest.mark.parametrize("damaged", ["a.h5", "deeper/c.h5", None])
def test_a_folder_whose_list_is_lost_is_taken_away_with_the_copies_that_would_bring_the_damage_back(
    folder: Path, damaged: str | None
):
    project, whole = folder.parents[1], contents(folder)
    [listed] = (project / ".dvc/cache").rglob("*.dir")
    listed.unlink()
    (folder / "c.h5.partial").write_text("half")
    assert verify(project)[1]  # what DVC does not look at is no damage
    if damaged:
        flip(folder / damaged, random.Random(0), keep_time=True)
    else:
        (folder / "stray.h5").write_text("4\n")
    lines, well = verify(project)
    assert not well
    assert lines[0] == "data/out differs from its lock: stages/store/dvc.yaml:dump wrote it"
    healed(project)
    assert contents(folder) == whole

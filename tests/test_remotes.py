"""Push and pull through real servers on loopback: an SFTP server and an S3 API server."""

import getpass
import hashlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from stages.lib.console import remote as sharing
from stages.lib.console import starter
from stages.lib.console.folders import unlike_lock
from stages.lib.console.verify import file_sum, verify
from tests import storage
from tests.conftest import MAKE, copied, run_in
from tests.micro import ROOT

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise RuntimeError(f"the server stopped with status {process.returncode}")


Remote = tuple[str, dict[str, str]]  # its URL, and its further settings


@pytest.fixture(scope="module")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """An OpenSSH server with a key of its own."""
    if SSHD is None:
        pytest.skip("no sshd here: install openssh-server")
    folder = tmp_path_factory.mktemp("server")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = free_port()
    options = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "yes",
        "Subsystem": "sftp internal-sftp",
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield (
            f"ssh://{getpass.getuser()}@127.0.0.1:{port}",
            {"keyfile": str(folder / "user"), "allow_agent": "false"},
        )
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def s3() -> Iterator[Remote]:
    """An S3 API server with one bucket."""
    with storage.serving() as bucket:
        yield (
            "s3://bag/store",
            {
                "endpointurl": bucket.endpoint,
                "access_key_id": "user",
                "secret_access_key": "secret",
                "region": "us-east-1",
            },
        )


def write_local(project: Path, settings: dict[str, str]) -> None:
    """Write settings of the remote that stay out of Git."""
    lines = ["['remote \"storage\"']"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    (project / ".dvc/config.local").write_text("\n".join(lines))


def configure(project: Path, remote: Remote) -> None:
    """Run the one documented command, and write the server's own settings."""
    url, settings = remote
    run_in(project, *MAKE, "remote", f"URL={url}")
    write_local(project, settings)
    run_in(project, "git", "add", "-A")
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "results")


def fresh_clone(project: Path, folder: Path) -> Path:
    run_in(project, "git", "clone", "-q", str(project), str(folder))
    shutil.copy(project / ".dvc/config.local", folder / ".dvc/config.local")
    return folder


@pytest.fixture(scope="module")
def pushed(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the micro project, pushed to the folder `storage`; tests only read it."""
    folder = tmp_path_factory.mktemp("pushed")
    project = copied(micro, folder / "project")
    configure(project, (str(folder / "storage"), {}))
    run_in(project, *MAKE, "push")
    return project


def present(folder: Path) -> set[str]:
    """Return the files in data/ that DVC keeps."""
    data = folder / "data"
    files = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
    in_git = ("models/", "subjects/training_log/")
    return {f for f in files if not f.startswith(in_git) and ".gitignore" not in f}


def test_a_file_what_a_query_reads_and_a_subject_are_pulled(pushed: Path, tmp_path: Path):
    """DVC pulls what the query reads to run it again. The tests of servers pull everything."""
    everything = present(pushed)
    clone = fresh_clone(pushed, tmp_path / "clone")
    assert present(clone) == set()

    add = "abacus/store/activations/add.h5"
    run_in(clone, "dvc", "pull", f"data/{add}")
    assert present(clone) == {add}
    assert (clone / "data" / add).read_bytes() == (pushed / "data" / add).read_bytes()

    query = clone / "stages/store/accuracy.sql"
    query.write_text("-- a remark\n" + query.read_text())
    rerun = ("dvc", "repro", "--allow-missing", "--pull", "stages/store/dvc.yaml:accuracy@abacus")
    printed = run_in(clone, *rerun).stdout
    assert re.findall(r"Running stage '([^']+)'", printed) == [rerun[-1]]
    tables = ("accuracy", "predictions", "prompts")
    own = {add, *(f"abacus/store/{table}.parquet" for table in tables)}
    read = {"corpus/cells.parquet", "subjects/origins/abacus.parquet"}
    assert present(clone) == own | read
    run_in(clone, "git", "checkout", "-q", ".")

    run_in(clone, *MAKE, "pull", "SUBJECT=abacus")
    shared = ("abacus/", "corpus/", "heuristics/")
    pulled = present(clone)
    assert {f for f in pulled if f.startswith(shared)} == {
        f for f in everything if f.startswith(shared)
    }
    query = "select count(*) as cells from cells join labels using (operator)"
    assert "cells" in run_in(clone, "bag", query).stdout
    assert not any(f.startswith("planted/") for f in pulled)


def with_content(folder: Path, content: bytes) -> list[Path]:
    files = filter(Path.is_file, folder.rglob("*"))
    return [path for path in files if path.read_bytes() == content]


def test_a_pulled_file_whose_bytes_are_wrong_is_refused(pushed: Path, tmp_path: Path):
    content = (pushed / "data/abacus/store/accuracy.parquet").read_bytes()
    [stored] = with_content(pushed.with_name("storage"), content)
    stored.chmod(0o644)
    stored.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    try:
        clone = fresh_clone(pushed, tmp_path / "clone")
        done = run_in(clone, "dvc", "pull", "data/abacus/store/accuracy.parquet", check=False)
    finally:
        stored.write_bytes(content)  # for the other tests
    assert done.returncode != 0
    assert not (clone / "data/abacus/store/accuracy.parquet").exists()


FOLDER = "data/abacus/store/activations"


def number(content: int, path: str) -> dict[str, object]:
    """Return a stage of a chapter that writes a number to a file."""
    command = f"mkdir -p {Path(path).parent} && echo {content} > {path}"
    return {"cmd": command, "wdir": "../..", "outs": [path]}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two subjects: a folder of stores each, shared tables, and the first one's page.

    Its remote, a folder that DVC does not verify, has the first subject's outputs and the shared
    tables. The second subject has not been made.
    """
    project = tmp_path_factory.mktemp("small") / "project"
    write = "for name in add divide deeper/c; do echo ${item} $$name > $$name.h5; done"
    folder = FOLDER.replace("abacus", "${item}")
    dump = {"cmd": f"mkdir -p {folder}/deeper && cd {folder} && {write}", "outs": [folder]}
    report = f"mkdir -p reports && cat {FOLDER}/*.h5 > reports/index.html"
    deps = [FOLDER, "data/corpus/cells.parquet"]
    stages = {
        "stages/store/dvc.yaml": {
            "dump": {"foreach": ["abacus", "later"], "do": {**dump, "wdir": "../.."}},
        },
        "stages/corpus/dvc.yaml": {"cells": number(1, "data/corpus/cells.parquet")},
        "stages/circuit/dvc.yaml": {"other": number(2, "data/circuit/other.parquet")},
        "dvc.yaml": {"report": {"cmd": report, "deps": deps, "outs": ["reports/index.html"]}},
    }
    for name, entries in stages.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(yaml.safe_dump({"stages": entries}).replace("$$", "$"))
    run_in(project, "git", "init", "-q")
    run_in(project, "dvc", "init", "-q")
    storage = str(project.with_name("storage"))
    run_in(project, "dvc", "remote", "add", "-q", "-d", "storage", storage)
    dump, report = "stages/store/dvc.yaml:dump@abacus", "report"
    tables = ("stages/corpus/dvc.yaml", "stages/circuit/dvc.yaml")
    run_in(project, "dvc", "repro", "-q", dump, *tables, report)
    run_in(project, "git", "add", "-A")
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "made")
    return project


@pytest.mark.parametrize("kind", ["s3", "sftp"])
def test_push_to_a_server_and_pull_from_it(
    small: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
):
    """Push and pull with the module that `make push` and `make pull` run.

    A lock that was cut is put back before anything is pushed.
    """
    url, settings = request.getfixturevalue(kind)
    if kind == "sftp":
        (tmp_path / "storage").mkdir()
        url += str(tmp_path / "storage")
    project = copied(small, tmp_path / "project")
    share = ("python", "-m", "stages.lib.console.remote")
    write_local(project, {"url": url, **settings})
    lock = project / "stages/store/dvc.lock"
    whole = lock.read_text()
    lock.write_text(whole[: len(whole) // 2] + "\n  - {")
    done = run_in(project, *share, "push", more={"PYTHONPATH": str(ROOT)})
    assert "dvc.lock cannot be read" in done.stderr
    assert "restored the committed lock" in done.stderr
    assert lock.read_text() == whole
    clone = fresh_clone(project, tmp_path / "clone")
    assert contents(clone) == {}
    run_in(clone, *share, "pull", "", "", more={"PYTHONPATH": str(ROOT)})
    assert contents(clone) == contents(small)


@pytest.fixture
def shared(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a copy of the remote that `make push` filled, and a clone as working directory."""
    monkeypatch.chdir(small)
    first, last = sharing.push(Repo())
    assert re.fullmatch(r"in the remote: 4 outputs, \d files of them new", first)
    assert last == "not made yet, and not in the remote: 1 output; `make study` makes them"
    store, clone = tmp_path / "storage", tmp_path / "clone"
    shutil.copytree(small.with_name("storage"), store)
    run_in(small, "git", "clone", "-q", str(small), str(clone))
    config = (small / ".dvc/config").read_text()
    config = config.replace(str(small.with_name("storage")), str(store))
    (clone / ".dvc/config").write_text(config)
    monkeypatch.chdir(clone)
    return store, clone


def contents(folder: Path) -> dict[str, str]:
    """Return the content of every file of a project's outputs."""
    files: dict[str, str] = {}
    for path in [*(folder / "data").rglob("*"), *(folder / "reports").rglob("*")]:
        if path.is_file() and path.name != ".gitignore":
            files[str(path.relative_to(folder))] = path.read_text()
    return files


def replaced(path: Path, content: bytes) -> None:
    """Give an object in a remote other bytes."""
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)


def list_of_folder(store: Path) -> Path:
    """Return the object in a remote that lists the files of the subject's folder."""
    [path] = store.rglob("*.dir")
    return path


def without_a_file(store: Path) -> None:
    entries = json.loads(list_of_folder(store).read_text())
    others = [entry for entry in entries if entry["relpath"] != "divide.h5"]
    replaced(list_of_folder(store), json.dumps(others).encode())


def with_a_module(store: Path) -> None:
    code = b"raise SystemExit('planted')"
    md5 = hashlib.md5(code, usedforsecurity=False).hexdigest()
    planted = store / "files/md5" / md5[:2] / md5[2:]
    planted.parent.mkdir(exist_ok=True)
    planted.write_bytes(code)
    entries = json.loads(list_of_folder(store).read_text())
    entries.append({"md5": md5, "relpath": "../../../../tqdm.py"})
    replaced(list_of_folder(store), json.dumps(entries).encode())


def no_list(store: Path) -> None:
    replaced(list_of_folder(store), b"{")


def another_file(store: Path) -> None:
    [path] = with_content(store, b"abacus divide\n")
    replaced(path, b"abacus add\n")


@pytest.mark.parametrize("tamper", [without_a_file, with_a_module, no_list, another_file])
@pytest.mark.parametrize("before", [False, True])
def test_what_was_tampered_with_is_refused_and_the_rest_is_pulled(
    small: Path,
    shared: tuple[Path, Path],
    capfd: pytest.CaptureFixture,
    tamper,
    before: bool,
):
    """Pull into an empty clone, and into one whose cache `dvc fetch` has filled; then repair it."""
    store, clone = shared
    tamper(store)
    if before and tamper is not another_file:  # files that are in the cache are for `bag verify`
        sums = [out.hash_info for out in Repo().index.outs if out.hash_info]
        Repo().cloud.pull([md5 for md5 in sums if md5.isdir and tamper is not no_list])
    problem = "make pull: the remote has 1 output damaged or tampered with; push them again"
    with pytest.raises(SystemExit, match=problem):
        sharing.pull(Repo())
    assert f"refused {FOLDER}: " in capfd.readouterr().err
    whole = contents(small)
    rest = {name: content for name, content in whole.items() if not name.startswith(FOLDER)}
    assert contents(clone) == rest
    assert not (clone / "tqdm.py").exists()
    shutil.rmtree(store)
    shutil.copytree(small.with_name("storage"), store)
    later = FOLDER.replace("abacus", "later")
    assert sharing.pull(Repo()) == [
        "pulled: 4 outputs",
        f"not in the remote: 1 output ({later}); `make study` makes them",
    ]
    assert contents(clone) == whole
    assert verify(clone)[1]
    assert not list(unlike_lock("from activations", Path("data")))


def test_a_folder_that_plain_dvc_pull_takes_with_a_file_less_is_reported(shared: tuple[Path, Path]):
    store, clone = shared
    without_a_file(store)
    Repo().pull(["stages/store/dvc.yaml:dump@abacus"])
    [line] = unlike_lock("from activations", Path("data"))
    assert line.startswith(f"{FOLDER} has 2 files, its lock lists 3")
    lines, well = verify(clone)
    assert not well
    assert f"{FOLDER} differs from its lock: stages/store/dvc.yaml:dump@abacus wrote it" in lines
    (clone / FOLDER / "divide.h5").write_text("abacus divided\n")
    [line] = unlike_lock("from activations", Path("data"))
    problem = f"{FOLDER} has 42 bytes, its lock says 41"
    assert line == f"{problem}; `bag verify` names the files that differ"


def test_a_subject_is_pulled_with_what_is_shared_and_its_page(
    small: Path,
    shared: tuple[Path, Path],
):
    _, clone = shared
    problem = "unknown subject 'abacu'; available subjects: abacus later"
    with pytest.raises(SystemExit, match=problem):
        sharing.pull(Repo(), "abacu")
    assert contents(clone) == {}
    assert sharing.pull(Repo(), "abacus") == ["pulled: 3 outputs"]
    own = {name: content for name, content in contents(small).items() if "other" not in name}
    assert contents(clone) == own


def test_an_edited_file_is_not_overwritten(small: Path, shared: tuple[Path, Path]):
    _, clone = shared
    sharing.pull(Repo(), path=FOLDER)
    edited = clone / FOLDER / "divide.h5"
    edited.unlink()  # the cache has its only other copy, which a link may share
    edited.write_text("mine\n")
    problem = rf"1 output \({FOLDER}\) with changes .* move them elsewhere or remove them"
    with pytest.raises(SystemExit, match=problem):
        sharing.pull(Repo())
    assert edited.read_text() == "mine\n"
    others = contents(clone)
    edited.unlink()
    sharing.pull(Repo())
    whole = contents(small)
    assert contents(clone) == whole
    name = str(edited.relative_to(clone))
    assert others == {**whole, name: "mine\n"}


def test_what_was_tampered_with_is_reported_beside_edited_files(
    shared: tuple[Path, Path], capfd: pytest.CaptureFixture
):
    store, _ = shared
    without_a_file(store)
    page = Path("reports/index.html")
    page.parent.mkdir(exist_ok=True)
    page.write_text("mine")
    problem = (
        r"has 1 output damaged or tampered with; .* 1 output \(reports/index.html\) with changes"
    )
    with pytest.raises(SystemExit, match=problem):
        sharing.pull(Repo())
    assert f"refused {FOLDER}: " in capfd.readouterr().err
    assert page.read_text() == "mine"


def test_one_file_is_pulled_and_what_the_remote_lacks_is_said(shared: tuple[Path, Path]):
    store, clone = shared
    assert sharing.pull(Repo(), path=f"{FOLDER}/deeper/c.h5") == ["pulled: 1 output"]
    [line] = unlike_lock("select * from activations", Path("data"))
    problem = f"{FOLDER} has 1 files, its lock lists 3: this answer is from the present files"
    assert line.startswith(f"{problem}; `make pull FILE={FOLDER}` fetches")
    assert not list(unlike_lock("select * from cells", Path("data").absolute()))
    assert contents(clone) == {f"{FOLDER}/deeper/c.h5": "abacus deeper/c\n"}
    with pytest.raises(SystemExit, match="no stage writes 'data/x'"):
        sharing.pull(Repo(), path="data/x")
    shutil.rmtree(store)
    problem = r"the remote has none of 1 output \(reports/index.html\)"
    with pytest.raises(SystemExit, match=problem):
        sharing.pull(Repo(), path="reports")


@pytest.mark.parametrize(
    "entry",
    [
        *({"relpath": name} for name in ("../x", "a/../../x", "/x", "", ".", "a//b", "a/", "./a")),
        *({"relpath": name} for name in ("a\\b", "a\nb", "c:x", "\u202ex", 1, None)),
        *({"md5": md5} for md5 in ("../" * 10 + "x", "", None)),
        *({"md5": md5} for md5 in ("A" * 32, "0" * 31, "0" * 32 + ".dir")),
        {"isexec": True},
        {"relpath": "add.h5"},
    ],
)
def test_a_list_with_an_odd_entry_is_refused_even_if_its_sum_is_right(entry: dict):
    plain = {"md5": "0" * 32, "relpath": "add.h5"}
    content = json.dumps([plain, plain | {"relpath": "é/0 1.h5"}]).encode()
    assert sharing.listed(content) == {"add.h5": "0" * 32, "é/0 1.h5": "0" * 32}
    with pytest.raises(sharing.ListError):
        sharing.listed(json.dumps([plain, plain | {"relpath": "b.h5"} | entry]).encode())


def test_files_do_not_go_through_a_symbolic_link(shared: tuple[Path, Path], tmp_path: Path):
    _, clone = shared
    (clone / FOLDER).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (clone / FOLDER / "deeper").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SystemExit, match="1 output damaged or tampered with"):
        sharing.pull(Repo(), "abacus")
    assert not list((tmp_path / "elsewhere").iterdir())


def objects(folder: Path) -> dict[str, Path]:
    """Return the files of a remote by the sums that their names say."""
    root = folder / "files/md5"
    files = filter(Path.is_file, folder.rglob("*"))
    return {str(file.relative_to(root)).replace("/", ""): file for file in files}


def test_the_starter_in_git_agrees_with_the_locks():
    """Test that data/starter has what the locks say, and nothing else; `make starter` fills it."""
    stored, expected = objects(ROOT / "data/starter"), set()
    for output in starter.outputs(Repo(ROOT)):
        expected.add(output.sum)
        if output.sum.endswith(".dir"):
            expected |= {*sharing.listed(stored[output.sum].read_bytes()).values()}
    assert len(expected) > 50
    assert stored.keys() == expected
    for md5, file in stored.items():
        assert file_sum(file) == md5.removesuffix(".dir")
    assert sum(file.stat().st_size for file in stored.values()) <= starter.MOST


@pytest.mark.parametrize(
    ("name", "size", "belongs"),
    [
        ("data/abacus/heuristics/labels.parquet", 20_000, True),
        ("data/abacus/store/predictions.parquet", 2_000_000, True),
        ("data/abacus/heuristics/scores.parquet", 1_000_000, False),
        ("data/abacus/circuit/runs/cut.parquet", 1, False),
        ("data/abacus/circuit/pairs.parquet", 1, False),
        ("data/abacus/circuit/pairs_found.parquet", 1, True),
        ("data/abacus/bag/knockout_interventions.parquet", 1, False),
        ("data/abacus/store/means.h5", 1, True),
        ("data/abacus/store/value_logits.h5", 1, False),
        ("data/abacus/store/activations", 1, False),
        ("reports/index.html", 6_000_000, True),
        ("reports/study.html", 1, False),
    ],
)
def test_the_starter_has_small_tables_and_the_page(name: str, size: int, belongs: bool):
    assert starter.belongs(name, size, "abacus") == belongs


def test_the_starter_is_filled_exactly_and_fetched_with_checks(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    """Fill it, fetch it in a clone, tamper with it, and fill it where the cache lacks outputs."""
    project, clone = copied(small, tmp_path / "project"), tmp_path / "clone"
    (project / "params.yaml").write_text("default: abacus\n")
    shutil.copy(ROOT / ".dvc/config", project / ".dvc/config")
    stray = project / starter.FOLDER / "files/md5/ab/cd"
    stray.parent.mkdir(parents=True)
    stray.touch()
    monkeypatch.chdir(project)
    files = ("data/corpus/cells.parquet", "reports/index.html")  # `make` does not make the other
    sums = {file_sum(Path(file)) for file in files}
    first, last = starter.fill(Repo())
    assert first.startswith("data/starter: 2 outputs, 0.0 MB in 2 files")
    assert last == "2 files of them new, 1 others removed"
    assert objects(starter.FOLDER).keys() == sums
    assert starter.fill(Repo())[1] == "0 files of them new, 0 others removed"
    with monkeypatch.context() as patch:
        patch.setattr(starter, "MOST", 1)
        with pytest.raises(SystemExit, match=r"MB are more than .*; leave out more tables"):
            starter.fill(Repo())
    [cached] = with_content(project / ".dvc/cache", Path(files[0]).read_bytes())
    whole = cached.read_bytes()
    replaced(cached, b"another table")
    with pytest.raises(SystemExit, match=f"make starter: {cached} in DVC's cache is damaged"):
        starter.fill(Repo())
    replaced(cached, whole)
    assert objects(starter.FOLDER).keys() == sums
    run_in(project, "git", "add", "params.yaml", ".dvc/config", str(starter.FOLDER))
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "filled")

    run_in(project, "git", "clone", "-q", str(project), str(clone))
    monkeypatch.chdir(clone)
    with pytest.raises(SystemExit, match="DVC's cache lacks 2 outputs"):
        starter.fill(Repo())
    [page] = with_content(starter.FOLDER, Path(project / "reports/index.html").read_bytes())
    replaced(page, b"another page")
    problem = "make quick: data/starter has 1 output damaged or tampered with; restore the folder"
    with pytest.raises(SystemExit, match=problem):
        starter.fetch(Repo())
    assert "refused reports/index.html: a file in data/starter differs" in capfd.readouterr().err
    table = {files[0]: (project / files[0]).read_text()}
    assert results(clone) == table
    run_in(clone, "git", "checkout", "-q", "--", str(starter.FOLDER))
    pulled, later = starter.fetch(Repo())
    assert pulled == "pulled: 2 outputs"
    assert "`dvc repro stages/store/dvc.yaml:dump@abacus` makes them" in later
    assert results(clone) == table | {files[1]: (project / files[1]).read_text()}


def results(clone: Path) -> dict[str, str]:
    return {name: text for name, text in contents(clone).items() if "starter" not in name}

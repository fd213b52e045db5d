"""Sharing artifacts through real servers on loopback: an SFTP server and an S3 API server."""

import getpass
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import storage
from tests.conftest import MAKE, copied, run_in

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """An OpenSSH server with a key of its own."""
    if SSHD is None:
        pytest.skip("no sshd here: install openssh-server")
    folder = tmp_path_factory.mktemp("server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}", {"keyfile": str(folder / "user"), "allow_agent": "false"}
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def s3() -> Iterator[Remote]:
    """An S3 API server with one bucket."""
    with storage.serving() as bucket:
        yield (
            "s3://bag/store",
            {"endpointurl": bucket.endpoint, "access_key_id": "user", "secret_access_key": "secret", "region": "us-east-1"},
        )


def configure(project: Path, remote: Remote) -> None:
    """The one documented command, and the server's own settings, which stay out of Git."""
    url, settings = remote
    run_in(project, *MAKE, "remote", f"URL={url}")
    (project / ".dvc/config.local").write_text("\n".join(["['remote \"storage\"']", *(f"{name} = {settings[name]}" for name in settings)]))
    run_in(project, "git", "add", "-A")
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "results")


def fresh_clone(project: Path, folder: Path) -> Path:
    run_in(project, "git", "clone", "-q", str(project), str(folder))
    shutil.copy(project / ".dvc/config.local", folder / ".dvc/config.local")
    return folder


@pytest.fixture(scope="module")
def pushed(micro: Path, server: Remote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the micro project, with all that DVC keeps in the folder `storage` beside it, through the SFTP server; tests only read it."""
    folder = tmp_path_factory.mktemp("pushed")
    (folder / "storage").mkdir()
    project = copied(micro, folder / "project")
    configure(project, (server[0] + str(folder / "storage"), server[1]))
    run_in(project, *MAKE, "push")
    return project


def present(folder: Path) -> set[str]:
    files = {str(p.relative_to(folder / "data")) for p in (folder / "data").rglob("*") if p.is_file()}
    return {f for f in files if not f.startswith(("models/", "subjects/training_log/")) and ".gitignore" not in f}


def test_push_and_pull_of_everything(micro_copy: Path, tmp_path: Path, s3):
    everything = present(micro_copy)
    configure(micro_copy, s3)
    run_in(micro_copy, *MAKE, "push")
    clone = fresh_clone(micro_copy, tmp_path / "clone")
    assert present(clone) == set()
    run_in(clone, "dvc", "pull")
    assert present(clone) == everything
    assert "up to date" in run_in(clone, "dvc", "status").stdout


def test_pull_of_a_file_and_of_a_subject_and_rerun_of_the_last_query(pushed: Path, tmp_path: Path):
    everything = present(pushed)
    clone = fresh_clone(pushed, tmp_path / "clone")
    assert present(clone) == set()

    run_in(clone, "dvc", "pull", "data/abacus/store/activations/add.h5")
    assert present(clone) == {"abacus/store/activations/add.h5"}
    assert (clone / "data/abacus/store/activations/add.h5").read_bytes() == (pushed / "data/abacus/store/activations/add.h5").read_bytes()

    query = clone / "stages/store/accuracy.sql"
    query.write_text("-- a remark\n" + query.read_text())
    printed = run_in(clone, "dvc", "repro", "--allow-missing", "--pull", "stages/store/dvc.yaml:accuracy@abacus").stdout
    assert re.findall(r"Running stage '([^']+)'", printed) == ["stages/store/dvc.yaml:accuracy@abacus"]
    own = {f"abacus/store/{file}" for file in ("activations/add.h5", "accuracy.parquet", "predictions.parquet")}
    assert present(clone) == {*own, "corpus/cells.parquet"}
    run_in(clone, "git", "checkout", "-q", ".")

    unknown = run_in(clone, *MAKE, "pull", "SUBJECT=abacu", check=False)
    assert unknown.returncode != 0
    assert "no subject 'abacu', only abacus abacus-step-00100 abacus-three-operands planted\n" in unknown.stderr
    assert present(clone) == {*own, "corpus/cells.parquet"}

    run_in(clone, *MAKE, "pull", "SUBJECT=abacus")
    shared = ("abacus/", "corpus/", "heuristics/")
    assert {f for f in present(clone) if f.startswith(shared)} == {f for f in everything if f.startswith(shared)}
    assert "cells" in run_in(clone, "bag", "select count(*) as cells from cells join labels using (operator)").stdout
    assert not any(f.startswith("planted/") for f in present(clone))


def test_a_pulled_file_whose_bytes_are_wrong_is_refused(pushed: Path, tmp_path: Path):
    content = (pushed / "data/abacus/store/accuracy.parquet").read_bytes()
    [stored] = [p for p in pushed.with_name("storage").rglob("*") if p.is_file() and p.read_bytes() == content]
    stored.chmod(0o644)
    stored.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    try:
        clone = fresh_clone(pushed, tmp_path / "clone")
        done = run_in(clone, "dvc", "pull", "data/abacus/store/accuracy.parquet", check=False)
    finally:
        stored.write_bytes(content)  # for the other tests
    assert done.returncode != 0
    assert not (clone / "data/abacus/store/accuracy.parquet").exists()

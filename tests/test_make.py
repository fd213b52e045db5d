"""What make says of a mistake, with nothing written or fetched."""

from pathlib import Path

import pytest

from tests.conftest import MAKE, run_in
from tests.micro import copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project before anything has run."""
    return copy_project(tmp_path_factory.mktemp("make") / "project")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("remote", "URL=ssh://user:SECRET@host/folder"), "leave it out, then say dvc remote modify --local storage password"),
        (("remote",), "say where, such as URL=s3://bucket/folder"),
        (("pull", "SUBJECT=abacsu"), "there is no subject 'abacsu', only abacus"),
        (("pull",), "there is no subject '', only abacus"),
    ],
)
def test_a_mistake_is_a_sentence(project: Path, arguments: tuple[str, ...], said: str):
    before = (project / ".dvc/config").read_text()
    done = run_in(project, *MAKE, *arguments, check=False)
    assert done.returncode != 0
    assert said in done.stderr
    assert "SECRET" not in done.stderr
    assert (project / ".dvc/config").read_text() == before
    assert not (project / "data").exists()

"""Download models of the Hugging Face Hub at one commit: safetensors, configuration and tokenizer,
but no code.

This is the only module that imports the Hub's client. An interrupted download continues where it
stopped. Gated models need the token that `hf auth login` stores in your home folder; it is never
written into the project. The environment variable HF_ENDPOINT selects another Hub.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from stages.lib.model.folder import ModelError, existing, sentence, write_sums
from stages.lib.settings import COMMIT, HubModel

WITHOUT_WEIGHTS = [
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
]
ALL = ["*.safetensors", *WITHOUT_WEIGHTS]
NOTE = "from_hub.txt"  # names the model and the commit that a folder holds
SUBFOLDERS = ["*/*"]  # copies in other formats


def outline(model: HubModel, folder: Path) -> int:
    """Download a model without its weights into a folder; return the bytes of the weights.

    Raises ModelError as `download` does.
    """
    with _errors(model.repo, model.commit):
        snapshot_download(
            model.repo,
            revision=model.commit,
            local_dir=folder,
            allow_patterns=WITHOUT_WEIGHTS,
            ignore_patterns=SUBFOLDERS,
        )
        tree = HfApi().list_repo_tree(model.repo, revision=model.commit)
        weights = (file for file in tree if file.path.endswith(".safetensors"))
        return sum(getattr(file, "size", 0) for file in weights)


def download(model: HubModel, folder: Path) -> None:
    """Download a model into a folder, unless the folder already holds it.

    The folder exists only once it is complete. Raises ModelError if the Hub does not have the
    model, or refuses access.
    """
    note = f"{model.repo}@{model.commit}\n"
    if _holds(folder, note):
        with suppress(ModelError):
            existing(folder)
            return
    partial = folder.with_name(f".{folder.name}.partial")
    # files of another model would be taken for this model's
    if not _holds(partial, note):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / NOTE).write_text(note, encoding="utf-8")
    with _errors(model.repo, model.commit):
        # without an answer of the Hub, the client would accept the folder as it is
        HfApi().model_info(model.repo, revision=model.commit)
        snapshot_download(
            model.repo,
            revision=model.commit,
            local_dir=partial,
            allow_patterns=ALL,
            ignore_patterns=SUBFOLDERS,
        )
    if not any(partial.glob("*.safetensors")):
        problem = f"{model.repo} has no weights in safetensors at {model.commit}"
        raise ModelError(f"{problem}, and other formats are not supported; choose another commit")
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # of the download itself
    write_sums(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _holds(folder: Path, note: str) -> bool:
    """Return whether a folder, complete or not, is of the model and commit that a note names."""
    file = folder / NOTE
    return file.is_file() and file.read_text(encoding="utf-8") == note


def commit_of(repo: str, revision: str) -> str:
    """Return the current commit of a branch or a tag. Raises ModelError as `download` does."""
    with _errors(repo, revision):
        return str(HfApi().model_info(repo, revision=revision).sha)


def fixed(source: str) -> HubModel:
    """Return the model that org/name@commit names.

    Raises ModelError if there is a branch or nothing after the @; the message has the commit.
    """
    repo, _, revision = source.partition("@")
    if not COMMIT.fullmatch(revision):
        branch = revision or "main"
        now = f"{repo}@{commit_of(repo, branch)}"
        raise ModelError(f"{source}: a branch moves, a commit stays; {branch} is {now} now")
    return HubModel(repo=repo, commit=revision)


@contextmanager
def _errors(repo: str, revision: str) -> Iterator[None]:
    """Turn the errors of the Hub's client into messages."""
    try:
        yield
    except GatedRepoError:
        way_out = "ask for access on its page, then `hf auth login`"
        raise ModelError(f"{repo} is gated: {way_out}") from None
    except RevisionNotFoundError:
        raise ModelError(f"{repo} has no commit, branch or tag {revision}") from None
    except RepositoryNotFoundError:
        problem = f"the Hub has no model {repo}, or it is private"
        raise ModelError(f"{problem}: then `hf auth login`") from None
    except Exception as error:  # connections raise many kinds
        problem = f"{repo} cannot be downloaded now: {sentence(error)}"
        raise ModelError(f"{problem}; the same command continues the download") from None

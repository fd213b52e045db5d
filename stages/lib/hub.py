"""Models of the Hugging Face Hub, at one commit: safetensors, configuration and tokenizer, and no code. The one importer of its client.

A download that was stopped half-way goes on where it was. Gated models take the token that `hf auth login` puts into your home folder;
it is never written into the project. The environment's HF_ENDPOINT names another Hub.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from stages.lib.model.folder import ModelError, existing, sentence, write_sums
from stages.lib.settings import COMMIT, HubModel

WEIGHTS = "*.safetensors"
KEPT = [WEIGHTS, "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*", "vocab*", "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "chat_template*"]  # fmt: skip
NOTE = "from_hub.txt"  # says which model and commit a folder holds
DEEPER = ["*/*"]  # copies in other formats


def outline(model: HubModel, folder: Path) -> int:
    """Puts what tells of a model into a folder, without its weights; returns how many bytes these have. Raises ModelError as `download`."""
    with _said(model.repo, model.commit):
        small = [pattern for pattern in KEPT if pattern != WEIGHTS]
        snapshot_download(model.repo, revision=model.commit, local_dir=folder, allow_patterns=small, ignore_patterns=DEEPER)
        tree = HfApi().list_repo_tree(model.repo, revision=model.commit)
        return sum(getattr(file, "size", 0) for file in tree if file.path.endswith(".safetensors"))


def download(model: HubModel, folder: Path) -> None:
    """Puts a model into a folder, which is whole or not there; where it is there already, nothing is fetched again.

    Raises ModelError where the Hub has no such model, or does not give it.
    """
    note = f"{model.repo}@{model.commit}\n"
    if _is_of(folder, note):
        with suppress(ModelError):
            existing(folder)  # as its SHA256SUMS say
            return
    partial = folder.with_name(f".{folder.name}.partial")
    if not _is_of(partial, note):  # what is left of another model would be taken for files of this one
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / NOTE).write_text(note, encoding="utf-8")
    with _said(model.repo, model.commit):
        HfApi().model_info(model.repo, revision=model.commit)  # or a folder that is not empty would be taken for all there is
        snapshot_download(model.repo, revision=model.commit, local_dir=partial, allow_patterns=KEPT, ignore_patterns=DEEPER)
    if not any(partial.glob("*.safetensors")):
        raise ModelError(f"{model.repo} has no weights in safetensors at {model.commit}, and others are not loaded here")
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # what the download itself remembers
    write_sums(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _is_of(folder: Path, note: str) -> bool:
    """Whether a folder, whole or not, is of the model and commit that a note says."""
    return (folder / NOTE).is_file() and (folder / NOTE).read_text(encoding="utf-8") == note


def commit_of(repo: str, revision: str) -> str:
    """The commit that a branch or a tag stands for now. Raises ModelError as `download`."""
    with _said(repo, revision):
        return str(HfApi().model_info(repo, revision=revision).sha)


def fixed(source: str) -> HubModel:
    """The model that org/name@commit means. Raises ModelError where that is a branch or nothing, with the commit that it is now."""
    repo, _, revision = source.partition("@")
    if not COMMIT.fullmatch(revision):
        now = commit_of(repo, revision or "main")
        raise ModelError(f"{source}: a branch moves, a commit stays; {revision or 'main'} is {repo}@{now} now")
    return HubModel(repo=repo, commit=revision)


@contextmanager
def _said(repo: str, revision: str) -> Iterator[None]:
    """What the Hub may answer, as a sentence."""
    try:
        yield
    except GatedRepoError:
        raise ModelError(f"{repo} is gated: ask for access on its page, then `hf auth login`") from None
    except RevisionNotFoundError:
        raise ModelError(f"{repo} has no commit, branch or tag {revision}") from None
    except RepositoryNotFoundError:
        raise ModelError(f"the Hub has no model {repo}, or it is private: then `hf auth login`") from None
    except Exception as error:  # of connections there are many kinds
        raise ModelError(f"{repo} cannot be downloaded now: {sentence(error)}; the same command goes on where it was") from None

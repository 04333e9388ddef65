"""Runs on a Hugging Face Hub: their names, and their packs, fetched once into its cache."""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kgmlm.core.digests import sha256
from kgmlm.core.errors import RunError, first_line

PACK = "run.kgmlm"  # the file of a repository that has a run
_NAME = re.compile(r"hf:/{1,2}(?P<repository>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>\S+))?")  # Path joins slashes
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubName(NamedTuple):
    """The name of a run on a Hub: ``hf://USER/NAME``, or ``hf://USER/NAME@REVISION``.

    Attributes:
        revision: a commit, a tag or a branch; None is the newest commit of the main branch.
    """

    repository: str
    revision: str | None

    @classmethod
    def of(cls, name: str | Path) -> HubName | None:
        """Read a name; None where it is a path.

        >>> HubName.of("hf://ada/wordnet@v2")
        HubName(repository='ada/wordnet', revision='v2')
        """
        match = _NAME.fullmatch(str(name))
        return None if match is None else cls(match["repository"], match["revision"])

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def hub() -> Any:
    """The library of the Hub.

    Raises:
        RunError: when it is not installed.
    """
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise RunError("huggingface_hub is not installed: pip install huggingface_hub") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # or each retry would be logged
    return huggingface_hub


def hub_error(name: HubName, error: Exception) -> RunError:
    """One line that says why a repository could not be read or written; no access token is in it."""
    from huggingface_hub import errors, get_token

    why = first_line(error) + (f" ({first_line(error.__cause__)})" if error.__cause__ else "")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        why = "its owner has to give you access first"
    elif isinstance(error, errors.RevisionNotFoundError):
        why = f"it has no revision '{name.revision}'"
    elif isinstance(error, errors.LocalEntryNotFoundError):
        why = "the Hub cannot be reached, and the cache has no copy"
    elif isinstance(error, errors.EntryNotFoundError):
        why = f"it has no file {PACK}, so it is not a run that `kgmlm push` wrote"
    elif isinstance(error, errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set"
    elif isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
        why = "there is no such repository, or your access token (HF_TOKEN, `hf auth login`) does not open it"
    token = get_token()
    return RunError(f"{name}: {why.replace(token, '...') if token else why}")


@cache
def fetched(name: HubName) -> Path:
    """The pack of a run on a Hub, fetched into the cache of Hugging Face where it is not there yet.

    Without a network, the revision that the cache has is taken.

    Raises:
        RunError: when there is no such repository, revision or pack, when the Hub cannot be reached, or when
            the file is not as it was pushed.
    """
    library = hub()
    try:
        path = Path(library.hf_hub_download(name.repository, PACK, revision=name.revision))
    except (OSError, ValueError, library.errors.HTTPError) as error:
        raise hub_error(name, error) from None
    stored = path.resolve()  # named by its checksum
    if _SHA256.fullmatch(stored.name) and sha256(stored) != stored.name:
        raise RunError(f"{name}: {stored} is damaged; delete it, and it is fetched again")
    return path

"""Models from the Hugging Face hub, at one commit."""

from __future__ import annotations

from pathlib import Path

from metainfer.checkpoint.tensors import INDEX_NAME
from metainfer.errors import InputError, MachineError
from metainfer.progress import Progress
from metainfer.spec.models import HubSource

_STEP = "download model"
_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model*.safetensors",
    INDEX_NAME,
)
"""What a model folder is made of. Repositories often hold the weights once more, in other formats."""


def download(source: HubSource, cache: Path, progress: Progress) -> Path:
    """Download the repository's model files and return their folder; interrupted downloads go on where they stopped.

    Raises InputError if there is no such repository or commit, MachineError if the hub cannot be reached or refuses.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    what = f"{source.id} at {source.revision[:12]}"
    progress.start(_STEP)
    try:
        folder = snapshot_download(
            source.id,
            revision=source.revision,
            allow_patterns=list(_PATTERNS),
            cache_dir=cache / "downloads" / "hub",
        )
    except HFValidationError as error:
        raise InputError(f"{source.id}: no repository of the hub can have this id: {_first_line(error)}") from error
    except GatedRepoError as error:
        raise MachineError(f"{what}: its owners ask for consent; give it on the hub, then `hf auth login`") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise InputError(
            f"{what}: the hub knows no such repository or commit; check model.source.hf (a private one needs "
            "`hf auth login`)"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError, TimeoutError) as error:
        raise MachineError(
            f"{what}: cannot be downloaded: {_first_line(error)}\n"
            "Check the network and run the same command again, it goes on where it stopped; or name a local folder "
            "as model.source.path"
        ) from error
    progress.done(_STEP, what)
    return Path(folder)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

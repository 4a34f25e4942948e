"""Models from the Hugging Face hub, at one commit."""

from __future__ import annotations

from pathlib import Path

from metainfer.errors import MachineError
from metainfer.progress import Progress
from metainfer.spec.models import HubSource

_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def download(source: HubSource, cache: Path, progress: Progress) -> Path:
    """Download the repository's model files and return their folder; interrupted downloads go on where they stopped.

    Raises MachineError if the hub cannot be reached or refuses.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    progress.start("download model")
    try:
        folder = snapshot_download(
            source.id, revision=source.revision, allow_patterns=_PATTERNS, cache_dir=cache / "downloads" / "hub"
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise MachineError(
            f"{source.id} at {source.revision[:12]} could not be downloaded: {error}\n"
            "Check the network, and for a gated model `hf auth login`; or name a local folder in the spec"
        ) from error
    progress.done("download model", source.id)
    return Path(folder)

"""The recordings of ../shared that a law holds for: files and folders of ranks."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared"
_FOLDERS = ("traces", "recordings", "nsight")


def list_recordings() -> tuple[Path, ...]:
    """Every trace, folder of ranks and Nsight export, by path; none where ../shared is not mounted."""
    found = [
        path
        for folder in _FOLDERS
        if (SHARED / folder).is_dir()
        for path in sorted((SHARED / folder).iterdir())
        if path.is_dir() or path.name.endswith((".json", ".json.gz", ".sqlite"))
    ]
    return tuple(found)


def name_recording(path: Path) -> str:
    """The name of a recording in the ids of tests: "recordings/t4-vgg16.json.gz"."""
    return f"{path.parent.name}/{path.name}"

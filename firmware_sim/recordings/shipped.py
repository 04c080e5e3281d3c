"""The recordings that come with the package; licences and sources stand beside them in NOTICE.md."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fedgate.firmware_sim.recordings.errors import FileAccessError


def shipped_names() -> tuple[str, ...]:
    """Names that `shipped` takes, sorted."""
    folder = _folder()
    return tuple(sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.glob("*/*.npz")))


def shipped(name: str) -> Path:
    """Path of a shipped recording such as "munich_bridge/ref_load_01".

    Raises:
        FileAccessError: no recording of that name comes with the package.
    """
    if name not in shipped_names():
        raise FileAccessError("", f"no shipped recording {name!r}", f"choose among {', '.join(shipped_names())}")
    return _folder() / f"{name}.npz"


def _folder() -> Path:
    return Path(str(files("fedgate.firmware_sim.recordings"))) / "data"

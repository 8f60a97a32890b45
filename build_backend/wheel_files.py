"""A wheel with the C library in it, made from the wheel without."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

ANY_PLATFORM = "py3-none-any"


def add_library(wheel: Path, library: Path, folder: str, platform_tag: str, out: Path) -> Path:
    """A copy of the wheel in the folder `out`, with `library` added to its `folder`, tagged for a platform.

    `platform_tag` may be several tags joined by dots. The new entries have the time of the old ones: the same library
    gives the same wheel.
    """
    made = out / wheel.name.replace(ANY_PLATFORM, f"py3-none-{platform_tag}")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        contents = {entry: old.read(entry) for entry in old.infolist()}
        names = {entry.filename.rpartition("/")[2]: entry for entry in contents if ".dist-info/" in entry.filename}
        about, record = names["WHEEL"], names["RECORD"]
        contents[about] = retag(contents[about].decode(), platform_tag).encode()
        entry = zipfile.ZipInfo(f"{folder}/{library.name}", record.date_time)
        # A plain file of Unix, readable and executable by all.
        entry.external_attr = 0o100755 << 16
        contents = {entry: library.read_bytes(), **contents}
        listed = {e.filename: data for e, data in contents.items() if e is not record and not e.is_dir()}
        contents[record] = write_record(listed, record.filename).encode()
        for each, data in contents.items():
            new.writestr(each, data, zipfile.ZIP_DEFLATED)
    return made


def retag(about: str, platform_tag: str) -> str:
    """The text of a wheel's WHEEL file, for one platform instead of any."""
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in platform_tag.split("."))
    about = re.sub(rf"^Tag: {ANY_PLATFORM}\r?\n", tags, about, flags=re.MULTILINE)
    return about.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")


def write_record(files: dict[str, bytes], record: str) -> str:
    """The text of a wheel's RECORD: hash and size of every file, and itself without."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{record},,", ""])

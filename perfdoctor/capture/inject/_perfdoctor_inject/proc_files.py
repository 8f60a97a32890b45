"""What the system says of processes and their groups in files: /proc and /sys, on Linux; None or nothing elsewhere."""

from __future__ import annotations

import os


def read_text(path: str) -> str | None:
    """What a small file holds; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def read_number(path: str) -> int | None:
    """The number in a file; None where there is no such file, or something else in it ("max")."""
    text = (read_text(path) or "").strip()
    return int(text) if text.removeprefix("-").isdigit() else None


def read_words(path: str) -> dict[str, int]:
    """The figures of a file with a name and a number in each line; empty where it cannot be read."""
    pairs = [line.split() for line in (read_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read_sizes_of(path: str) -> dict[str, int]:
    """The sizes in bytes of a file that gives them in kB, such as /proc/meminfo; empty where it cannot be read."""
    lines = [line.split() for line in (read_text(path) or "").splitlines()]
    return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in lines if len(parts) == 3 and parts[2] == "kB"}


def read_host_bytes(name: str, path: str = "/proc/meminfo") -> int | None:
    """A figure of /proc/meminfo, such as MemTotal, or of a file that is written like it."""
    return read_sizes_of(path).get(name)


def read_process(pid: int | str) -> list[str] | None:
    """The figures of a process behind its name, beginning with its state and its parent; None where it has ended."""
    text = read_text(f"/proc/{pid}/stat")
    return None if text is None else text.rpartition(")")[2].split() or None  # a name may have blanks and brackets


def list_processes() -> list[int]:
    """The ids of all processes that this one sees."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def group_folders(root: str, groups: str, controller: str) -> list[tuple[int, str]]:
    """The folders that may describe the control groups around this process, each with the version of its files.

    `controller` is what the groups are asked for, such as cpu or memory. Of each version the innermost come first. In a
    container a group's path may be that of the host.
    """
    found: list[tuple[int, str]] = []
    for line in (read_text(groups) or "").splitlines():
        number_controllers_path = line.split(":", 2)
        if len(number_controllers_path) < 3:
            continue
        _, controllers, path = number_controllers_path
        if not controllers:
            version, folders = 2, (root, os.path.join(root, "unified"))
        elif controller in controllers.split(","):
            version, folders = 1, (os.path.join(root, controller), os.path.join(root, controllers))
        else:
            continue
        parts = [part for part in path.split("/") if part]
        upwards = ["".join("/" + part for part in parts[:count]) for count in range(len(parts), -1, -1)]
        found += [(version, folder + group) for folder in folders for group in upwards]
    return found

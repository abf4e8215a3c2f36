"""Files that are whole or not there at all."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

# A scratch file this old belongs to a process that was killed, whatever machine it ran on.
STALE_SECONDS = 3600.0


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str, *, once: bool = False
) -> None:
    """Give ``path`` this content; a kill or a full disk leaves the old file or the new one.

    The bytes go to a file beside it first and reach the disk before the name changes. Each writer
    has a file of its own, so that of two writers one wins and neither is mixed into the other.

    Args:
        path: The file. A symbolic link is followed; a device or a pipe is written to directly.
        content: The new content; text is written as UTF-8.
        once: A file that is there already is left as it is, also one that another process has
            written at this moment.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    with suppress(OSError):  # not every folder can be listed
        _remove_stale(target.parent, f".{target.name}.")
    scratch = _scratch(target)
    try:
        with scratch.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if once and _linked(scratch, target):
            scratch.unlink()
        else:
            if target.exists():
                scratch.chmod(target.stat().st_mode & 0o7777)
            os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # the file is written; not every folder can be synced
        sync_folder(target.parent)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the ``OSError`` that writing ``path`` would end with, and leave nothing behind."""
    with suppress(FileNotFoundError):  # a new file, or a link to one
        os.stat(path)  # a link that leads back to itself is found here
    target = Path(os.path.realpath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    scratch = _scratch(target)
    try:
        scratch.touch(exist_ok=False)
    finally:
        scratch.unlink(missing_ok=True)


def _linked(scratch: Path, target: Path) -> bool:
    """Give the file its second name, unless the name is taken; False where there are no links."""
    try:
        os.link(scratch, target)
    except FileExistsError:
        pass
    except OSError:
        return target.exists()
    return True


def _scratch(target: Path) -> Path:
    """The file beside ``target`` that this writer alone uses."""
    writer = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    return target.with_name(f".{target.name}.{writer}.part")


def sync_folder(folder: Path) -> None:
    """Make new and changed names of this folder reach the disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_stale(folder: Path, prefix: str) -> None:
    """Remove what killed writers of this file left behind."""
    for left in folder.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(".part"):
            with suppress(OSError, ValueError):  # another writer was faster, or a user's own file
                host, pid, _ = left.name[len(prefix) : -len(".part")].rsplit(".", 2)
                here = host == socket.gethostname() and os.name == "posix"
                old = time.time() - left.stat().st_mtime > STALE_SECONDS
                if old or (here and not _is_alive(int(pid))):
                    left.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True

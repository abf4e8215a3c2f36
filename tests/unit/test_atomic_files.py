"""Files that are whole or not there at all."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from normscope.files import STALE_SECONDS, write_atomically


def test_the_file_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    write_atomically(path, b"old")
    seen = []

    def failing(source, target):
        seen.append(path.read_bytes())
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert seen == [b"old"]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


def test_the_bytes_reach_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (calls.append("sync"), sync(f)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    write_atomically(tmp_path / "x", b"1")
    assert calls[:2] == ["sync", "rename"]


def test_text_is_written_as_utf8_through_links_and_with_the_old_permissions(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_atomically(link, "σ")
    assert link.is_symlink()
    assert real.read_bytes() == "σ".encode()
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_directly():
    write_atomically(os.devnull, b"gone")
    assert not os.path.isfile(os.devnull)


def test_what_a_killed_writer_left_is_removed_and_a_live_one_is_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    dead = tmp_path / f".x.{host}.{ended.pid}.00.part"
    live = tmp_path / f".x.{host}.{os.getpid()}.00.part"
    elsewhere = tmp_path / ".x.another-host.1.00.part"
    old = tmp_path / ".x.another-host.1.01.part"
    own = tmp_path / ".x.part"
    for path in (dead, live, elsewhere, old, own):
        path.write_bytes(b"cut")
    past = old.stat().st_mtime - 2 * STALE_SECONDS
    os.utime(old, (past, past))
    write_atomically(tmp_path / "x", b"whole")
    assert {p.name for p in tmp_path.iterdir()} == {"x", live.name, elsewhere.name, own.name}


def test_two_writers_and_a_reader_never_meet_a_broken_file(tmp_path):
    path = tmp_path / "x"
    contents = {bytes([letter]) * 200_000 for letter in b"ab"}
    write_atomically(path, next(iter(contents)))

    def write(content):
        for _ in range(30):
            write_atomically(path, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    reads = []
    while any(writer.is_alive() for writer in writers):
        reads.append(path.read_bytes())
    for writer in writers:
        writer.join()
    assert set(reads) <= contents
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_cannot_be_listed_or_synced_can_be_written_to(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("normscope.files._remove_stale", refuse)
    monkeypatch.setattr("normscope.files.sync_folder", refuse)
    write_atomically(tmp_path / "x", b"whole")
    assert (tmp_path / "x").read_bytes() == b"whole"

"""The lock of a run directory: one process at a time, on one machine and on several that share a folder."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from briee.errors import RunError
from briee.training import directory
from briee.training.checkpoint import Folder
from briee.training.directory import LIFETIME, LockLostError, is_locked, locked, write_atomically
from briee.training.listing import list_runs
from briee.training.session import run
from toy_run import make_toy


def leave(path: Path, host: str, age: float) -> None:
    """A lock file that a process of this machine touched so many seconds ago."""
    path.write_text(json.dumps({"pid": 17, "host": host, "since": 0.0}))
    grow_old(path, age)


def grow_old(path: Path, age: float) -> None:
    touched = time.time() - age
    os.utime(path, (touched, touched))


def test_a_lock_stops_a_second_process_and_is_gone_afterwards(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        assert is_locked(path)
        note = json.loads(path.read_text())
        assert (note["pid"], note["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(RunError, match=f"in use by process {os.getpid()} on "), locked(path):
            pass
        with pytest.raises(RunError, match="in use by process"):
            run(*make_toy(), tmp_path)
    assert not path.exists()
    assert not is_locked(path)


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    program = [sys.executable, str(Path(__file__).parents[1] / "toy_run.py"), str(tmp_path), "hold"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):  # until its first iteration
            process.stdout.readline()
        with pytest.raises(RunError, match=f"in use by process {process.pid} on "), locked(tmp_path / "lock"):
            pass
        assert [run.state for run in list_runs(tmp_path)] == ["running"]
        process.kill()
    assert (tmp_path / "lock").exists()
    assert [run.state for run in list_runs(tmp_path)] == ["stopped"]
    with locked(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")


@pytest.mark.parametrize("flock", [True, False], ids=["flock between machines", "no flock between them"])
def test_the_lock_of_another_machine_counts_while_it_is_touched(tmp_path, flock):
    path = tmp_path / "lock"
    leave(path, "node7", LIFETIME - 60)
    theirs = FileLock(path)
    if flock:
        theirs.acquire()
    assert is_locked(path)
    with pytest.raises(RunError, match="in use by process 17 on node7"), locked(path):
        pass
    grow_old(path, LIFETIME + 60)
    assert not is_locked(path)
    with locked(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
        assert is_locked(path)
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}"), locked(path):
            pass
    theirs.release()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_age_does_not_matter_on_one_machine(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        os.utime(path, (0, 0))
        assert is_locked(path)
        with pytest.raises(RunError, match="in use by process"), locked(path):
            pass
    leave(path, socket.gethostname(), 0.0)  # of a process that was killed
    with locked(path):
        pass


def test_a_lock_without_a_readable_note_is_that_of_another_process(tmp_path):
    path = tmp_path / "lock"
    for text in ("", "[]", "{}", "half a no"):
        path.write_text(text)
        with FileLock(path):
            with pytest.raises(RunError, match="is in use by another process"), locked(path):
                pass
            assert is_locked(path)


def test_the_holder_touches_the_file_until_it_is_released(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "BEAT_SECONDS", 0.001)
    path, beats = tmp_path / "lock", []
    touch = os.utime
    monkeypatch.setattr(os, "utime", lambda file: (touch(file), beats.append(file)))
    with locked(path) as lock:
        while len(beats) < 3:
            time.sleep(0.001)
        lock.check()
    count = len(beats)
    assert set(beats) == {path}
    assert not lock._heart.is_alive()
    assert len(beats) == count


def test_a_run_whose_lock_was_taken_over_writes_nothing_more(tmp_path):
    def overtake(row):
        if row["iteration"] == 3:
            leave(tmp_path / "lock", "node7", 0.0)

    with pytest.raises(LockLostError, match="was taken over by process 17 on node7"):
        run(*make_toy(solves_at=8), tmp_path, callbacks=[overtake])
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 3
    assert json.loads((tmp_path / "lock").read_text())["host"] == "node7"
    assert Folder(tmp_path / "checkpoint").numbers()[-1] <= 3


def test_a_lock_that_came_back_to_life_is_not_removed(tmp_path):
    path = tmp_path / "lock"
    leave(path, "node7", 1.0)
    directory._set_aside(path)
    assert json.loads(path.read_text())["host"] == "node7"
    assert list(tmp_path.iterdir()) == [path]
    leave(path, "node7", LIFETIME + 1)
    directory._set_aside(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["sched_getaffinity", "pwrite", "kill", "fork"])
def test_a_run_needs_no_call_that_only_some_systems_have(tmp_path, monkeypatch, missing):
    monkeypatch.delattr(os, missing, raising=False)
    assert run(*make_toy(solves_at=2), tmp_path)["solved"]


def test_without_permission_to_open_folders_files_are_still_replaced(tmp_path, monkeypatch):
    """As on Windows, where a folder cannot be opened."""
    whole = os.open

    def refuse(path, *args):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied")
        return whole(path, *args)

    monkeypatch.setattr(os, "open", refuse)
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"

"""Whatever is killed and whenever: the same table in the end, and no process left behind."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import normscope as ns
from normscope.sweeps import BusyError, Sweep
from sweep_trials import logged

TESTS = Path(__file__).parents[2]
TRIALS, WORKERS = 40, 2
DRIVER = """
import json, os, sys
from sweep_trials import deadly, logged
import normscope as ns


def turn_read_only(flag, folder):
    '''Once there is a file ``flag`` nothing in the folder can be changed any more.

    The kernel makes no disk read-only to which a file is open, unless the disk is broken.
    '''
    def refusing(call):
        def instead(what, *more, **named):
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
            if os.path.exists(flag) and str(path).startswith(folder):
                raise OSError(30, "Read-only file system")
            return call(what, *more, **named)

        return instead

    for name in ("write", "ftruncate", "unlink", "replace", "mkdir", "link"):
        setattr(os, name, refusing(getattr(os, name)))


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    if flag := options.pop("read_only", None):
        turn_read_only(flag, options["output"])
    log, seconds = options.pop("log"), options.pop("seconds")
    settings = {"x": list(range(options.pop("trials"))), "log": log, "seconds": seconds}
    settings["padding"] = options.pop("padding", 0)
    ns.sweep(logged, settings, **options)
"""
RAY = pytest.param("ray", marks=pytest.mark.distributed)
EXECUTORS = ["processes", RAY]


@pytest.fixture
def place(tmp_path):
    """A folder for the sweep, one for the log of the trials, and the script of the driver."""
    (tmp_path / "log").mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    return tmp_path


def options(place, **more):
    return {"output": str(place / "s"), "log": str(place / "log"), "seconds": 0.02,
            "trials": TRIALS, "workers": WORKERS} | more  # fmt: skip


def start(place, **more):
    """A driver in a session of its own."""
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, str(place / "driver.py"), json.dumps(options(place, **more))],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def family(session):
    """Every process of a session that is alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(its) == session and state != "Z":
                found.append(int(entry.name))
    return found


def descendants(pid):
    """Every process below this one, whatever session it is in."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except (OSError, ValueError):
                continue
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid}


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids, seconds=20):
    """Those that are still there after so long, however busy the machine is."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def workers_of(driver):
    """The processes below a driver that run trials; others only keep account."""
    found = []
    for pid in descendants(driver.pid):
        with contextlib.suppress(OSError):
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes()
            if b"spawn_main" in words or words.startswith(b"ray::_checked_run"):
                found.append(pid)
    return found


def done(place):
    """Trials that are on the disk."""
    try:
        return len(Sweep(place / "s").found.done)
    except (ns.NormscopeError, OSError):
        return 0


def wait_for(condition, driver, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        assert driver.poll() is None, driver.communicate()[1]
        time.sleep(0.01)


def finished(driver, code=0):
    text = driver.communicate(timeout=120)[1]
    assert driver.returncode == code, text
    return text


def assert_undisturbed(place, trials=TRIALS):
    """The table of a sweep that nobody killed, cell by cell; how often trials ran."""
    found = Sweep(place / "s")
    expected = [[x, x * 1.5, x % 5 == 0, "done"] for x in range(trials)]
    assert found.complete
    assert found.to_frame()[["x", "value", "diverged", "status"]].to_numpy().tolist() == expected
    assert not found.found.conflicts
    assert not found.found.bad
    return len(list((place / "log").iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_driver_that_is_killed_twenty_times(executor, place):
    chance = random.Random(7)
    kills, flight, seen = 0, 0, set()
    while kills < 20:
        driver = start(place, executor=executor, trials=200)
        before = done(place)
        try:
            goal = before + chance.randint(0, 9)
            wait_for(lambda goal=goal: done(place) >= goal, driver)
        except AssertionError:
            if driver.poll() != 0:
                raise
            break
        time.sleep(chance.random() / 50)
        below = descendants(driver.pid)
        driver.kill()
        driver.communicate()
        kills += 1
        flight += WORKERS * (2 if executor == "ray" else 1)
        # two idle agents of a local Ray end a minute after it
        seen |= below
        assert executor == "ray" or not wait_until_gone(below)
    assert kills == 20, "the sweep was over too early"
    finished(start(place, executor=executor, trials=200))
    ran = assert_undisturbed(place, 200)
    assert 200 <= ran <= 200 + flight
    assert not wait_until_gone(seen, 240)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_worker_is_killed(executor, place):
    driver = start(place, seconds=0.2, executor=executor)
    killed = set()
    while len(killed) < 6:
        wait_for(lambda: set(workers_of(driver)) - killed, driver)
        for pid in set(workers_of(driver)) - killed:
            time.sleep(random.random() / 10)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    finished(driver)
    ran = assert_undisturbed(place)
    assert ran <= TRIALS + len(killed)


@pytest.mark.slow
def test_workers_are_killed_while_they_send_large_records(place):
    """A message that breaks off in the middle harms nobody but its own worker."""
    driver = start(place, seconds=0.0, padding=1_000_000)
    kills = 0
    wait_for(lambda: done(place) >= 1, driver)
    while driver.poll() is None and kills < 8:
        for pid in workers_of(driver)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            kills += 1
        time.sleep(random.random() / 2)
    finished(driver)
    assert assert_undisturbed(place) <= TRIALS + kills


def test_children_end_with_their_driver(place):
    driver = start(place, seconds=600)
    wait_for(lambda: len(list((place / "log").iterdir())) == WORKERS, driver)
    below = descendants(driver.pid)
    assert len(below) >= WORKERS
    driver.kill()
    driver.communicate()
    assert not wait_until_gone(below)


def test_ctrl_c_saves_what_is_done_and_ends_the_children(place):
    driver = start(place, seconds=0.2)
    wait_for(lambda: done(place) >= 3, driver)
    below = descendants(driver.pid)
    driver.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in finished(driver, -signal.SIGINT)
    assert not wait_until_gone(below)
    assert 3 <= done(place) < TRIALS
    finished(start(place, seconds=0.2))
    assert assert_undisturbed(place) <= TRIALS + WORKERS


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_second_driver_of_the_same_shard_is_refused(executor, place):
    first = start(place, seconds=0.3, shard="1/2", executor=executor)
    wait_for(lambda: done(place) >= 1, first)
    settings = {"x": list(range(TRIALS)), "log": str(place / "log"), "seconds": 0.3, "padding": 0}
    for shard in ("1/2", "1/3", None):
        with pytest.raises(BusyError, match=f"process {first.pid} on"):
            ns.sweep(logged, settings, output=place / "s", workers=1, shard=shard)
    first.kill()
    first.communicate()
    finished(start(place, seconds=0.3))
    assert assert_undisturbed(place) <= TRIALS + WORKERS * (2 if executor == "ray" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_two_drivers_without_the_lock(executor, place):
    both = [start(place, seconds=0.05, lock=False, executor=executor) for _ in range(2)]
    for driver in both:
        finished(driver)
    assert assert_undisturbed(place) <= 2 * TRIALS
    runs = [path.name.split("-")[0] for path in (place / "log").iterdir()]
    assert max(map(runs.count, runs)) <= 2


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.call(words, stderr=subprocess.DEVNULL):
        pytest.skip("platform: no right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path):
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(256))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_full_disk(executor, place, small_disk):
    more = {"output": str(small_disk / "s"), "executor": executor, "seconds": 0.01}
    (place / "s").symlink_to(small_disk / "s")
    driver = start(place, **more)
    wait_for(lambda: done(place) >= 2, driver)
    fill(small_disk / "filler")
    text = finished(driver, 1)
    assert "No space left" in text
    assert "are saved" in text
    assert 2 <= done(place) < TRIALS
    (small_disk / "filler").unlink()
    finished(start(place, **more))
    assert_undisturbed(place)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("saved", [0, 3])
def test_a_store_that_turns_read_only_in_mid_run(saved, executor, place):
    flag = place / "flag"
    driver = start(place, executor=executor, seconds=0.1, read_only=str(flag))
    wait_for(lambda: any((place / "log").iterdir()) and done(place) >= saved, driver)
    flag.touch()
    below = descendants(driver.pid)
    text = finished(driver, 1)
    assert "cannot be written: Read-only file system" in text
    assert f"{done(place)} trials of this start are saved" in text
    assert text.rindex("StoreError: ") > text.rindex("OSError: [Errno 30]")  # what ends the sweep
    assert "has no locks" not in text
    assert saved <= done(place) < TRIALS
    assert executor == "ray" or not wait_until_gone(below)
    finished(start(place, executor=executor, seconds=0.1))
    assert assert_undisturbed(place) <= TRIALS + WORKERS * (2 if executor == "ray" else 1)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_store_that_turns_read_only(executor, place, small_disk):
    more = {"output": str(small_disk / "s"), "executor": executor, "seconds": 0.05}
    (place / "s").symlink_to(small_disk / "s")
    driver = start(place, **more)
    wait_for(lambda: done(place) >= 2, driver)
    driver.kill()  # a disk that is written to cannot be made read-only
    driver.communicate()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    text = finished(start(place, **more), 1)
    assert "cannot be written: Read-only file system" in text
    assert "has no locks" not in text
    assert "trials done" in Sweep(place / "s").summary()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    finished(start(place, **more))
    assert_undisturbed(place)


def test_a_script_without_its_guard_says_so(place):
    text = DRIVER.replace('if __name__ == "__main__":', "if True:")
    assert text != DRIVER
    (place / "driver.py").write_text(text)
    assert "if __name__ == '__main__'" in finished(start(place), 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_with_what_it_has(number, place):
    """Ctrl-C, or what a scheduler sends before it takes the machine away."""
    words = ["sweep", "mlp:64-100-100-10", "--data", "digits", "--steps", "150", "seeds=30"]
    words = [sys.executable, "-m", "normscope", *words, "lr=0.01,0.1", "--output", place / "s"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = subprocess.Popen(
        [*map(str, words), "--workers", "2"], env=env, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: done(place) >= 2, driver)
    below = descendants(driver.pid)
    driver.send_signal(number)
    text = finished(driver, 130)
    assert f"{done(place)} trials are saved. The same command goes on from there." in text
    assert 2 <= done(place) < 60
    assert not wait_until_gone(below)

"""Sweeps on a Ray cluster: nodes that die, join, differ, or are not there."""

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import normscope as ns
from normscope.errors import InputError, NormscopeError
from normscope.sweeps import Sweep, Trial
from normscope.sweeps.cluster import check_reachable
from sweep_trials import product

pytestmark = pytest.mark.distributed

DRIVER = textwrap.dedent(
    """
    import sys
    import normscope as ns
    from sweep_trials import logged

    address, folder, log, trials = sys.argv[1:]
    settings = {"x": list(range(int(trials))), "log": log, "seconds": 0.2}
    ns.sweep(logged, settings, output=folder, executor="ray", address=address)
    """
)
CLUSTER = textwrap.dedent(
    """
    import subprocess, sys, time
    from pathlib import Path
    from ray.cluster_utils import Cluster

    driver, folder, log, trials = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    words = [sys.executable, "-c", driver, cluster.address, folder, str(log), str(trials)]
    running = subprocess.Popen(words)

    def wait_for(number):
        while len(list(log.iterdir())) < number:
            assert running.poll() is None, "the driver ended"
            time.sleep(0.02)

    try:
        wait_for(trials // 4)
        cluster.remove_node(second, allow_graceful=False)
        wait_for(trials // 2)
        cluster.add_node(num_cpus=1)
        code = running.wait(200)
    finally:
        running.kill()
        cluster.shutdown()
    sys.exit(code)
    """
)


def differs(settings):
    return {"process": os.getpid()}


def same(settings):
    return {"answer": 42}


def test_a_node_dies_and_another_joins(tmp_path):
    trials = 60
    (tmp_path / "log").mkdir()
    paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    # a cluster of this test alone, that no other machine can reach
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    own |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
    words = [sys.executable, "-c", CLUSTER, DRIVER, tmp_path / "s", tmp_path / "log", trials]
    ran = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, env=os.environ | own, timeout=240,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "raylet" not in ran.stdout  # Ray's own messages are kept off the terminal
    found = Sweep(tmp_path / "s")
    assert found.complete
    workers = {line["about"]["pid"] for line in found.lines()}
    assert len(workers) >= 3  # on the head, on the node that died, on the one that joined
    expected = [[x, x * 1.5, x % 5 == 0] for x in range(trials)]
    assert found.to_frame()[["x", "value", "diverged"]].to_numpy().tolist() == expected
    assert len(list((tmp_path / "log").iterdir())) <= trials + 4  # what was in flight


def test_a_node_that_differs_is_refused_by_name(tmp_path):
    trial = Trial(product, fingerprint=differs)
    with pytest.raises(
        NormscopeError, match=rf"The node {socket.gethostname()} .* differs .*: proc"
    ):
        ns.sweep(trial, {"x": [1]}, output=tmp_path, executor="ray", workers=1)
    trial = Trial(product, fingerprint=same)
    assert ns.sweep(trial, {"x": [1]}, output=tmp_path, executor="ray", workers=1).complete


def test_a_local_cluster_listens_on_this_machine_only(tmp_path):
    """Looked at from inside a trial: no socket of Ray is bound to another address."""
    found = ns.sweep(listening, {"x": [1]}, output=tmp_path, executor="ray", workers=1)
    [row] = found.to_frame().to_dict("records")
    assert row["local"] > 0
    assert row["open"] == 0


def listening(x: int) -> dict:
    """Listening sockets of the processes above this one, by the address they are bound to."""
    inodes, pid = set(), os.getpid()
    while pid > 1:
        if b"ray" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            break
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    counts = {"local": 0, "open": 0}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                counts["local" if words[1].split(":")[0] in loopback else "open"] += 1
    return counts


def test_a_cluster_that_is_not_there(tmp_path):
    began = time.monotonic()
    with pytest.raises(NormscopeError, match=r"There is no Ray cluster at 127\.0\.0\.1:1: "):
        ns.sweep(product, {"x": [1]}, output=tmp_path, executor="ray", address="127.0.0.1:1")
    assert time.monotonic() - began < 15
    with pytest.raises(InputError, match="auto, local or HOST:PORT"):
        check_reachable("nonsense")


def test_more_than_the_machine_has_is_refused(tmp_path):
    """Ray itself would wait for ever."""
    with pytest.raises(InputError, match="no node has 500 CPUs"):
        ns.sweep(product, {"x": [1]}, output=tmp_path, executor="ray", cpus_per_trial=500)


def test_a_ray_of_the_caller_is_left_alone(tmp_path):
    """In a process of its own: the caller's cluster must still work afterwards."""
    code = textwrap.dedent(
        """
        import sys, ray
        import normscope as ns
        from sweep_trials import product

        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
            ns.sweep(product, {"x": [1]}, output=sys.argv[1], executor="ray")
        except ns.NormscopeError as error:
            print(error)
        print(ray.get(ray.put("still there")))
        """
    )
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": paths}, timeout=120, check=False,
    )  # fmt: skip
    assert "ray.shutdown()" in ran.stdout, ran.stderr[-2000:]
    assert "still there" in ran.stdout


def test_a_port_at_which_something_else_listens():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(NormscopeError, match="no answer within 10 s"):
            check_reachable(address)

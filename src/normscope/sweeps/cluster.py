"""Trials on a Ray cluster: records come back to the driver, so that no shared disk is needed."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from normscope.errors import InputError, NormscopeError
from normscope.sweeps.executors import Executor
from normscope.sweeps.plan import Settings, Trial
from normscope.sweeps.running import Finished, Task

KNOCK, HEALTH = 4.0, 10.0  # seconds for a connection, and for an answer to it
LOOK = 5.0  # seconds between two looks at how large the cluster is
AHEAD = 2  # trials that wait at the cluster for each one that runs
# read when ray is imported: its messages of dead workers; whether it listens on this machine only
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class Ray(Executor):
    """Ray Core, with our own count of deaths: Ray itself repeats nothing."""

    def __init__(
        self,
        task: Task,
        address: str,
        workers: int | None,
        resources: tuple[float, float],
        trial: Trial,
        example: Settings,
    ) -> None:
        with _environment(QUIET | (ALONE if address == "local" else {})):
            self._ray = _imported()
            if self._ray.is_initialized():
                raise NormscopeError(
                    "Ray is in use in this process already, and a sweep needs a connection of its "
                    "own. Call ray.shutdown() first."
                )
            if address != "local":
                check_reachable(address)
            self._connect(address, workers)
        try:
            dumps = self._ray.cloudpickle.dumps
            self._task, self._cpus = task.portable(dumps), resources[0]
            check = dumps((trial.fingerprint, example))
            self._expected = fingerprint_of(check)
            self._check_resources(dict(zip(("CPU", "GPU"), resources, strict=True)), address)
            self._refuse_other_nodes(check)
            options = {"num_cpus": resources[0], "num_gpus": resources[1], "max_retries": 0}
            self._run = self._ray.remote(_checked_run).options(**options)
            self._check = self._ray.put(check)
            self._function = self._ray.put(self._task)
        except BaseException:
            self.close()
            raise
        self._running: dict[Any, str] = {}
        self._size, self._looked = 0, -LOOK

    @property
    def free(self) -> int:
        """A bounded number of trials is at the cluster, whatever its size."""
        if time.monotonic() - self._looked > LOOK:
            cores = self._ray.cluster_resources().get("CPU", 0)
            self._size = max(1, int(cores / self._cpus)) if self._cpus else 1
            self._looked = time.monotonic()
        return AHEAD * self._size - len(self._running)

    def submit(self, key: str, settings: Settings) -> None:
        """Queue the trial at the cluster."""
        sent = self._run.remote(self._function, self._check, self._expected, key, settings)
        self._running[sent] = key

    def finished(self, seconds: float) -> list[Finished]:
        """What came back; whatever Ray says of a trial that did not, its process is gone."""
        if not self._running:
            time.sleep(seconds)
            return []
        waiting = list(self._running)
        done, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds)
        if done:  # and all others that are there by now
            done, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._outcome(sent) for sent in done]

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()

    def _outcome(self, sent: Any) -> Finished:
        key = self._running.pop(sent)
        try:
            outcome: Finished | str = self._ray.get(sent)
        except self._ray.exceptions.RayTaskError as error:  # raised before the trial began
            return Finished(key, error=str(error))
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            return Finished(key, died=f"{type(error).__name__}: {reason}")
        if isinstance(outcome, str):
            raise NormscopeError(f"{outcome} Its trial was not recorded; all others are saved.")
        return outcome

    def _connect(self, address: str, workers: int | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            own = {"num_cpus": workers, "include_dashboard": False}
            found_here = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
            here = {"_node_ip_address": "127.0.0.1", "runtime_env": found_here}
            self._ray.init("local", **own, **quiet, **here)
            return
        try:
            self._ray.init(address, **quiet)
        except Exception as error:
            raise _unreachable(address, str(error)) from None

    def _check_resources(self, wanted: dict[str, float], address: str) -> None:
        """Say what Ray would wait for without a word."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for name, amount in wanted.items():
            most = max((node.get(name, 0) for node in nodes), default=0)
            if amount > most:
                said = f"A trial takes {amount:g} {name}s, and no node has {amount:g} {name}s: the "
                said += f"largest has {most:g}. Give a smaller --{name.lower()}s-per-trial"
                if address == "local":
                    raise InputError(said + ".")
                warnings.warn(said + ", or let a larger node join.", stacklevel=2)

    def _refuse_other_nodes(self, check: bytes) -> None:
        """Ask every node for versions and data; one that differs is named."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask, asked = self._ray.remote(fingerprint_of), dict[str, Any]()
        for node in (node for node in self._ray.nodes() if node["Alive"]):
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            sent = ask.options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote(check)
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            asked[f"{name}, node {node['NodeID'][:8]}"] = sent
        for name, sent in asked.items():  # all of them import and read their data at a time
            try:
                found = self._ray.get(sent)
            except self._ray.exceptions.RayError as error:
                last = str(error).strip().splitlines()[-1]
                raise NormscopeError(f"The node {name} cannot run trials: {last}") from None
            if difference := _difference(found, self._expected):
                raise NormscopeError(f"The node {name} differs from this machine: {difference}.")


def fingerprint_of(check: bytes) -> dict[str, Any]:
    """What must be equal on all machines: versions, and what the trial says of its data."""
    import pickle

    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in ("normscope", "numpy", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    own, example = pickle.loads(check)
    return found if own is None else found | own(example)


_fingerprint = functools.lru_cache(maxsize=4)(fingerprint_of)


def _checked_run(
    task: Task, check: bytes, expected: dict[str, Any], key: str, settings: Settings
) -> Finished | str:
    """One trial; why this node may run none, if it is a newcomer that differs."""
    if difference := _difference(_fingerprint(check), expected):
        return f"The node {socket.gethostname()} differs from the driver's: {difference}."
    return task(key, settings)


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    differ = [name for name in expected if found.get(name) != expected[name]]
    return "; ".join(f"{name} {found.get(name)} there, {expected[name]} here" for name in differ)


def check_reachable(address: str) -> None:
    """Refuse within 15 seconds a cluster that does not answer; Ray itself waits much longer."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"address is auto, local or HOST:PORT. Got {address!r}.")
        try:
            socket.create_connection((host, int(port)), timeout=KNOCK).close()
        except OSError as error:
            raise _unreachable(address, str(error)) from None
        words += ["--address", address]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=HEALTH)
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"no answer within {HEALTH:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise _unreachable(address, (error.stderr.strip().splitlines() or [""])[-1]) from None


def _unreachable(address: str, why: str) -> NormscopeError:
    return NormscopeError(
        f"There is no Ray cluster at {address}: {why}. Start one with `ray start --head`, or "
        "give --address local for one on this machine."
    )


def _imported() -> Any:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        raise NormscopeError(
            "executor='ray' needs the package 'ray', which is not installed. Install it with: "
            "pip install 'normscope[cluster]'"
        ) from None
    return ray


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """A span with these variables, unless the user has set them."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]

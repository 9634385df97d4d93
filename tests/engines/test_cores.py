"""Threads of an engine: affinity, threads of one core, and limits of containers."""

import os
from pathlib import Path

import pytest

from tests.engines.system_files import write
from welldone.engines.cores import SMALL_MODEL_BYTES, Waiting, default_threads, thread_limit, thread_waiting

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")


def topology(*siblings: str) -> dict[str, str]:
    """CPUs, each with the CPUs of its core."""
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {folder.format(number): text for number, text in enumerate(siblings)}


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eight CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


def test_the_engine_counts_the_cores_of_a_whole_machine_itself(tmp_path: Path) -> None:
    assert thread_limit(root=tmp_path) is None


def test_the_affinity_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert thread_limit(root=tmp_path) == 3
    assert thread_limit(root=write(tmp_path, topology("0-1", "0-1", "2-3"))) == 2  # two threads of a core count once


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "25000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "400000 100000"}, 4),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu:/pod",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    assert thread_limit(root=write(tmp_path, files)) == cores


def test_a_system_without_affinity_has_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert thread_limit(root=tmp_path) is None


TWO_PER_CORE = ("0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7")


@pytest.mark.parametrize(
    ("cpus", "siblings", "limit", "threads"),
    [
        (2, (), "max", None),  # a small machine needs them all
        (8, (), "max", 7),
        (16, (), "max", 14),
        (8, TWO_PER_CORE, "max", None),  # the second thread of each core is free
        (16, (), "800000", 7),
        (16, (), "400000", 4),
        (8, TWO_PER_CORE, "600000", 4),
    ],
)
def test_a_small_model_leaves_a_core_in_eight_to_the_server_and_its_clients(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpus: int,
    siblings: tuple[str, ...],
    limit: str,
    threads: int | None,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    group = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{limit} 100000"}
    root = write(tmp_path, topology(*siblings) | group)
    assert default_threads(SMALL_MODEL_BYTES - 1, root=root) == threads
    assert default_threads(SMALL_MODEL_BYTES, root=root) == thread_limit(root=root)


def test_llama_cpp_counts_the_fast_cores_of_a_cpu_with_two_kinds(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/cpu_atom").mkdir(parents=True)
    assert default_threads(1, root=tmp_path) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Waiting.SPIN),  # the kernel does not report it
        ({"proc/pressure/cpu": "some avg10=3.10 avg60=99.00 avg300=99.00 total=1"}, Waiting.SPIN),
        ({"proc/pressure/cpu": "some avg10=97.07 avg60=1.00 avg300=1.00 total=1\nfull avg10=0.00"}, Waiting.SLEEP),
        ({"proc/pressure/cpu": "other"}, Waiting.SPIN),
    ],
)
def test_threads_spin_unless_other_programs_need_the_cores(
    tmp_path: Path, files: dict[str, str], expected: Waiting
) -> None:
    root = write(tmp_path, files)
    assert thread_waiting({}, root=root) is expected
    assert thread_waiting({}, has_contention=True, root=root) is Waiting.SLEEP
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        assert thread_waiting({name: "1"}, has_contention=True, root=root) is Waiting.ENVIRONMENT


@pytest.mark.parametrize(
    ("threads", "siblings", "limit", "expected"),
    [
        (7, (), "max", Waiting.SPIN),  # of eight CPUs
        (8, (), "max", Waiting.SPIN),
        (None, (), "max", Waiting.SPIN),  # llama.cpp's default: a thread for each core
        (None, TWO_PER_CORE, "max", Waiting.SPIN),  # cores with two threads each
        (4, (), "400000", Waiting.SPIN_BRIEFLY),  # a container with four CPUs
        (3, (), "400000", Waiting.SPIN),
        (1, (), "max", Waiting.SPIN_BRIEFLY),
    ],
)
def test_threads_spin_briefly_where_a_few_cpus_all_have_one(
    tmp_path: Path, threads: int | None, siblings: tuple[str, ...], limit: str, expected: Waiting
) -> None:
    group = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{limit} 100000"}
    root = write(tmp_path, topology(*siblings) | group)
    assert thread_waiting({}, threads, root=root) is expected
    assert thread_waiting({}, threads, is_watched=False, root=root) is Waiting.SPIN_BRIEFLY


def test_all_cpus_count_on_a_system_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert thread_waiting({}, 3, root=tmp_path) is Waiting.SPIN
    assert thread_waiting({}, 4, root=tmp_path) is Waiting.SPIN_BRIEFLY


@pytest.mark.parametrize(
    ("waiting", "variables"),
    [
        (Waiting.SPIN, {}),
        (Waiting.SPIN_BRIEFLY, {"GOMP_SPINCOUNT": "3000"}),
        (Waiting.SLEEP, {"OMP_WAIT_POLICY": "passive"}),
        (Waiting.ENVIRONMENT, {}),
    ],
)
def test_libgomp_reads_how_to_wait_from_the_environment(waiting: Waiting, variables: dict[str, str]) -> None:
    assert waiting.variables == variables

"""Worker processes: answers, states, deaths; nothing left behind however it ends."""

import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tests.runs import ROOT
from tests.threading_runtime.toy_worker import Toy
from threading_runtime.pool import Pool, Stopped
from threading_runtime.processes import TRANSPORTS, Processes, RemoteTraceback, WorkerDied

pytestmark = pytest.mark.thread_unsafe(reason="all share the module's processes, which have one caller")


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.fixture(scope="module")
def processes(transport):
    with Processes(2, Toy, transport) as found, Pool(2) as pool:
        yield found, pool


@pytest.fixture
def one():
    """A process that may die: how it does is the same with each transport."""
    with Processes(1, Toy, "shared_memory") as found:
        yield found


def alive(pid):
    """Whether a process runs: a zombie that nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if alive(pid)]


def test_arrays_come_back_as_they_are_in_job_order(processes):
    workers, pool = processes
    workers.begin()
    rng = np.random.default_rng(0)
    sent = [
        [rng.integers(0, 256, (n, 3), dtype=np.uint8), rng.standard_normal(n).astype(np.float32)]
        for n in (0, 1, 7, 1000, 400_000, 3)
    ]
    answers = pool.map(lambda arrays: workers.run(("echo", arrays)), sent)
    for arrays, (back, pid) in zip(sent, answers, strict=True):
        assert pid in workers.pids()
        for one, other in zip(arrays, back, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape and (one == other).all()


def test_results_stay_until_the_next_begin_however_large_the_rest_gets(processes):
    workers, pool = processes
    for _ in range(2):
        workers.begin()
        sizes = [10, 5_000_000, 20, 9_000_000, 1, 0, 3_000_000]
        answers = pool.map(lambda job: workers.run(("zeros", *job)), [(size, k) for k, size in enumerate(sizes)])
        for k, (size, ([array], _)) in enumerate(zip(sizes, answers, strict=True)):
            assert len(array) == size and (array == k).all()


def test_every_process_has_the_newest_state(processes):
    workers, pool = processes
    for version in range(5):
        state = {
            "weight": torch.full((3, 2), 1.5 * version).bfloat16(),
            "bias": torch.arange(3.0) + version,
            "steps": torch.tensor(version),
            "none": torch.zeros(0, 4),
        }
        workers.publish("a", state)
        workers.publish("b", {"only": torch.tensor([version])})
        expected = {key: (str(value.dtype), value.tolist()) for key, value in state.items()}
        for _, found in pool.map(lambda _: workers.run(("state", "a")), range(6)):
            assert found == expected
        assert pool.map(lambda _: workers.run(("state", "b"))[1], [0]) == [{"only": ("torch.int64", [version])}]


def test_what_moved_is_counted(processes):
    workers, pool = processes
    workers.take_moved()
    workers.publish("c", {"weight": torch.zeros(3, 2).bfloat16(), "bias": torch.zeros(3)})
    published = workers.take_moved()
    assert published.bytes > 18 and published.seconds > 0
    pool.map(lambda _: workers.run(("echo", [np.zeros(100_000, np.uint8)])), range(3))
    moved = workers.take_moved()
    assert 300_000 < moved.bytes < 320_000 and moved.seconds > 0
    assert workers.take_moved() == (0, 0.0)


def test_a_state_keeps_its_shape(one):
    one.publish("a", {"weight": torch.zeros(100)})
    with pytest.raises(ValueError, match="a state keeps its shape"):
        one.publish("a", {"weight": torch.zeros(1000)})


def test_what_a_worker_raises_is_raised_with_its_traceback(one):
    with Pool(1) as pool, pytest.raises(ZeroDivisionError, match="^by nothing$") as caught:
        pool.map(lambda job: one.run(job), [("raise", ZeroDivisionError("by nothing"))])
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "toy_worker.py" in str(caught.value.__cause__) and "in run" in str(caught.value.__cause__)


def test_a_state_that_a_worker_refuses_is_told_with_its_traceback(one):
    one.publish("bad", {"weight": torch.zeros(1)})
    wait_until_gone(one.pids())
    with pytest.raises(ZeroDivisionError, match="^a bad state$") as caught:
        one.publish("a", {"weight": torch.zeros(1)})
    assert "in publish" in str(caught.value.__cause__)


def test_an_error_that_cannot_be_pickled_is_told(one):
    with pytest.raises(RuntimeError, match="Unpicklable: two arguments") as caught:
        one.run(("unpicklable",))
    assert "toy_worker.py" in str(caught.value.__cause__)


def test_memory_that_ran_out_is_a_memory_error(one):
    with pytest.raises(MemoryError):
        one.run(("zeros", 1 << 62, 0))


@pytest.mark.parametrize(
    "job, says",
    [
        (("signal", signal.SIGKILL), "was killed by SIGKILL; the system does that where memory runs out"),
        (("signal", signal.SIGSEGV), "was killed by SIGSEGV."),
        (("exit", 3), None),
    ],
)
def test_a_process_that_dies_stops_the_caller_and_says_how(one, job, says):
    expected = pytest.raises(WorkerDied, match=f"worker process 0 .pid {one.pids()[0]}. {says}") if says else (
        pytest.raises(SystemExit)
    )  # fmt: skip
    with expected:
        one.run(job)
    wait_until_gone(one.pids())
    with pytest.raises(WorkerDied):
        one.run(("echo", []))


def test_a_process_killed_while_idle_is_noticed_at_the_next_job(one):
    os.kill(one.pids()[0], signal.SIGKILL)
    wait_until_gone(one.pids())
    with pytest.raises(WorkerDied, match="SIGKILL"):
        one.run(("echo", [np.zeros(5_000_000, np.uint8)]))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        one.publish("a", {"weight": torch.zeros(5_000_000)})


def test_a_worker_that_cannot_be_made_raises_at_the_start():
    with pytest.raises(ValueError, match="no job is called nothing"):
        Processes(2, functools.partial(Toy, ("nothing",)), "pickle").__enter__()


def test_a_stopped_run_does_not_wait_for_its_process(one):
    with Pool(1) as pool:
        run = pool.start(lambda job: one.run(job, pool.raise_if_stopping), [("sleep",)])
        time.sleep(0.2)
        begun = time.monotonic()
        pool.stop()
        with pytest.raises(Stopped):
            run.result()
        pids = one.pids()
        with pytest.raises(WorkerDied):  # and its answer is never taken for that to another job
            pool.map(lambda job: one.run(job), [("echo", [])])
        one.close()
        assert time.monotonic() - begun < 1.0
    wait_until_gone(pids)


def test_interrupts_are_left_to_the_parent(one):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(one.pids()[0], number)
    assert one.run(("echo", []))[1] == one.pids()[0]


@pytest.mark.parametrize("settings", [(0, "pickle"), (1, "pigeon")])
def test_what_cannot_be_is_refused(settings):
    with pytest.raises(ValueError, match=r"(count is 0|transport is 'pigeon')"):
        Processes(settings[0], Toy, settings[1])


PARENT = """
import signal, sys
from tests.threading_runtime.toy_worker import Toy
from threading_runtime.processes import Processes
import numpy as np, torch

if __name__ == "__main__":
    with Processes(2, Toy, sys.argv[1]) as workers:
        workers.publish("a", {"weight": torch.zeros(100_000)})
        workers.run(("zeros", 3_000_000, 1))
        print(*workers.pids(), flush=True)
        if sys.argv[2] == "busy":
            workers.run(("sleep",))
        signal.pause()
"""


@pytest.mark.parametrize(
    "transport, state, number",
    [
        ("pickle", "busy", signal.SIGKILL),
        pytest.param("shared_memory", "idle", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("shared_memory", "busy", signal.SIGTERM, marks=pytest.mark.slow),
        ("shared_memory", "busy", signal.SIGINT),
    ],
)
def test_nothing_outlives_the_parent_however_it_ends(transport, state, number, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    before = sorted(os.listdir("/dev/shm"))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, script, transport, state], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as parent:  # fmt: skip
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        parent.send_signal(number)
        parent.wait(10)
    wait_until_gone(pids)
    assert sorted(os.listdir("/dev/shm")) == before

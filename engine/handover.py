"""What handing a request to an inference server costs: between threads of one process, and between processes.

The server answers at once, so that nothing but the hand-over is timed: rows to the server, outputs back. Between
processes rows and outputs lie in memory that both map, and one byte through a pipe says that they are there, which is
the least that an answer can cost a process that has to sleep until it comes.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from statistics import median
from typing import Any

import numpy as np

from engine.bench import summary
from threading_runtime.batching import BatchServer
from threading_runtime.pool import Pool

REQUESTS = 2000  # of a client and repeat
REPEATS = 5


def handover_rows(row_bytes: int, outputs: int, clients: int, rows: int) -> list[dict[str, Any]]:
    """Microseconds a request of `rows` packed rows, with so many float32 outputs a row, between threads and processes.

    clients: how many ask at once, each its next request when the last is answered.
    """
    by_threads = [_threads(row_bytes, outputs, clients, rows) for _ in range(REPEATS)]
    by_processes = _processes(row_bytes, outputs, clients, rows)
    return [
        {
            "handover": kind,
            "clients": clients,
            "rows_a_request": rows,
            "requests": REQUESTS,
            "microseconds_per_request": median(found),
            **summary("microseconds_per_request", found),
        }
        for kind, found in (("threads", by_threads), ("processes", by_processes))
    ]


def _threads(row_bytes: int, outputs: int, clients: int, rows: int) -> float:
    answer = np.zeros((rows * clients, outputs), np.float32)
    server = BatchServer(
        [lambda asked: answer[: len(asked)]], clients, limit=rows * clients, wait_seconds=0.0, queue=clients
    )
    together = threading.Barrier(clients)

    def client(number: int) -> float:
        asked = np.full((rows, row_bytes), number, np.uint8)
        together.wait(60)
        started = time.perf_counter()
        for _ in range(REQUESTS):
            server.ask(0, asked)
        return 1e6 * (time.perf_counter() - started) / REQUESTS

    with server, Pool(clients) as pool:
        return median(pool.map(client, range(clients)))


def _processes(row_bytes: int, outputs: int, clients: int, rows: int) -> list[float]:
    """One figure a repeat."""
    asked_bytes, answered_bytes = rows * row_bytes, rows * outputs * 4
    spawn = multiprocessing.get_context("spawn")
    lines: list[Connection] = []
    places: list[mmap.mmap] = []
    processes = []
    for number in range(clients):
        descriptor = os.memfd_create(f"client-{number}")
        os.truncate(descriptor, asked_bytes + answered_bytes)
        mine, theirs = spawn.Pipe()
        process = spawn.Process(
            target=_client, args=(theirs, DupFd(descriptor), asked_bytes, answered_bytes), daemon=True
        )
        process.start()
        theirs.close()
        places.append(mmap.mmap(descriptor, asked_bytes + answered_bytes))
        os.close(descriptor)
        lines.append(mine)
        processes.append(process)
    try:
        for line in lines:
            line.recv_bytes()  # it is there
        return [_serve(lines, places, asked_bytes, answered_bytes) for _ in range(REPEATS)]
    finally:
        for line in lines:
            line.close()  # by which a client knows that it is over
        for process in processes:
            process.join()


def _serve(lines: list[Connection], places: list[mmap.mmap], asked_bytes: int, answered_bytes: int) -> float:
    answer = bytes(answered_bytes)
    for line in lines:
        line.send_bytes(b"b")  # begin
    figures: list[float] = []
    place_of = dict(zip(lines, places, strict=True))
    while len(figures) < len(lines):
        for ready in wait(lines):
            line = next(each for each in lines if each is ready)
            message = line.recv_bytes()
            if len(message) > 1:
                figures.append(float(message))
                continue
            place = place_of[line]
            place[:asked_bytes]  # the rows, copied as a batch would
            place[asked_bytes:] = answer
            line.send_bytes(b"a")
    return median(figures)


def _client(line: Connection, descriptor: Any, asked_bytes: int, answered_bytes: int) -> None:
    number = descriptor.detach()
    place = mmap.mmap(number, asked_bytes + answered_bytes)
    os.close(number)
    asked = bytes(asked_bytes)
    line.send_bytes(b"h")
    try:
        while True:
            line.recv_bytes()
            started = time.perf_counter()
            for _ in range(REQUESTS):
                place[:asked_bytes] = asked
                line.send_bytes(b"r")
                line.recv_bytes()
                place[asked_bytes:]
            line.send_bytes(repr(1e6 * (time.perf_counter() - started) / REQUESTS).encode())
    except EOFError:
        pass  # nothing more is asked

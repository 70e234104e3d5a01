"""CUDA: a stream for each thread, and the order between writes of weights and the forwards that read them."""

from __future__ import annotations

import os
import threading

import torch


def use_own_stream(device: torch.device | str) -> None:
    """Let the calling thread work on a CUDA stream of its own from now on; on other devices do nothing.

    Called once in every worker: `Pool(threads, initialise=lambda: use_own_stream(device))`. Torch's current
    stream is per thread, so that nothing has to be passed along.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))


def only_deterministic() -> None:
    """Let this process use nothing on CUDA whose bits may differ from run to run; before its first product there."""
    # cuBLAS shares a workspace among products otherwise, and which of them gets it is a matter of timing.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


class WeightOrder:
    """Orders streams, not threads: work that was only enqueued is still to run when its thread goes on.

    Owned by: one SharedModel on a CUDA device.
    Safe to call from: any thread that holds the model's lock for what it announces: `before_read` and
        `after_read` while reading, `before_write` and `after_write` while writing.
    Guarantees: on the device, a forward begins after the last write has ended, and a write begins after all
        forwards since the write before it have ended. The host waits for neither.
    Does not guarantee: anything about work on streams other than the one current at each call.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._writes = 0
        self._written = torch.cuda.Event()
        self._written.record(torch.cuda.current_stream(device))  # the weights as they were given
        self._reads: list[torch.cuda.Event] = []  # one for each thread that read since the last write
        self._local = threading.local()

    def before_read(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._written)

    def after_read(self) -> None:
        local = self._local
        if getattr(local, "writes", None) != self._writes:
            local.writes = self._writes
            local.event = torch.cuda.Event()
            self._reads.append(local.event)
        # Recorded again at each read: the latest of a stream stands for all before it.
        local.event.record(torch.cuda.current_stream(self._device))

    def before_write(self) -> None:
        stream = torch.cuda.current_stream(self._device)
        for event in (self._written, *self._reads):
            stream.wait_event(event)

    def after_write(self) -> None:
        self._written = torch.cuda.Event()
        self._written.record(torch.cuda.current_stream(self._device))
        self._reads.clear()
        self._writes += 1

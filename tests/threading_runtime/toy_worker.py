"""A worker for tests of processes: does what its job says."""

import os
import signal
import sys

import numpy as np


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)


class Toy:
    """A job is its kind and what that needs."""

    def __init__(self, start=None):
        if start is not None:
            self.run(start)
        self.states = {}

    def publish(self, name, state):
        if name == "bad":
            raise ZeroDivisionError("a bad state")
        self.states[name] = {key: value.clone() for key, value in state.items()}

    def run(self, job):
        kind, *rest = job
        if kind == "echo":
            return rest[0], os.getpid()
        if kind == "state":
            return [], {key: (str(value.dtype), value.tolist()) for key, value in self.states[rest[0]].items()}
        if kind == "raise":
            raise rest[0]
        if kind == "unpicklable":
            raise Unpicklable("two ", "arguments")
        if kind == "signal":
            os.kill(os.getpid(), rest[0])
            signal.pause()
        if kind == "exit":
            sys.exit(rest[0])
        if kind == "sleep":
            signal.pause()
        if kind == "zeros":
            return [np.zeros(rest[0], np.uint8) + rest[1]], None
        raise ValueError(f"no job is called {kind}")

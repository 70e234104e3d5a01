"""Imported once by the process that commands are forked from: what a run imports, late imports included."""

import hypothesis.strategies  # noqa: F401
import matplotlib.backends.backend_agg  # noqa: F401
import pytest  # noqa: F401
import torch

import engine.commands
import engine.display
import engine.doctor
import engine.report
import engine.runs
import engine.trainer  # noqa: F401
from threading_runtime.gil import keep_gil_off

keep_gil_off()
# The first optimizer of a process imports for seconds; it starts no thread, so forking stays safe.
torch.optim.Adam([torch.zeros(1, requires_grad=True)])

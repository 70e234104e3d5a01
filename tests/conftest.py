"""What every test needs first."""

from threading_runtime.gil import keep_gil_off

# The first optimizer of a process switches the GIL on unless this came before, and which test makes it is chance.
keep_gil_off()

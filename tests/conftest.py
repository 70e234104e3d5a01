"""What every test needs first."""

import signal

from threading_runtime.gil import keep_gil_off

collect_ignore = ["tsan"]  # scripts/tsan runs these, with modules compiled for it

# The first optimizer of a process switches the GIL on unless this came before, and which test makes it is chance.
keep_gil_off()

# A shell starts what it puts in the background with SIGINT ignored, and Python keeps to that: tests that interrupt
# themselves, or a command that they start, would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

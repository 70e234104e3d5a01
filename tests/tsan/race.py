"""Two threads at once in one function of racy.pyx: `python race.py race` or `python race.py apart`."""

import sys
import threading

import racy

TIMES = 100_000

function = getattr(racy, sys.argv[1])
begin = threading.Barrier(2)


def work(thread: int) -> None:
    begin.wait()
    function(thread, TIMES)


threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

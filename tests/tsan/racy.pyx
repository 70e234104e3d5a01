"""A counter that threads share, with a race and without: what ThreadSanitizer has to report, and what it must not.

Built and run by scripts/tsan, and in no other way part of the project.
"""
cdef long shared = 0
cdef long of_thread[2][16]      # a cache line each


cdef void add(long* counter, long times) noexcept nogil:
    cdef long i
    cdef volatile long* each_time = counter     # or the compiler adds once
    for i in range(times):
        each_time[0] += 1


def race(int thread, long times):
    """Every thread adds to the one counter."""
    with nogil:
        add(&shared, times)


def apart(int thread, long times):
    """Thread 0 or 1 adds to a counter of its own."""
    with nogil:
        add(of_thread[thread], times)

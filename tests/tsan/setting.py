"""What the tests under ThreadSanitizer share: networks of pyx alone, threads that begin at once, digests."""

import hashlib
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import numpy as np

from pyx.first_layer import FirstLayer

THREADS = (1, 2, 3, 4)


def network(game, number=0):
    """A network that threads share: any function of each row, in one compiled layer that never changes."""
    generator = np.random.default_rng(number)
    weight = generator.standard_normal((game.n_actions, game.n_features), np.float32)
    layer = FirstLayer(weight, generator.standard_normal(game.n_actions).astype(np.float32))

    def evaluate(rows):
        outputs = np.empty((len(rows), game.n_actions), np.float32)
        layer(rows, outputs)
        return outputs

    return evaluate


def settings(algorithm, count, block, lanes=13):
    """What collect() and Blocks read of a Config."""
    traversal = SimpleNamespace(count=count, block=block, lanes=lanes, exploration=0.6, fallback="best")
    return SimpleNamespace(algorithm=algorithm, average="strategy_network", seed=5, traversal=traversal)


def at_once(*work: Callable[[], object]) -> list:
    """What each function returns, each called by a thread of its own, all from the same moment on."""
    results: list = [None] * len(work)
    begin = threading.Barrier(len(work))

    def live(number: int) -> None:
        begin.wait()
        results[number] = work[number]()

    threads = [threading.Thread(target=live, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def digest(arrays: Iterable[np.ndarray]) -> str:
    """Of the arrays' bytes, in order."""
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(np.ascontiguousarray(array))
    return hasher.hexdigest()

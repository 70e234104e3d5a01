"""What strangers may send: mutated bytes, hostile values, and a process in which reading them may do no harm."""

import copy
import datetime
import json
import os
import resource
import traceback
from pathlib import Path

from hypothesis import strategies as st

from engine.errors import BadInput, ConfigError
from tests.commands import context

# What reading may take beyond what the process had, in bytes.
ROOM = 1 << 30


class Evil:
    """What a pickle would run, if anybody unpickled it."""

    def __reduce__(self):
        return os.system, ("touch evil",)


def confined(function, *arguments, seconds=300.0, room=ROOM):
    """What function(*arguments) returned, in a process of its own that may take `room` bytes more, or its failure."""
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(its, room, function, arguments))
    process.start()
    its.close()
    try:
        told = mine.recv() if mine.poll(seconds) else ("failed", f"still at it after {seconds} s")
    except EOFError:
        process.join(10)
        told = "failed", f"it died with status {process.exitcode}"
    process.kill()
    process.join()
    how, what = told
    assert how == "returned", what
    return what


def little_room(room=ROOM):
    """This process may take so many bytes more."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))


def _peak():
    """The most memory that this process had, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def _work(pipe, room, function, arguments):
    little_room(room)
    before = _peak()
    try:
        returned = function(*arguments)
        # Python has room set aside that the limit does not see.
        assert _peak() - before < room, f"it took {_peak() - before:,} bytes"
        pipe.send(("returned", returned))
    except BaseException:
        text = traceback.format_exc()
        pipe.send(("failed", text if len(text) < 8000 else f"{text[:4000]}\n...\n{text[-4000:]}"))


def ends_well(read, *arguments):
    """Whether `read` took what it was given. Where it refuses that, it says so in a sentence fit for a terminal."""
    try:
        read(*arguments)
        return True
    except BadInput as error:
        lines = str(error).split("\n")
        assert len(lines) == 1 or isinstance(error, ConfigError)
        assert all(line and line.isprintable() and len(line) < 2500 for line in lines), lines
        # Refused for want of memory means that it was asked for.
        seen: BaseException | None = error
        while seen is not None:
            assert not isinstance(seen, MemoryError) and "allocate memory" not in str(seen), traceback.format_exc()
            seen = seen.__context__
        return False


def contents(folder):
    """Everything below a folder, links as links."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


@st.composite
def mutated_bytes(draw, data, words):
    """`data` with some of its bytes cut, doubled, flipped or replaced by words that mean something."""
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        cut = data[start : start + draw(st.integers(0, 30))]
        put = draw(
            st.one_of(
                st.sampled_from(words),
                st.just(b""),
                st.just(cut + cut),
                st.just(bytes(byte ^ 1 for byte in cut)),
                st.binary(max_size=4),
            )
        )
        data = data[:start] + put + data[start + len(cut) :]
    return data


def deep(depth, kind):
    value = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


TEXTS = st.one_of(
    st.sampled_from(["", "x", "auto", "../../outside/kept", "/etc/passwd", "a\0b", "a\nb", "\x1b[2J", "$\\frac{$"]),
    st.sampled_from(["\udcff", "\u2028", "é" * 300]),
    st.text(max_size=20),
)
NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 2**31, 2**53, 2**60, 2**63 - 1, 2**63, 2**64, 2**70, 10**300, -(2**63) - 1]),
    st.sampled_from([0.0, -0.0, 0.5, 1e-320, 1e100, 1e308, float("inf"), float("-inf"), float("nan")]),
    st.integers(),
    st.floats(),
)
# What JSON can hold.
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    TEXTS,
    st.sampled_from([[], {}, [[]], [None], {"a": {}}, [1] * 1000, deep(300, list), deep(300, dict)]),
    st.lists(st.one_of(NUMBERS, TEXTS), max_size=4),
    st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
)
# And what TOML can hold besides.
DATES = st.sampled_from([datetime.date(1979, 5, 27), datetime.datetime(1, 1, 1), datetime.time(7, 32)])


@st.composite
def mutated_json(draw, tree):
    """A tree of JSON with some of its values put in place of others, or taken away."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        place = tree
        while True:
            keys = [*place] if isinstance(place, dict) else [*range(len(place))]
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            act = draw(st.sampled_from(["put", "put", "put", "swap", "drop", "add"]))
            if act == "drop":
                del place[key]
            elif act == "swap":
                other = draw(st.sampled_from(keys))
                place[key], place[other] = place[other], place[key]
            elif act == "add" and isinstance(place, dict):
                place[draw(TEXTS)] = json.loads(json.dumps(draw(VALUES)))
            else:
                place[key] = json.loads(json.dumps(draw(VALUES)))  # its own, to be changed in its turn
            break
    return tree


def as_toml(value):
    """A value as TOML, whole numbers of over a hundred digits in base 16."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value.encode(errors="replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return hex(value) if value > 10**100 else str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(key)} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return '""' if value is None else repr(value)

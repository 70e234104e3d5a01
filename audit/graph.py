"""The call graph of all audited modules: what could be nogil, what is free of the GIL, and in which order to work."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from audit.facts import Call, Check, Fact, Function, Gil, Module, Operation, PythonCall
from audit.rule import Verdict, Where

_MARKABLE = ("cdef", "cpdef")


@dataclass(frozen=True)
class Blocker:
    """One reason why Cython would refuse nogil on a function."""

    where: Where
    reason: str  # one sentence
    call: str = ""  # the function called, where that is the reason


@dataclass(frozen=True)
class Step:
    """A function of the order of work."""

    path: str
    line: int
    name: str
    after: tuple[str, ...]  # names of the functions whose own blockers must go first; empty: markable today


@dataclass
class Order:
    """What to do, in which order."""

    today: list[Step] = field(default_factory=list)  # markable as they are
    later: list[Step] = field(default_factory=list)  # markable once other functions are; fewest blockers first
    share: list[tuple[str, int, float]] = field(default_factory=list)  # file, its blockers, part of all blockers


class Project:
    """Modules linked by their calls. Every question has the same answer whatever order the modules came in."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = sorted(modules, key=lambda module: module.path)
        self._module_of: dict[int, Module] = {}
        self._by_target: dict[str, Function] = {}
        self._by_place: dict[tuple[str, int, int], Function] = {}
        self._functions: list[Function] = []
        for module in self.modules:
            for function in module.functions:
                self._functions.append(function)
                self._module_of[id(function)] = module
                self._by_target.setdefault(function.target, function)
                for where in (function.declared, function.where):
                    if where is not None:
                        self._by_place.setdefault(where, function)
        self._families = self._join_families()
        self._own = {id(function): tuple(self._own_blockers(function)) for function in self._functions}
        self._could = self._could_be()
        self._free = self._gil_free()
        self._reached: dict[int, tuple[str, ...]] | None = None
        self._calls: dict[str, list[Call]] | None = None

    # -- lookups ----------------------------------------------------------------------------------------------------

    def functions(self) -> Iterator[tuple[Module, Function]]:
        """Every function with its module."""
        for function in self._functions:
            yield self._module_of[id(function)], function

    def module_of(self, function: Function) -> Module:
        return self._module_of[id(function)]

    def resolve(self, call: Call | PythonCall) -> Function | None:
        """The audited function that a call runs, None where it is not audited or not known."""
        declared = call.declared if isinstance(call, Call) else None
        if declared is not None and (found := self._by_place.get(declared)) is not None:
            return found
        return self._by_target.get(call.target)

    def overriding(self, function: Function) -> list[Function]:
        """Methods that may run in place of this one, itself included."""
        return self._families.get(id(function), [function])

    def defines(self, declaration: Function) -> bool:
        """Whether an audited module has the body of what is declared here."""
        found = self._by_place.get(declaration.where)
        return found is not None or declaration.target in self._by_target

    def calls_to(self, function: Function) -> list[Call]:
        """Calls of a function, or of what a declaration stands for."""
        if self._calls is None:
            self._calls = {}
            for caller in self._functions:
                for call in caller.calls:
                    callee = self.resolve(call)
                    for key in {callee.target if callee is not None else call.target, call.target}:
                        self._calls.setdefault(key, []).append(call)
        return self._calls.get(function.target, [])

    def to_mark_with(self, function: Function) -> list[Function]:
        """Functions that have to be marked nogil when this one is: callees, their callees, and overridden methods."""
        found: dict[int, Function] = {}
        waiting = [function]
        while waiting:
            step = waiting.pop()
            for other in [callee for _, callee in self._needs(step)] + self.overriding(step):
                if other is not function and not other.nogil and id(other) not in found:
                    found[id(other)] = other
                    waiting.append(other)
        return sorted(found.values(), key=lambda other: (other.where, other.name))

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def could_be_nogil(self, function: Function) -> bool:
        """Cython would accept nogil on it once its callees are marked too."""
        return id(function) in self._could

    def gil_free(self, function: Function) -> bool:
        """It could be nogil, and neither its C nor that of the functions it calls takes the GIL on any path."""
        return id(function) in self._free

    def blockers(self, function: Function) -> tuple[Blocker, ...]:
        """Why it could not be nogil: its own reasons, then the callees that could not."""
        found = list(self._own[id(function)])
        if function.kind not in _MARKABLE:
            return tuple(found)
        for call, callee in self._needs(function):
            if id(callee) not in self._could:
                found.append(Blocker(call.where, f"It calls {callee.name}, which needs the GIL.", callee.name))
        for other in self.overriding(function):
            if other is not function and self._own[id(other)]:
                found.append(Blocker(function.where, f"{other.name}, of one table with it, needs the GIL.", other.name))
        return tuple(found)

    def own_blockers(self, function: Function) -> tuple[Blocker, ...]:
        """Its own reasons alone."""
        return self._own[id(function)]

    def python_lines(self, function: Function) -> tuple[int, ...]:
        """Lines of a function that touch Python objects, those inside `with gil` included."""
        facts: list[Fact] = [fact for fact in function.operations if fact.python]
        facts += [*function.raises, *function.python_calls]
        facts += [view for view in function.views if view.kind == "acquire"]
        lines = {fact.where.line for fact in facts if fact.where.path == function.where.path}
        return tuple(sorted(lines))

    def verdicts(self) -> list[Verdict]:
        return sorted(
            Verdict(
                function.where.path,
                function.where.line,
                function.name,
                function.nogil,
                self.could_be_nogil(function),
                self.gil_free(function),
                self.python_lines(function),
            )
            for function in self._functions
        )

    # -- who is reached from GIL-free code --------------------------------------------------------------------------

    def path(self, function: Function) -> tuple[str, ...]:
        """Names from a function that runs without the GIL down to this one; empty where none reaches it."""
        if self._reached is None:
            self._reached = self._reach()
        return self._reached.get(id(function), ())

    def _reach(self) -> dict[int, tuple[str, ...]]:
        reached: dict[int, tuple[str, ...]] = {}
        waiting: deque[Function] = deque()
        for function in self._functions:
            for call in function.calls:
                if call.context.gil is Gil.RELEASED and (callee := self.resolve(call)) is not None:
                    for target in self.overriding(callee) if call.virtual else [callee]:
                        if id(target) not in reached and target is not function:
                            reached[id(target)] = (function.name, target.name)
                            waiting.append(target)
        while waiting:
            function = waiting.popleft()
            for call in function.calls:
                if (callee := self.resolve(call)) is not None and id(callee) not in reached:
                    reached[id(callee)] = (*reached[id(function)], callee.name)
                    waiting.append(callee)
        return reached

    # -- the fixed points -------------------------------------------------------------------------------------------

    def _join_families(self) -> dict[int, list[Function]]:
        """Methods that override one another: Cython takes nogil on all of them or on none."""
        parent: dict[int, int] = {}

        def find(key: int) -> int:
            while parent.get(key, key) != key:
                key = parent[key]
            return key

        members = {id(function): function for function in self._functions}
        for function in self._functions:
            for target in function.overrides:
                if (base := self._by_target.get(target)) is not None:
                    parent[find(id(function))] = find(id(base))
        families: dict[int, list[Function]] = {}
        for key, function in members.items():
            families.setdefault(find(key), []).append(function)
        return {id(function): family for family in families.values() for function in family if len(family) > 1}

    def _own_blockers(self, function: Function) -> Iterator[Blocker]:
        if function.kind not in _MARKABLE:
            yield Blocker(function.where, f"A {_words(function.kind)} is a Python object; nogil is for cdef functions.")
            return
        for reason in function.blocked:
            yield Blocker(function.where, reason)
        for operation in function.operations:
            if operation.context.gil is not Gil.TAKEN:
                yield Blocker(operation.where, refusal_of(operation))
        for call in function.calls:
            if call.context.gil is not Gil.TAKEN and not call.nogil and self._marks(call) is None:
                yield Blocker(call.where, f"{call.name} is declared without nogil.", call.name)
        for target in function.overrides:
            if target not in self._by_target and not function.nogil:
                yield Blocker(function.where, f"It stands for {target}, which is declared without nogil.", target)

    def _marks(self, call: Call) -> Function | None:
        """The function that would have to be marked for this call."""
        callee = self.resolve(call) if call.kind == "c" else None
        return callee if callee is not None and callee.kind in _MARKABLE else None

    def _needs(self, function: Function) -> Iterator[tuple[Call, Function]]:
        """Calls that Cython would refuse unless what they call is marked too."""
        for call in function.calls:
            if call.context.gil is not Gil.TAKEN and not call.nogil and (callee := self._marks(call)) is not None:
                yield call, callee

    def _could_be(self) -> set[int]:
        could = {id(function) for function in self._functions if not self._own[id(function)]}
        callers: dict[int, set[int]] = {}
        for function in self._functions:
            for _, callee in self._needs(function):
                callers.setdefault(id(callee), set()).add(id(function))
            for other in self.overriding(function):
                if other is not function:
                    callers.setdefault(id(other), set()).add(id(function))
        return _shrink(could, callers, {id(function) for function in self._functions} - could)

    def _gil_free(self) -> set[int]:
        free = {id(function) for function in self._functions if id(function) in self._could and not takes_gil(function)}
        callers: dict[int, set[int]] = {}
        for function in self._functions:
            for call in function.calls:
                if (callee := self.resolve(call)) is not None:
                    for target in self.overriding(callee) if call.virtual else [callee]:
                        callers.setdefault(id(target), set()).add(id(function))
        return _shrink(free, callers, {id(function) for function in self._functions} - free)

    # -- order of work ----------------------------------------------------------------------------------------------

    def order(self) -> Order:
        """Functions that are not nogil yet: those to mark today, and those to mark after which others."""
        order = Order()
        counts: Counter[str] = Counter()
        for function in self._functions:
            if function.kind not in _MARKABLE:
                continue
            for blocker in self._own[id(function)]:
                counts[blocker.where.path] += 1
            if function.nogil:
                continue
            step = (function.where.path, function.where.line, function.name)
            if self.could_be_nogil(function):
                order.today.append(Step(*step, ()))
            else:
                order.later.append(Step(*step, tuple(sorted(self._roots(function)))))
        order.today.sort(key=lambda step: (step.path, step.line, step.name))
        order.later.sort(key=lambda step: (len(step.after), step.path, step.line, step.name))
        total = sum(counts.values())
        order.share = [
            (path, count, count / total) for path, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]
        return order

    def _roots(self, function: Function) -> set[str]:
        """Names of the functions with blockers of their own that keep this one from being marked."""
        roots: set[str] = set()
        seen = {id(function)}
        waiting = [function]
        while waiting:
            step = waiting.pop()
            if self._own[id(step)]:
                roots.add(step.name)
            if step.kind not in _MARKABLE:
                continue
            for other in [callee for _, callee in self._needs(step)] + self.overriding(step):
                if id(other) not in seen and id(other) not in self._could:
                    seen.add(id(other))
                    waiting.append(other)
        return roots


def link(modules: Iterable[Module]) -> Project:
    """The project that these modules make together."""
    return Project(modules)


def _shrink(kept: set[int], callers: dict[int, set[int]], fallen: set[int]) -> set[int]:
    """The greatest part of `kept` that depends on none of `fallen`."""
    kept = set(kept)
    waiting = list(fallen)
    while waiting:
        for caller in callers.get(waiting.pop(), ()):
            if caller in kept:
                kept.discard(caller)
                waiting.append(caller)
    return kept


def _words(kind: str) -> str:
    return {"def": "def function", "lambda": "lambda", "generator": "generator"}.get(kind, kind)


def refusal_of(operation: Operation) -> str:
    """Cython's refusal as a sentence with the expression."""
    return f"{operation.expression}: {operation.refusal[:1].lower()}{operation.refusal[1:]}."


def takes_gil(function: Function) -> bool:
    """Whether a function's own C, made as nogil, would take the GIL on some path, its callees left out.

    A call that may fail makes an error branch, and that takes the GIL to note where it was, however cheap the check.
    """
    return bool(
        function.with_gil
        or function.gil_blocks
        or function.raises
        or function.error_paths
        or function.views
        or function.unwinds
        or function.operations
        or function.python_calls
        or any(parallel.takes_gil for parallel in function.parallels)
        or any(call.check is not Check.NONE or call.with_gil for call in function.calls)
    )

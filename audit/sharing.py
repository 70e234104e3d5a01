"""Which places threads share, which functions run before they are shared, and which locks are held where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from audit.facts import (
    Access,
    Attribute,
    Call,
    Class,
    Context,
    Fact,
    Function,
    Guard,
    GuardKind,
    Module,
    PythonCall,
    Variable,
)
from audit.graph import Project
from audit.rule import Where

# Methods that run while only one thread has the object.
CONSTRUCTION = frozenset(
    {
        "__cinit__",
        "__init__",
        "__new__",
        "__dealloc__",
        "__del__",
        "__setstate__",
        "__setstate_cython__",
        "__post_init__",
    }
)
_WRITTEN_BY_CYTHON = ("__reduce_cython__", "__setstate_cython__", "__pyx_unpickle")
_OUTERMOST = re.compile(r"\w+")
_PREPARES = re.compile(r"_*init(?:iali[sz]e)?(?![a-z])")
_MAKES = re.compile(r"(?:<[^<>]*>)?(?:\w+\.)*(?:\w+\.__new__|__pyx_tp_new\w*|_*[A-Z]\w*)\(")


class Use(NamedTuple):
    """One access of a place."""

    module: Module
    function: Function
    access: Access
    locks: frozenset[str]  # what is locked there: "self" for the object's critical section, "self.mutex", "lock"


class Sharing:
    """What several rules ask of a project; worked out once."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.classes: dict[str, Class] = {}
        self._callers: dict[int, list[tuple[Function, Call | PythonCall]]] = {}
        self._named: set[int] = set()  # functions whose address is taken
        self._toplevels = {id(module.toplevel) for module in project.modules if module.toplevel is not None}
        for module in project.modules:
            for found in module.classes:
                self.classes.setdefault(found.target, found)
        self._generated = self._written_by_cython()
        self._link()
        self.at_import = self._only_from(self._toplevels)
        builders = {id(function) for _, function in project.functions() if _is_builder(function)}
        self.in_construction = builders | self._only_from(builders | self._toplevels, of_new_objects=True)
        self._entry = self._entry_locks()
        self._global_writes: dict[int, dict[str, list[GlobalWrite]]] = {}
        self._uses: dict[tuple[str, str], list[Use]] | None = None

    # -- who calls whom -----------------------------------------------------------------------------------------------

    def _written_by_cython(self) -> set[int]:
        """Getters and setters of public attributes, and what pickles: no code of the author's."""
        places = {member.where for found in self.classes.values() for member in found.attributes}
        return {
            id(function)
            for _, function in self.project.functions()
            if function.where in places or any(name in function.name for name in _WRITTEN_BY_CYTHON)
        }

    def is_generated(self, function: Function) -> bool:
        return id(function) in self._generated

    def _link(self) -> None:
        names = {
            (module.name, function.name): function
            for module, function in self.project.functions()
            if function.kind in ("cdef", "cpdef")
        }
        for module in self.project.modules:
            for function in [*module.functions, *([module.toplevel] if module.toplevel is not None else [])]:
                calls: list[Call | PythonCall] = [*function.calls, *function.python_calls]
                for call in calls:
                    callee = self.project.resolve(call)
                    if callee is None:
                        continue
                    virtual = isinstance(call, Call) and call.virtual
                    for target in self.project.overriding(callee) if virtual else [callee]:
                        self._callers.setdefault(id(target), []).append((function, call))
                for access in function.accesses:
                    if access.kind == "global" and (named := names.get((module.name, access.base))) is not None:
                        self._named.add(id(named))

    def _only_from(self, sources: set[int], of_new_objects: bool = False) -> set[int]:
        """Private functions that run only when one of `sources` calls them, directly or through others of the kind.

        With `of_new_objects`, a call for an object that the caller has just made counts as one from its constructor.
        """
        inside: set[int] = set()
        changed = True
        while changed:
            changed = False
            for _, function in self.project.functions():
                key = id(function)
                callers = self._callers.get(key)
                if key in inside or key in self._named or not callers:
                    continue
                by_name = function.kind != "cpdef" and not of_new_objects and _is_private(function)
                if (function.kind == "cdef" or by_name) and all(
                    id(caller) in sources or id(caller) in inside or (of_new_objects and _is_for_new(caller, call))
                    for caller, call in callers
                ):
                    inside.add(key)
                    changed = True
        return inside

    # -- locks --------------------------------------------------------------------------------------------------------

    def _entry_locks(self) -> dict[int, frozenset[str]]:
        """Locks that every caller of a private function holds when it calls."""
        held: dict[int, frozenset[str] | None] = {}  # None: not known yet, all of them
        for _, function in self.project.functions():
            private = function.kind == "cdef" or _is_private(function)
            known = private and id(function) in self._callers and id(function) not in self._named
            held[id(function)] = None if known else frozenset()
        changed = True
        while changed:
            changed = False
            for _, function in self.project.functions():
                key = id(function)
                if held[key] == frozenset():
                    continue
                met: frozenset[str] | None = None
                for caller, call in self._callers[key]:
                    if id(caller) in self.in_construction:
                        continue
                    above = held.get(id(caller), frozenset())
                    if above is None:
                        continue
                    here = frozenset(_seen_from(function, call, locks_of(call.context) | above))
                    met = here if met is None else met & here
                if met is not None and met != held[key]:
                    held[key] = met
                    changed = True
        return {key: locks or frozenset() for key, locks in held.items()}

    def locks(self, function: Function, fact: Fact) -> frozenset[str]:
        """What is locked when `fact` happens, by the function itself or by all that call it."""
        return locks_of(fact.context) | self._entry.get(id(function), frozenset())

    def global_writes(self, module: Module) -> dict[str, list[GlobalWrite]]:
        """Writes of a module's variables, by name."""
        if id(module) not in self._global_writes:
            found: dict[str, list[GlobalWrite]] = {}
            names = {variable.name for variable in module.variables}
            for function in module.functions if names else ():
                if id(function) not in self.at_import and not self.is_generated(function):
                    for name, write in _writes_in(self, function, names):
                        found.setdefault(name, []).append(write)
            self._global_writes[id(module)] = found
        return self._global_writes[id(module)]

    # -- attributes ---------------------------------------------------------------------------------------------------

    def declared(self, owner: str, name: str) -> tuple[Class, Attribute] | None:
        """The class and the declaration of an attribute, also where a base class has it."""
        waiting = [owner]
        seen: set[str] = set()
        while waiting:
            target = waiting.pop(0)
            found = self.classes.get(target)
            if found is None or target in seen:
                continue
            seen.add(target)
            for member in found.attributes:
                if member.name == name:
                    return found, member
            waiting.extend(found.bases)
        return None

    def own(self, function: Function, access: Access) -> tuple[Class, Attribute] | None:
        """The C attribute of `self` that an access goes to or through, None where it is none of a cdef class."""
        if access.root_kind != "self" or not function.extension:
            return None
        names = _OUTERMOST.findall(access.base.split("[")[0])
        if len(names) < 2:
            return None
        return self.declared(function.owner, names[1])

    def uses(self) -> dict[tuple[str, str], list[Use]]:
        """Accesses after construction of every class's attributes, by owner and name; code of the author's only."""
        if self._uses is None:
            self._uses = {}
            for module, function in self.project.functions():
                if id(function) in self.in_construction or self.is_generated(function):
                    continue
                for access in function.accesses:
                    if not access.attribute or access.root_kind == "local" or access.owner not in self.classes:
                        continue
                    if self.classes[access.owner].kind == "python" or self.is_field(access):
                        locks = frozenset(_rooted(lock, access.root) for lock in self.locks(function, access))
                        use = Use(module, function, access, locks)
                        self._uses.setdefault((access.owner, access.attribute), []).append(use)
        return self._uses

    def is_field(self, access: Access) -> bool:
        """Whether an attribute is a field of the struct of a cdef class, and no property or Python attribute."""
        found = self.declared(access.owner, access.attribute)
        return found is not None and found[0].kind == "cdef"

    def is_shared(self, function: Function) -> bool:
        """Whether what a function does to an object can happen when others have the object."""
        return id(function) not in self.in_construction and not self.is_generated(function)

    def is_locked_elsewhere(self, access: Access) -> bool:
        """Whether some other access of the same attribute holds a lock."""
        held = access.kind in ("element", "item") or bool(access.method)
        return any(
            use.locks and held == (use.access.kind in ("element", "item") or bool(use.access.method))
            for use in self.uses().get((access.owner, access.attribute), ())
        )


@lru_cache(maxsize=2)
def sharing_of(project: Project) -> Sharing:
    """The project's, made when a rule first asks for it."""
    return Sharing(project)


def locks_of(context: Context) -> frozenset[str]:
    """What is locked. A critical section does not hold where the thread state is given up inside it."""
    return frozenset(what for guard in context.guards if _holds(guard, context) for what in _locked(guard))


def _rooted(lock: str, root: str) -> str:
    """A lock of an object by the name that it has inside the object's own methods."""
    return "self" + lock[len(root) :] if root and (lock == root or lock.startswith(root + ".")) else lock


def _holds(guard: Guard, context: Context) -> bool:
    return not (guard.kind is GuardKind.CRITICAL_SECTION and context.released)


def _locked(guard: Guard) -> Iterator[str]:
    for what in guard.what.split(", "):
        yield what.lstrip("&")


def _seen_from(callee: Function, call: Call | PythonCall, locks: Iterable[str]) -> Iterator[str]:
    """Locks of a caller by the names that they have in what it calls."""
    names: dict[str, str] = {}
    parameters = [argument.name for argument in callee.arguments]
    if callee.owner and parameters:
        receiver = call.name.rpartition(".")[0]
        if receiver:
            names[receiver] = parameters.pop(0)
    if isinstance(call, Call):
        names |= {text: name for text, name in zip(call.arguments, parameters, strict=False) if text.isidentifier()}
    for lock in locks:
        for text, name in names.items():
            if lock == text or lock.startswith(text + "."):
                yield name + lock[len(text) :]
                break
        else:
            if lock.partition(".")[0] != "self":
                yield lock


def _is_builder(function: Function) -> bool:
    """A constructor, or a cdef function that is called one: init, _init_rows, _initialize."""
    name = function.name.rpartition(".")[2]
    return name in CONSTRUCTION or (function.kind == "cdef" and _PREPARES.match(name) is not None)


def _is_for_new(caller: Function, call: Call | PythonCall) -> bool:
    """Whether a call is for an object that its caller made: x = A.__new__(A), then x.prepare() or prepare(x)."""
    given = {call.name.rpartition(".")[0], *(call.arguments if isinstance(call, Call) else ())}
    made: dict[str, bool] = {}
    for access in caller.accesses:
        if access.kind == "local" and access.write and access.base in given:
            made[access.base] = made.get(access.base, True) and _MAKES.match(access.value) is not None
    return any(made.values())


def _is_private(function: Function) -> bool:
    """A Python function that others are not meant to call: _name, or init."""
    name = function.name.rpartition(".")[2]
    return name.startswith("_") and not name.endswith("__") or name == "init"


def is_mentioned(place: str, text: str) -> bool:
    """Whether an expression's text reads a place, given by its text."""
    return re.search(rf"(?<![\w.]){re.escape(place)}(?![\w(])", text) is not None


def line_of(module: Module, line: int) -> str:
    return module.lines[line - 1] if 0 < line <= len(module.lines) else ""


# ---------------------------------------------------------------------------------------------------------------------
# Module-level names
# ---------------------------------------------------------------------------------------------------------------------


class GlobalWrite(NamedTuple):
    """One write of a module-level name, or of what it holds."""

    function: Function
    where: Where
    locks: frozenset[str]
    atomic: bool
    through: bool  # what it holds is changed, not the name


_TLS = re.compile(r"\b(?:_Thread_local|thread_local|__thread)\b|__declspec\s*\(\s*thread\s*\)")
_TLS_MADE = re.compile(r"(?:^|\.)(?:local|ContextVar)\(")
# C functions that write where their first argument points, by name.
_FILLS = frozenset(
    {"memset", "memcpy", "memmove", "strcpy", "strncpy", "strcat", "strncat", "sprintf", "snprintf", "vsnprintf",
     "fread", "fgets", "gets", "qsort", "free", "realloc"}
)  # fmt: skip


def is_thread_local(module: Module, variable: Variable) -> bool:
    """Whether every thread has its own: by a C specifier in a verbatim block, threading.local, a context variable."""
    if variable.name == "errno" or _TLS_MADE.search(variable.value):
        return True
    for block in module.verbatim:
        for line in block.code.splitlines():
            if _TLS.search(line) and any(
                re.search(rf"\b{re.escape(word)}\b", line) for word in (variable.name, variable.type.split(" ")[0])
            ):
                return True
    return False


def global_writes(module: Module, project: Project) -> dict[str, list[GlobalWrite]]:
    """Writes of module-level variables by functions, those that only run at import left out."""
    return sharing_of(project).global_writes(module)


def _writes_in(sharing: Sharing, function: Function, names: set[str]) -> Iterator[tuple[str, GlobalWrite]]:
    """Writes of the module-level `names` in one function."""
    aliases: dict[str, str] = {}
    for access in function.accesses:
        if access.kind == "local" and access.write and access.value:
            target = _points_into(access.value, names)
            if target:
                aliases[access.base] = target
    for access in function.accesses:
        if not access.write:
            continue
        direct = access.root_kind == "global" and access.root in names
        name = access.root if direct else aliases.get(access.root, "")
        if direct or (name and access.kind in ("element", "attribute")):
            through = not (direct and access.kind == "global" and not access.method)
            locks = sharing.locks(function, access)
            yield name, GlobalWrite(function, access.where, locks, access.atomic, through)
    for call in function.calls:
        for place in _filled(sharing.project, call):
            name = aliases.get(place, place)
            if name in names and not any(local == place for local, _ in function.locals if place not in aliases):
                yield name, GlobalWrite(function, call.where, sharing.locks(function, call), False, True)


def _points_into(value: str, names: set[str]) -> str:
    """The global array or variable whose address, or that of a part of it, a pointer's value is."""
    bare = re.sub(r"^(?:<[^<>]*>)?\(?&?", "", value)
    match = _OUTERMOST.match(bare)
    if match is None or match.group() not in names:
        return ""
    return match.group() if "&" in value or bare.rstrip(")") == match.group() else ""


def _filled(project: Project, call: Call) -> Iterator[str]:
    """Names of what a call writes to through its arguments."""
    given = [_OUTERMOST.match(argument.lstrip("&(")) for argument in call.arguments]
    if call.cname in _FILLS:
        if given and given[0] is not None:
            yield given[0].group()
        return
    callee = project.resolve(call)
    if callee is None:
        return
    parameters = list(callee.arguments)
    if callee.owner and len(parameters) > len(given):
        parameters = parameters[1:]
    for argument, parameter in zip(given, parameters, strict=False):
        if argument is not None and any(
            access.write and access.root == parameter.name and access.kind in ("element", "attribute")
            for access in callee.accesses
        ):
            yield argument.group()


# ---------------------------------------------------------------------------------------------------------------------
# Expressions
# ---------------------------------------------------------------------------------------------------------------------


def place_of(access: Access) -> str:
    """An accessed place as it is written."""
    if not access.indices:
        return access.base
    return f"{access.base}[{', '.join(index.text for index in access.indices)}]"


def is_lazy(function: Function, access: Access) -> bool:
    """Whether a write stands under a test that the place is not filled yet."""
    if not access.write or access.deleted or access.augmented or access.value in ("None", "NULL"):
        return False
    base = rf"(?<![\w.]){re.escape(access.base)}(?![\w(\[.])"
    if access.kind == "item":
        if any(re.search(rf"not in {base}|not \(.* in {base}\)", test) for test in access.context.tests):
            return True
        fetched = {
            other.base
            for other in function.accesses
            if other.kind == "local" and other.write and _is_fetch(access.base, other.value)
        }
        return any(test in (f"{name} is None", f"not {name}") for name in fetched for test in access.context.tests)
    if access.method or access.kind not in ("attribute", "global"):
        return False
    empty = rf"{base} (?:is|==) (?:None|NULL)|not {base}|not \({base} (?:is not|!=) (?:None|NULL)\)|not \({base}\)"
    return any(re.search(empty, test) for test in access.context.tests)


def reads_itself(access: Access) -> bool:
    """Whether a write puts back what it read: +=, or a value made from the place."""
    if access.augmented or not access.value:
        return access.augmented
    return is_mentioned(place_of(access), access.value) or (
        access.kind == "item" and _is_fetch(access.base, access.value)
    )


def _is_fetch(base: str, value: str) -> bool:
    """Whether a value comes from base.get(key), also where Cython calls C for that."""
    return f"{base}.get(" in value or re.search(rf"Dict_GetItem\w*\({re.escape(base)},", value) is not None


# ---------------------------------------------------------------------------------------------------------------------
# Words
# ---------------------------------------------------------------------------------------------------------------------


def by_whom(places: Iterable[tuple[str, int]]) -> str:
    """Functions with the lines in which they do something, the first three of them."""
    lines: dict[str, list[int]] = {}
    for name, line in sorted(set(places), key=lambda place: place[1]):
        lines.setdefault(name, []).append(line)
    shown = [
        f"{name} (line{'s' if len(where) > 1 else ''} {', '.join(map(str, where[:3]))})"
        for name, where in lines.items()
    ]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")

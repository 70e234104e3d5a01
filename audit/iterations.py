"""Which memory an iteration of a parallel loop has for itself, and which several iterations may write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from audit.facts import Access, Call, Function
from audit.graph import Project
from audit.rule import Where

_CAST = re.compile(r"<[\w .:*&\[\],]*>(?=[\w(&*\-+~<])")
# Row starts of compressed matrices and the like: ascending by contract, one range for each iteration
_OFFSETS = re.compile(r"ptr|offset|start|begin|bound|displ|first|cum|base|split", re.IGNORECASE)
# Tables that hold every number once, by their name
_REORDERS = re.compile(r"perm|partition|order|argsort|unique|shuffled", re.IGNORECASE)
_THREAD_NUMBERS = re.compile(r"^(?:\w+\.)*(?:threadid|omp_get_thread_num)\(\)$")
_ENDS = re.compile(r"[\[*]|vector|memoryview")
_GROWS = frozenset(
    {"push_back", "emplace_back", "pop_back", "push_front", "pop_front", "emplace_front", "push", "pop", "emplace",
     "insert", "erase", "clear", "resize", "assign", "append"}
)  # fmt: skip
_MOST_CALLS = 4  # of functions that call functions


class SharedWrite(NamedTuple):
    """A write that several iterations may make to one place."""

    where: Where
    place: str
    kind: str  # "element", "attribute", "global", "container", "local", "call"
    augmented: bool
    through: str  # the function called that does it, "" where the loop's own body does


@dataclass
class Body:
    """What is known of the variables in the part of a function that an iteration runs."""

    function: Function
    inside: frozenset[int] | None  # indices of the parallels it consists of; None: the whole function
    owned: set[str]  # variables whose value no other iteration has
    threads: bool = False  # a parallel section: what counts is the thread, not the iteration
    private: dict[str, list[Access]] = field(default_factory=dict)  # variables each thread has its own of -> writes
    parameters: frozenset[str] = frozenset()  # arguments that point to memory of this iteration only

    def is_inside(self, access: Access) -> bool:
        return self.inside is None or access.context.parallel in self.inside


def shared_writes(project: Project, function: Function) -> Iterator[SharedWrite]:
    """Writes in a function's parallel loops and sections to memory that is not the iteration's own."""
    for index, parallel in enumerate(function.parallels):
        if parallel.outer is not None:
            continue
        chain = {index}
        for inner, other in enumerate(function.parallels):
            if other.outer in chain:
                chain.add(inner)
        targets = {function.parallels[member].target for member in chain} - {""}
        owned = {parallel.target} if parallel.target else targets
        body = Body(function, frozenset(chain), set(owned), parallel.section)
        _private_variables(body)
        reductions = {name for member in chain for name, _ in function.parallels[member].reductions}
        yield from _writes(project, body, 0)
        yield from _lost_reductions(function, chain, reductions)


# ---------------------------------------------------------------------------------------------------------------------
# What belongs to an iteration
# ---------------------------------------------------------------------------------------------------------------------


def _private_variables(body: Body) -> None:
    """Variables that are assigned inside are private to a thread; those made from the loop variable are its own."""
    for access in body.function.accesses:
        if access.kind == "local" and access.write and body.is_inside(access):
            body.private.setdefault(access.base, []).append(access)
    for access in body.function.accesses:
        if access.kind == "local" and access.write and _THREAD_NUMBERS.match(_bare(access.value)):
            body.owned.add(access.base)
    changed = True
    while changed:
        changed = False
        for name, writes in body.private.items():
            if name not in body.owned and _are_own_values(body, writes):
                body.owned.add(name)
                changed = True


def _are_own_values(body: Body, writes: list[Access]) -> bool:
    """Whether a private variable gets only values that no other iteration gives it.

    Where one value is the iteration's own and the others are looked up by it, all are taken to be of the same kind: the
    author treats the table as a choice of numbers that are told apart.
    """
    own = [_is_own_value(body, write) for write in writes]
    return any(own) and all(
        is_own or (isinstance(tree := _parsed(write.value), ast.Subscript) and _mentions(body, tree.slice))
        for is_own, write in zip(own, writes, strict=True)
    )


def _is_own_value(body: Body, write: Access) -> bool:
    """Whether a private variable gets a value that no other iteration gives it."""
    tree = _parsed(write.value)
    if tree is None:
        return False
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in ("range", "prange"):
        return _is_own_range(body, tree.args[:2])
    if write.augmented and isinstance(tree, ast.BinOp):
        return _names(tree.left) <= {write.base} and bool(body.private[write.base][1:])
    return _is_own_index(body, tree)


def _is_own_range(body: Body, bounds: list[ast.expr]) -> bool:
    """Whether a loop runs over numbers of this iteration: from(i) to to(i), or from x[i] to x[i + 1]."""
    return bool(bounds) and len(bounds) > 1 and _is_own_offset(body, bounds[0])


def _is_own_offset(body: Body, tree: ast.expr) -> bool:
    """Where a stretch that belongs to an iteration starts."""
    if _is_own_index(body, tree):
        return True
    if isinstance(tree, ast.Subscript):
        return _mentions(body, tree.slice)
    if isinstance(tree, ast.Name):
        writes = body.private.get(tree.id, ())
        values = [_parsed(write.value) for write in writes if write.base not in _names(_parsed(write.value))]
        return bool(values) and all(value is not None and _is_own_offset(body, value) for value in values)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub | ast.Mult):
        return _is_own_offset(body, tree.left) or _is_own_offset(body, tree.right)
    return False


def _mentions(body: Body, tree: ast.AST) -> bool:
    return bool(_names(tree) & body.owned)


def _is_own_index(body: Body, tree: ast.expr) -> bool:
    """Whether two iterations never get the same number."""
    if isinstance(tree, ast.Name):
        return tree.id in body.owned
    if isinstance(tree, ast.Subscript):
        return _REORDERS.search(ast.unparse(tree.value)) is not None and _is_own_index(body, tree.slice)
    if isinstance(tree, ast.UnaryOp):
        return _is_own_index(body, tree.operand)
    if isinstance(tree, ast.IfExp):
        return _is_own_index(body, tree.body) and _is_own_index(body, tree.orelse)
    if isinstance(tree, ast.Call):
        name = ast.unparse(tree.func)
        if _THREAD_NUMBERS.match(f"{name}()"):
            return True
        return any(_is_own_index(body, argument) for argument in tree.args)
    if not isinstance(tree, ast.BinOp):
        return False
    left, right = _is_own_index(body, tree.left), _is_own_index(body, tree.right)
    if isinstance(tree.op, ast.Add | ast.Sub):
        if left != right:
            other = tree.right if left else tree.left
            return not _scatters(body, other)
        if left and right:
            return not (isinstance(tree.op, ast.Sub) and ast.dump(tree.left) == ast.dump(tree.right))
        return _is_row_start(body, tree.left) or _is_row_start(body, tree.right)
    if isinstance(tree.op, ast.Mult):
        other = tree.right if left else tree.left
        return (left or right) and not (isinstance(other, ast.Constant) and other.value == 0)
    if isinstance(tree.op, ast.LShift):
        return left
    if isinstance(tree.op, ast.BitXor | ast.BitOr):
        return (left and isinstance(tree.right, ast.Constant)) and isinstance(tree.op, ast.BitXor)
    return False


def _scatters(body: Body, tree: ast.expr) -> bool:
    """Whether an iteration's summand comes from a table, so that it may undo what the loop variable tells apart."""
    return any(isinstance(node, ast.Subscript) and _mentions(body, node) for node in ast.walk(tree)) or any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv) and _mentions(body, node)
        for node in ast.walk(tree)
    )


def _is_row_start(body: Body, tree: ast.expr) -> bool:
    """offsets[i], or a variable that holds it: what is added to it stays in the row."""
    if isinstance(tree, ast.Subscript):
        return _mentions(body, tree.slice) and _OFFSETS.search(ast.unparse(tree.value)) is not None
    if isinstance(tree, ast.Name):
        writes = body.private.get(tree.id, ())
        values = [_parsed(write.value) for write in writes]
        return bool(values) and all(isinstance(v, ast.Subscript) and _is_row_start(body, v) for v in values)
    return False


def _is_own_place(body: Body, tree: ast.expr | None, depth: int = 0) -> bool:
    """Whether memory belongs to this iteration or thread alone."""
    if tree is None or depth > 8:
        return True  # what cannot be told is not accused
    if isinstance(tree, ast.Subscript):
        indices = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        if any(_is_own_index(body, index) for index in indices if not isinstance(index, ast.Slice)):
            return True
        if any(isinstance(index, ast.Slice) and _is_own_slice(body, index) for index in indices):
            return True
        return _is_own_place(body, tree.value, depth + 1)
    if isinstance(tree, ast.Attribute):
        return _is_own_place(body, tree.value, depth + 1)
    if isinstance(tree, ast.BinOp):
        return _is_own_index(body, tree) or any(
            isinstance(side, ast.Name | ast.Subscript | ast.Attribute) and _is_own_pointer(body, side, depth + 1)
            for side in (tree.left, tree.right)
        )
    if isinstance(tree, ast.Call):
        # A fresh object or buffer, or a row asked for by number: at(i), row(m, i)
        return not tree.args or not all(_is_plain(argument) for argument in tree.args) or _mentions(body, tree)
    if isinstance(tree, ast.IfExp):
        return _is_own_place(body, tree.body, depth + 1) and _is_own_place(body, tree.orelse, depth + 1)
    if isinstance(tree, ast.Name):
        return _is_own_pointer(body, tree, depth + 1)
    return not isinstance(tree, ast.Constant)


def _is_plain(tree: ast.expr) -> bool:
    """A name or an attribute: a call of such may hand back the same memory to all."""
    return isinstance(tree, ast.Name | ast.Attribute)


def _is_own_slice(body: Body, index: ast.Slice) -> bool:
    return index.lower is not None and _is_own_offset(body, index.lower)


def _is_own_pointer(body: Body, tree: ast.expr, depth: int) -> bool:
    """Whether a variable leads to memory of this iteration."""
    if not isinstance(tree, ast.Name):
        return _is_own_place(body, tree, depth)
    if tree.id in body.parameters:
        return True
    writes = body.private.get(tree.id)
    if writes is None:
        return False
    if not _ENDS.search(writes[0].type) and not writes[0].pointer and not writes[0].memoryview:
        return True  # a struct or number: the private copy itself
    for write in writes:
        if write.base in _names(_parsed(write.value)):
            continue  # p += 1, p = p.next: stays where it was
        if write.value and not write.value.startswith(("range(", "prange(")):
            value = _parsed(write.value)
            if isinstance(value, ast.Constant):
                continue
            if not _is_own_place(body, value, depth):
                return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Writes
# ---------------------------------------------------------------------------------------------------------------------


def _writes(project: Project, body: Body, depth: int) -> Iterator[SharedWrite]:
    for access in body.function.accesses:
        if not access.write or not body.is_inside(access) or access.atomic or access.context.guards or access.method:
            continue
        if access.kind == "item" or _runs_once(body, access):
            continue
        if access.kind == "local":
            if access.python and body.inside is not None:
                yield SharedWrite(access.where, access.base, "local", access.augmented, "")
        elif access.kind in ("global", "attribute", "element") and not _is_own_access(body, access):
            yield SharedWrite(access.where, _place(access), access.kind, access.augmented, "")
    for call in body.function.calls:
        if body.inside is not None and call.context.parallel not in body.inside:
            continue
        if call.context.guards or _runs_once(body, call):
            continue
        receiver, _, method = call.name.rpartition(".")
        if call.kind == "extern" and method in _GROWS and receiver:
            if not _is_own_place(body, _parsed(receiver)):
                yield SharedWrite(call.where, receiver, "container", False, "")
        elif depth < _MOST_CALLS:
            yield from _behind(project, body, call, depth)


def _is_own_access(body: Body, access: Access) -> bool:
    if access.kind == "global":
        return False
    return _is_own_place(body, _parsed(_place(access)))


def _place(access: Access) -> str:
    if not access.indices:
        return access.base
    return f"{access.base}[{', '.join(index.text for index in access.indices)}]"


def _runs_once(body: Body, fact: Access | Call) -> bool:
    """Whether a test lets one iteration or thread through: i == 0."""
    outer = 0
    if body.inside is not None:
        outer = len(body.function.parallels[min(body.inside)].context.tests)
    for test in fact.context.tests[outer:]:
        tree = _parsed(test)
        if tree is None:
            continue
        for part in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
            if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq) and len(part.ops) == 1:
                sides = (part.left, part.comparators[0])
                if not all(_mentions(body, side) for side in sides) and any(
                    _is_own_index(body, side) for side in sides
                ):
                    return True
    return False


def _behind(project: Project, body: Body, call: Call, depth: int) -> Iterator[SharedWrite]:
    """What a called function writes through its arguments, through self, or to globals."""
    callee = project.resolve(call) if call.kind == "c" else None
    if callee is None or callee.parallels or callee is body.function:
        return
    parameters = [argument.name for argument in callee.arguments]
    owned: set[str] = set()
    own_memory: set[str] = set()
    if callee.owner and len(parameters) > len(call.arguments):
        receiver = call.name.rpartition(".")[0]
        first = parameters.pop(0)
        if not receiver or _is_own_place(body, _parsed(receiver)):
            own_memory.add(first)
    for text, name in zip(call.arguments, parameters, strict=False):
        tree = _parsed(text)
        if tree is not None and (_is_own_index(body, tree) or _is_row_start(body, tree)):
            owned.add(name)
        if text.startswith("&") and isinstance(tree, ast.Name) and tree.id in body.private:
            own_memory.add(name)  # the address of a private variable
        elif _is_own_place(body, tree):
            own_memory.add(name)
    inner = Body(callee, None, owned, body.threads, {}, frozenset(own_memory))
    _private_variables(inner)
    for write in _writes(project, inner, depth + 1):
        if write.kind != "local" and not _is_of_callee(callee, write):
            yield SharedWrite(call.where, write.place, "call", write.augmented, call.name)
            return


def _is_of_callee(callee: Function, write: SharedWrite) -> bool:
    """Whether the place is a local of the function called: a new one each time."""
    match = re.match(r"\w+", write.place)
    root = match.group() if match else ""
    return root in {name for name, _ in callee.locals} and root not in {argument.name for argument in callee.arguments}


def _lost_reductions(function: Function, chain: set[int], reductions: set[str]) -> Iterator[SharedWrite]:
    """Variables that carry a value from one iteration to the next by other means than += and the like."""
    for member in sorted(chain):
        parallel = function.parallels[member]
        if parallel.section:
            continue
        first: dict[str, Access] = {}
        for access in function.accesses:
            if access.kind == "local" and access.write and access.context.parallel == member:
                first.setdefault(access.base, access)
        outside = len(parallel.context.tests)
        for name, access in first.items():
            if name in reductions or name == parallel.target or access.augmented or access.python or access.memoryview:
                continue
            word = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w(])")
            inside = access.context.tests[outside:]
            if word.search(access.value) or any(word.search(test) for test in inside):
                yield SharedWrite(access.where, name, "reduction", False, "")


# ---------------------------------------------------------------------------------------------------------------------
# Texts of expressions
# ---------------------------------------------------------------------------------------------------------------------


def _bare(text: str) -> str:
    """Without casts and address-of."""
    previous = ""
    while previous != text:
        previous, text = text, _CAST.sub("", text)
    return re.sub(r"(^|[(,\[=+\-* ])&(?=[\w(])", r"\1", text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr | None:
    """The expression as Python reads it, None where it does not."""
    try:
        return ast.parse(_bare(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names(tree: ast.AST | None) -> set[str]:
    return set() if tree is None else {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

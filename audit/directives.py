"""Which compiler directives Cython knows, and the values it takes for them."""

from __future__ import annotations

from typing import Any

from Cython.Compiler import Options

from audit.errors import BadInput, near


def known() -> list[str]:
    """Names of the directives, sorted."""
    return sorted(Options.get_directive_defaults())


def parse(name: str, value: Any) -> dict[str, Any]:
    """A directive as Cython takes it; several where the name is a group such as `warn.all`.

    Raises BadInput for a name that Cython does not know and for a value that it does not take.
    """
    name = name.strip()
    if name not in Options.get_directive_defaults() and not name.endswith(".all"):
        raise BadInput(f"Cython has no directive {name!r}: {near(name, known())}see its documentation for their names.")
    try:
        parsed = Options.parse_directive_list(f"{name}={str(value).strip()}", relaxed_bool=True)
    except (ValueError, AssertionError) as error:
        raise BadInput(
            f"{name}={value} cannot be used: {' '.join(str(error).split()) or 'it is none for a whole module'}."
        ) from None
    if None in parsed.values():
        raise BadInput(f"{name} cannot be given for a whole module; write it where it applies.")
    return parsed

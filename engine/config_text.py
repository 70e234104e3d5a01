"""What people read and write of a config: TOML text, and one sentence for each problem."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from engine.errors import ConfigError, near


def plain(value: Any) -> Any:
    """Tuples as lists, at any depth."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings: what `flatten` was given.

    ConfigError where nothing was: a key has more dots than any setting, or is also a section of others.
    """
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".", 100)
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key!r} is among the settings, and so is {section!r}, which would be its section.")
        place[name] = value
    return nested


def toml(model: type[BaseModel], flat: Mapping[str, Any]) -> str:
    """Dotted keys as TOML text: what stands alone first, then one table a section, meanings beside."""
    lines: list[str] = []
    section = ""
    for key in sorted(flat, key=lambda key: "." in key):  # stable: the order of the settings is kept
        head, _, name = key.rpartition(".")
        if head != section:
            section = head
            lines += ["", f"[{section}]"]
        field = fields(model).get(key)
        comment = f"  # {field.description}" if field is not None and field.description else ""
        lines.append(f"{_key(name)} = {_toml_value(flat[key])}{comment}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
    return name if bare else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML's basic strings escape as JSON's do, and also DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return repr(value)


def fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Dotted key -> declaration of every setting that is not a section."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= fields(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


def problems(model: type[BaseModel], error: ValidationError, not_built: Mapping[str, tuple[str, ...]]) -> list[str]:
    """One sentence for each setting that pydantic refuses: the value, the rule, what to do."""
    return list(dict.fromkeys(_sentences(model, error, not_built)))


def _sentences(model: type[BaseModel], error: ValidationError, not_built: Mapping[str, Any]) -> Iterator[str]:
    known = fields(model)
    sections = {key.partition(".")[0] for key in known if "." in key}
    for problem in error.errors(include_url=False):
        # Behind a setting's name, pydantic names members of unions and positions in lists.
        parts = [str(part) for part in problem["loc"]]
        if not parts:  # of a name that cannot be written as UTF-8
            yield f"the settings have a name that is no text: {problem['msg']}; take it out."
            continue
        key = ".".join(parts[:2]) if parts[0] in sections else parts[0]
        if key in known:
            yield _refusal(key, known[key], problem["input"], not_built.get(key, ()))
        elif key in sections:
            yield f"{key} is {_shown(problem['input'])}, but is a section of settings; write them below [{key}]."
        else:
            section = key.rpartition(".")[0]
            alone = [name for name in known if "." not in name]
            here = [name for name in known if name.startswith(f"{section}.")] if section else [*alone, *sections]
            last = key.rpartition(".")[2]
            hint = near(key, here) or near(last, known) or near(key, known)
            yield f"there is no setting {key!r}; {hint}{_there_are(section, here)}"


def _there_are(section: str, names: list[str]) -> str:
    where = f"[{section}] has" if section else "there are"
    return f"{where}: {', '.join(sorted(name.removeprefix(f'{section}.') if section else name for name in names))}."


def _refusal(key: str, field: FieldInfo, value: Any, not_built: tuple[str, ...]) -> str:
    choices = [str(choice) for choice in _choices(field.annotation)]
    if isinstance(value, str) and value in not_built:
        return f"{key} is {value!r}, which is not built yet; there are: {', '.join(choices)}."
    extra = field.json_schema_extra
    rule = (extra.get("rule") if isinstance(extra, dict) else "") or f"one of {', '.join(map(repr, choices))}"
    hint = near(value, choices) if isinstance(value, str) and choices else ""
    default = f", for example {_toml_value(plain(field.default))} (the default)"
    if field.default is None:
        default = ", or leave it out"
    do = hint or f"set it so{default}"
    return f"{key} is {_shown(value)}, but must be {rule}; {do.strip()}{'' if hint else '.'}"


def _choices(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no whole number of over 4300 digits
        text = "too long to be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."

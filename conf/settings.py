"""The schema as a flat list: dotted key → how its value is read from TOML and from text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import ByteSize, TypeAdapter, ValidationError

from conf.schema import Config


class SettingError(ValueError):
    """The value is not one that the setting may have; the text says what is. Change the value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One key of one section.

    Attributes:
        section, name: where it stands in swarmd.toml and in Config.
        default: its value when nobody sets it.
        adapter: checks a value.

    """

    section: str
    name: str
    default: object
    adapter: TypeAdapter[Any]

    @property
    def key(self) -> str:
        """The dotted key, such as "swarm.name"."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it, such as "SWARMD_SWARM_NAME"."""
        return f"SWARMD_{self.section}_{self.name}".upper()

    @property
    def is_list(self) -> bool:
        """Whether the value is a list (in text: comma separated)."""
        return isinstance(self.default, tuple)

    def from_toml(self, value: object) -> object:
        """Check a value of a TOML file, where types must fit exactly. Raises SettingError."""
        return self._checked(tuple(value) if self.is_list and isinstance(value, list) else value, strict=True)

    def from_text(self, text: str) -> object:
        """Read a value from text: lists are comma separated, booleans true/false, yes/no, 1/0. Raises SettingError."""
        items = tuple(item for part in text.split(",") if (item := part.strip()))
        return self._checked(items if self.is_list else text, strict=False)

    def _checked(self, value: object, *, strict: bool) -> object:
        try:
            return self.adapter.validate_python(value, strict=strict)
        except ValidationError as error:
            raise SettingError(_what_is_allowed(error)) from error


@cache
def settings() -> Mapping[str, Setting]:
    """Return every setting by its dotted key, in the order of the schema."""
    found: dict[str, Setting] = {}
    defaults = Config()
    for section in sections():
        values = getattr(defaults, section)
        hints = get_type_hints(type(values), include_extras=True)
        for field in dataclasses.fields(values):
            setting = Setting(
                section, field.name, getattr(values, field.name), TypeAdapter(hints[field.name])
            )
            found[setting.key] = setting
    return MappingProxyType(found)


def sections() -> tuple[str, ...]:
    """Return the names of all sections, in the order of the schema."""
    return tuple(field.name for field in dataclasses.fields(Config))


def value_text(value: object) -> str:
    """Return a setting's value as swarmd.toml would say it, without quotation marks."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, ByteSize):
        return _size_text(value)
    return str(value)


def _size_text(size: ByteSize) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if (amount := size.to(unit)).is_integer():
            return f"{int(amount)}{unit}"
    return f"{int(size)}B"


def _what_is_allowed(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    text = first["msg"].removeprefix("Value error, ")
    for wording in ("Input", "Value", "String", "Tuple"):
        text = text.replace(f"{wording} should", "must", 1)
    return text

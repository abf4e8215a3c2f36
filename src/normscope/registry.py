"""One table of names for everything a user can ask for by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Generic, TypeVar

from normscope.errors import InputError

T = TypeVar("T")


def near_match(name: str, known: list[str]) -> str:
    """The sentence that helps after an unknown ``name``: near matches, then all names."""
    close = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    hint = f"Did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
    return f"{hint}Known names: {', '.join(sorted(known))}."


def check_choice(what: str, value: object, known: Collection[str]) -> None:
    """An error that names near matches if ``value`` is none of ``known``."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"Unknown {what} {value!r}. {near_match(str(value), [*known])}")


class Registry(Generic[T]):
    """Names of one kind of thing; an unknown name is an error that suggests the near match."""

    def __init__(self, kind: str, entries: Mapping[str, T] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = dict(entries or {})

    def add(self, name: str, entry: T, *, replace: bool = False) -> T:
        """Register ``entry`` under ``name``; an existing name is kept unless ``replace``."""
        if name in self._entries and not replace:
            raise InputError(
                f"The {self.kind} name {name!r} is taken. Choose another, or pass replace=True."
            )
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise InputError(
                f"Unknown {self.kind} {name!r}. {near_match(str(name), list(self._entries))}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

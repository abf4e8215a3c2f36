"""What every command does with bad input, and with every key of a settings file."""

from __future__ import annotations

__all__ = ["assert_keys_are_checked", "assert_one_line"]


def assert_one_line(message: str, parts: list[str]) -> None:
    """An error is one line, and says these things."""
    assert message.count("\n") == 1
    for part in parts:
        assert part in message


def assert_keys_are_checked(options, path, run) -> None:
    """A value of the wrong kind is refused, and its key named.

    Args:
        options: of the command.
        path: of a settings file to write.
        run: runs the command with that file, and gives the error.
    """
    for option in options:
        path.write_text(f"{option.name} = [[]]")
        assert f"key '{option.name}'" in run(path)

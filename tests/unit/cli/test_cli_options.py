"""Options mean the same from a flag and from a TOML file."""

import pytest

from normscope.cli import options as opt
from normscope.cli.options import Option, command_parser
from normscope.cli.parser import UsageError
from normscope.errors import InputError

OPTIONS = (
    Option("thing", opt.text, "what", "THING", positional=True),
    Option("rate", opt.number, "a number", "R", 0.5),
    Option("sizes", opt.numbers, "numbers", "N", "1:3:3"),
    Option("kinds", opt.names, "names", "NAMES", "a,b"),
    Option("count", opt.whole, "whole", "N"),
    Option("total", opt.samples, "samples", "T", "inf"),
    Option("quick", opt.switch, "on or off"),
)


@pytest.fixture
def parser():
    return command_parser("try", OPTIONS, description="", epilog="")


@pytest.mark.parametrize(
    ("convert", "value", "expected"),
    [
        (opt.number, "1e-3", 0.001),
        (opt.number, 2, 2.0),
        (opt.whole, "7", 7),
        (opt.whole, 7, 7),
        (opt.samples, "inf", None),
        (opt.samples, float("inf"), None),
        (opt.samples, "400", 400),
        (opt.text, "relu", "relu"),
        (opt.switch, True, True),
        (opt.names, "corrected, frozen", ("corrected", "frozen")),
        (opt.names, ["corrected"], ("corrected",)),
        (opt.numbers, "0.1,0.5,1", (0.1, 0.5, 1.0)),
        (opt.numbers, "0:1:5", (0.0, 0.25, 0.5, 0.75, 1.0)),
        (opt.numbers, "2:1:2", (2.0, 1.0)),
        (opt.numbers, [1, 2.5], (1.0, 2.5)),
        (opt.numbers, 3, (3.0,)),
    ],
)
def test_values(convert, value, expected):
    found = convert(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("convert", "value", "part"),
    [
        (opt.number, "two", "a number. Got 'two'"),
        (opt.number, True, "a number. Got True"),
        (opt.number, [1], "a number"),
        (opt.whole, "1.5", "a whole number. Got '1.5'"),
        (opt.whole, True, "a whole number"),
        (opt.samples, "many", "a whole number. Got 'many'"),
        (opt.text, 3, "a word. Got 3"),
        (opt.text, "", "a word"),
        (opt.switch, "yes", "true or false. Got 'yes'"),
        (opt.names, "", "a word"),
        (opt.names, 3, "Expected one name or several"),
        (opt.names, [3], "a word. Got 3"),
        (opt.numbers, "1,,2", "a number. Got ''"),
        (opt.numbers, [], "at least one number"),
        (opt.numbers, "1:2", "start:stop:count"),
        (opt.numbers, "1:2:1", "at least two points. Got 1"),
        (opt.numbers, "1:2:x", "a whole number"),
    ],
)
def test_bad_values_say_what_was_found(convert, value, part):
    with pytest.raises(InputError) as caught:
        convert(value)
    assert part in str(caught.value)


def test_defaults_are_converted():
    assert opt.defaults(OPTIONS) == {
        "thing": None,
        "rate": 0.5,
        "sizes": (1.0, 2.0, 3.0),
        "kinds": ("a", "b"),
        "count": None,
        "total": None,
        "quick": None,
    }


def test_only_what_was_given_is_returned(parser):
    assert parser.parse([]) == {}
    assert parser.parse(["x", "--rate", "2", "--quick"]) == {
        "thing": "x",
        "rate": 2.0,
        "quick": True,
    }


def test_a_bad_flag_value_keeps_our_message(parser):
    with pytest.raises(UsageError, match=r"--rate: Expected a number\. Got 'fast'\. See: .*--help"):
        parser.parse(["--rate", "fast"])


FILE = (
    'thing = "x"\nrate = 1\nsizes = [1, 2]\nkinds = "b"\ncount = 3\ntotal = "inf"\nquick = true\n'
)
FROM_FILE = {"thing": "x", "rate": 1.0, "sizes": (1.0, 2.0), "kinds": ("b",), "count": 3,
             "total": None, "quick": True}  # fmt: skip


@pytest.mark.parametrize("head", ["", "[try]\n"])
def test_a_file_gives_the_same_values_and_flags_win(parser, tmp_path, head):
    path = tmp_path / "setup.toml"
    path.write_text(head + FILE)
    assert parser.parse(["--config", str(path)]) == FROM_FILE
    assert parser.parse(["--config", str(path), "--rate", "9"]) == FROM_FILE | {"rate": 9.0}


def test_one_file_for_several_commands(parser, tmp_path):
    """The top level is for all, a table for its command; other commands' tables are theirs."""
    path = tmp_path / "setup.toml"
    path.write_text('thing = "x"\nrate = 1\n[max-lr]\ntol = 0.1\n[try]\nrate = 2\n')
    assert parser.parse(["--config", str(path)]) == {"thing": "x", "rate": 2.0}
    assert parser.parse(["--config", str(path), "--rate", "3"])["rate"] == 3.0
    path.write_text('thing = "x"\nlr = 0.1\n')  # of other commands
    assert parser.parse(["--config", str(path)]) == {"thing": "x"}
    path.write_text("[try]\nlr = 0.1\n")
    with pytest.raises(InputError, match="Unknown key 'lr'"):
        parser.parse(["--config", str(path)])
    path.write_text("[tri]\nrate = 2\n")
    with pytest.raises(InputError, match="Unknown key 'tri'"):
        parser.parse(["--config", str(path)])
    path.write_text("try = 2\n")
    with pytest.raises(InputError, match="options are a table"):
        parser.parse(["--config", str(path)])


def test_file_keys_may_have_dashes(tmp_path):
    dashed = command_parser(
        "try", (Option("two_words", opt.text, "x", "X"),), description="", epilog=""
    )
    path = tmp_path / "setup.toml"
    path.write_text('two-words = "y"')
    assert dashed.parse(["--config", str(path)]) == {"two_words": "y"}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("rat = 1", "Unknown key 'rat' in {path}. Did you mean 'rate'"),
        ("rate = 'fast'", "{path}, key 'rate': Expected a number. Got 'fast'."),
        ("rate = ", "{path} is not TOML"),
        ("sizes = [[1]]", "key 'sizes': Expected a number"),
    ],
)
def test_a_bad_file_is_named(parser, tmp_path, content, part):
    path = tmp_path / "setup.toml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        parser.parse(["--config", str(path)])
    assert part.format(path=path) in str(caught.value)


def test_a_missing_or_binary_file_is_named(parser, tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        parser.parse(["--config", str(tmp_path / "none.toml")])
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not TOML"):
        parser.parse(["--config", str(tmp_path / "bad.toml")])

"""What users read is in plain English: words that were replaced do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "normscope"

# Each odd phrase, and what to write in its place.
REPLACED = {
    r"trainings": "training runs",
    r"grave(?:st|r)?": "severe",
    r"(?:bears?|borne|bore)": "is stable at",
    r"mend(?:ed|ing)?": "fix, repair",
    r"unharmed": "normally",
    r"learns? no more|no longer learns?": "stops learning above",
    r"came lowest": "reached the lowest loss",
    r"comes? to a loss": "reaches a loss",
    r"line at(?! layer)": "threshold",
    r"for want of": "no, too little",
    r"leaves? all bounds": "blows up",
    r"of everything random": "for all random numbers",
    r"said to be": "listed",
    r"sets? them free": "lets them move",
    r"tames?": "normalizes",
    r"at hand": "given, available",
    r"or mean to": "or plan to",
    r"made for": "expects",
    r"Nothing to mend": "No issues found",
    r"samples a batch": "batches of N samples",
    r"as it is it": "the unchanged network",
}
ODD = re.compile("|".join(rf"\b(?:{phrase})(?!\w)" for phrase in REPLACED), re.IGNORECASE)


def texts(path):
    """The strings of a module, docstrings included; of any other file its lines."""
    if path.suffix != ".py":
        return list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    strings = (n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return [(n.lineno, n.value) for n in strings]


FILES = sorted(
    [
        *SOURCE.rglob("*.py"),
        *SOURCE.rglob("*.jinja"),
        *SOURCE.rglob("*.toml"),
        *ROOT.glob("*.md"),
        *ROOT.glob("examples/*"),
    ]
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_odd_phrase_has_come_back(path):
    found = [(n, odd.group()) for n, text in texts(path) for odd in ODD.finditer(text)]
    assert not found, "\n".join(
        f"{path.name}:{n}: {word!r}; write {better(word)!r}" for n, word in found
    )


def better(word):
    return next(b for p, b in REPLACED.items() if re.fullmatch(p, word, re.IGNORECASE))


def documented(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            yield node, ast.get_docstring(node)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.name)
def test_docstrings_are_phrases_that_can_stand_alone(path):
    for node, text in documented(path):
        assert len(text.split()) > 2, f"{path.name}:{node.lineno} {node.name}: {text!r}"
        # In an editor an argument is shown alone: "seed: of the weights" says nothing there.
        cut = re.findall(r"(?m)^ *\*{0,2}\w+: (?:of|in a) .*$", text)
        assert not cut, f"{path.name}:{node.lineno} {node.name}: {cut}"


def test_the_search_finds_what_it_is_for():
    sentence = "Copies bear it, went unharmed; line at 3; Nothing to mend"
    assert len(ODD.findall(sentence)) == 4
    assert not ODD.findall("a straight line at layer 0, training runs, the amended gravel")

"""Saved examinations are read back, and what is none is refused with the reason."""

import json

import pytest

from examinations import complete, hostile, normalized
from normscope.errors import InputError
from normscope.results import read_examination


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return hostile().save(tmp_path_factory.mktemp("run") / "a.json")


def test_from_a_file_and_from_its_folder(saved):
    assert read_examination(saved) == hostile()
    (saved.parent / "settings.json").write_text('{"a": 1}')
    assert read_examination(str(saved.parent)) == hostile()


def refusal(path):
    with pytest.raises(InputError) as caught:
        read_examination(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_examination(tmp_path):
    assert "There is no file or folder" in refusal(tmp_path / "no.json")
    assert "holds no saved examination" in refusal(tmp_path)
    (tmp_path / "a.html").write_text("<p>")
    assert "is a page; the data it was made from is needed" in refusal(tmp_path / "a.html")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    assert "is no text file" in refusal(tmp_path / "b.json")
    (tmp_path / "c.json").write_text('{"type": "Examination", ')
    assert "no JSON" in refusal(tmp_path / "c.json")
    (tmp_path / "d.json").write_text(hostile()["sharpness"].to_json())
    assert "Expected the data of an Examination" in refusal(tmp_path / "d.json")
    assert "Spectrum" in refusal(tmp_path / "d.json")


def test_a_file_that_was_changed_by_hand(saved, tmp_path):
    text = saved.read_text()
    for field in ("measurements", "findings", "plan", "convention"):
        data = json.loads(text)
        data[field] = 5
        broken = tmp_path / f"{field}.json"
        broken.write_text(json.dumps(data))
        with pytest.raises(InputError, match="cannot be read"):
            read_examination(broken)


def test_two_examinations_in_a_folder(saved, tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(saved.read_text())
    assert "holds 2 examinations: a.json, b.json. Name one." in refusal(tmp_path)


def test_a_severity_without_a_rank(tmp_path):
    data = hostile().to_dict()
    data["findings"][0]["severity"] = "awful"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    assert "one of ok, note, unjudged, warning, problem. Got 'awful'" in refusal(path)


def test_another_version_is_named(tmp_path):
    data = hostile().to_dict()
    del data["findings"]
    data["version"] = "99.1"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    message = refusal(path)
    assert "lacks findings" in message
    assert "written by normscope 99.1" in message


def test_an_earlier_version_called_the_settings_config(tmp_path):
    data = hostile().to_dict()
    data["config"] = data.pop("convention")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    assert "was written by an earlier version of normscope" in refusal(path)
    path.write_text(json.dumps(data)[:-9])
    assert "no JSON" in refusal(path)


def _put(data, path, value):
    """The same data with one value changed."""
    made = json.loads(json.dumps(data))
    *inner, last = path
    place = made
    for key in inner:
        place = place[key]
    place[last] = value
    return made


@pytest.mark.parametrize(("path", "value"), [
    (("findings", 0), None),
    (("numbers", 0, "value"), []),
    (("numbers", 1, "quantity"), -1),
    (("measurements", "activations", "signals"), True),
    (("measurements", "activations", "signals", 2, "maximum"), "0"),
    (("measurements", "gradients", "layers"), 1),
    (("measurements", "layout", "norms"), "x"),
    (("measurements", "conditioning", "layers", 1), ""),
    (("findings", 0, "evidence", 0), 0),
    (("plan", "steps", 0, "estimate"), "long"),
    (("measurements", "sharpness", "values"), {"$array": [1e308], "shape": [1], "dtype": "int64"}),
    (("measurements", "sharpness", "values"), {"$array": [1], "shape": [1], "dtype": "object"}),
    (("measurements", "sharpness", "values"), {"$array": [1], "shape": [7], "dtype": "float64"}),
    (("measurements", "sharpness", "values"), {"$array": 3, "shape": [1], "dtype": "float64"}),
    (("measurements", "sharpness"), {"$float": []}),
])  # fmt: skip
def test_one_value_of_a_wrong_kind(path, value, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(_put(hostile().to_dict(), path, value)))
    assert "cannot be read" in refusal(file)


@pytest.mark.parametrize("made", [normalized, complete], ids=lambda f: f.__name__)
def test_what_was_saved_is_of_its_kind(made, tmp_path):
    assert read_examination(made().save(tmp_path / "a.json")) == made()

"""The catalogue itself: every claim can be judged, every experiment runs at scale smoke."""

import json
import re
from collections import Counter

import pytest

from normscope.errors import InputError
from normscope.experiments import claim as claim_module
from normscope.experiments import experiment as experiment_module
from normscope.experiments.claim import claims, read_claims
from normscope.experiments.experiment import (
    SCALES,
    Experiment,
    Scale,
    declared_experiment,
    experiments,
)
from normscope.experiments.ledger import rows_of, verify
from normscope.experiments.reproduce import (
    chosen,
    claims_of,
    judged,
    rounded,
    run,
    verdict_without_run,
)
from normscope.record import plain_data, plain_values
from normscope.results.ledger import PAPERS, VERDICTS, ledger_folder, shipped_ledger
from normscope.results.rules import BLOCKED, NOT_RUN
from normscope.sweeps.plan import grid

IDS = list(experiments())


def behind(claim):
    return experiments().get(claim.experiment)


def is_blocked(claim):
    return verdict_without_run(claim, experiments()).verdict == BLOCKED


# claims


def test_every_claim_has_its_experiment_and_every_experiment_a_claim():
    for one in claims().values():
        assert one.experiment in experiments() or (not one.experiment and one.rule == "reading")
        assert one.experiment == "" or one.experiment.startswith(one.paper + "/")
    assert {one.experiment for one in claims().values()} - {""} == set(experiments())
    assert {one.paper for one in claims().values()} == set(PAPERS)


def test_ids_are_unique_and_can_be_typed():
    for key in [*claims(), *experiments()]:
        assert re.fullmatch(r"[a-z0-9]+/[\w.+'-]+", key), key
    both = set(claims()) & set(experiments())
    for key in both:  # a name that is both means the experiment: the claim must be in it
        assert claims()[key].experiment == key


@pytest.mark.parametrize("key", list(claims()))
def test_a_claim_is_whole(key):
    one = claims()[key]
    for text in (one.statement, one.limits, one.wrong, one.stand_in):
        assert text == text.strip()
    for text in (one.statement, one.limits, one.wrong):
        assert not text or text.endswith((".", ")", "?")), text
    if one.rule == "reading":
        assert one.parameters["verdict"] in VERDICTS
        assert one.parameters["reason"]
    if is_blocked(one):
        assert one.stand_in, "blocked by scale: which row was run in its place, or why none can be"
        assert behind(one).hours
        if re.fullmatch(r"\S+/\S+", one.stand_in):
            assert one.stand_in in claims()
            assert not is_blocked(claims()[one.stand_in])


def test_a_correction_is_ours_and_stands_beside_what_was_printed():
    for key, one in claims().items():
        if key.endswith("-corrected"):
            assert one.kind != "paper", key
            assert key.removesuffix("-corrected") in claims(), key
        if one.group == "misprint" and one.kind == "paper":
            assert one.wrong, f"{key}: what is the slip of print?"


@pytest.mark.parametrize("paper", PAPERS)
def test_the_file_of_a_paper_lists_its_claims(paper):
    assert [one.id for one in read_claims(paper)] == [k for k in claims() if k.startswith(paper)]


ROW = {"id": "wei2019/x", "place": "(1)", "statement": "It holds.", "rule": "count"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"statment": "x"}, "wei2019/x of wei2019: unknown key 'statment'"),
        ({"statement": ""}, "wei2019/x of wei2019 lacks 'statement'"),
        ({"id": "luo2019/x"}, "luo2019/x stands in the file of wei2019"),
        ({"rule": "cont"}, "Did you mean 'count'"),
        ({"rule": {"name": "count", "at_most": 1}}, "has no parameter 'at_most'"),
        ({"kind": "own"}, "kind of wei2019/x"),
        ({"group": "figures"}, "Did you mean 'figure'"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused_by_name(change, words):
    if not words:
        assert claim_module._claim("wei2019", ROW | change).rule == "count"
        return
    with pytest.raises(InputError, match=re.escape(words)):
        claim_module._claim("wei2019", ROW | change)


# experiments

# whose paper scale has no settings yet; the list may get shorter, never longer
WITHOUT_PAPER_SCALE = {
    "wei2019/controls", "wei2019/fig2a", "wei2019/fig2b", "wei2019/fig2c", "wei2019/training",
    "huang2020/frozen", "huang2020/last-bn", "bjorck2018/ceilings", "bjorck2018/diverging",
    "bjorck2018/sgd-noise", "bjorck2018/trained", "luo2019/deep", "luo2019/small-batches",
}  # fmt: skip


@pytest.mark.parametrize("key", IDS)
def test_an_experiment_declares_its_scales(key):
    one = experiments()[key]
    assert "smoke" in one.scales
    assert set(one.scales) <= set(SCALES)
    assert not one.scales["smoke"].data, "a smoke run needs no data set"
    assert not json.dumps(grid_of(one, "smoke")).count("mnist"), "nor does a trial of it"
    assert one.own_scale or "paper" in one.scales or key in WITHOUT_PAPER_SCALE
    assert "desk" in one.scales or one.hours
    for scale, at in one.scales.items():
        assert at.seconds > 0
        plan = one.plan(scale)
        assert len(set(plan.keys)) == len(plan.keys) > 0
    assert one.title
    assert not one.title.endswith(".")


def grid_of(one, scale):
    return [plain_data(row) for row in grid(one.at(scale).settings, one.at(scale).seeds)]


def test_the_smoke_runs_of_each_paper_are_short():
    costs = Counter()
    for key, one in experiments().items():
        costs[key.partition("/")[0]] += one.scales["smoke"].seconds
    assert all(cost < 60 for cost in costs.values()), costs  # CPU-seconds


def test_an_unknown_scale_and_the_papers_own():
    own = Experiment("One", len, {"desk": Scale({"a": 1})}, own_scale=True, id="wei2019/one")
    assert own.at("paper") is own.scales["desk"]
    with pytest.raises(InputError, match="Did you mean 'desk'"):
        own.at("dessk")


def test_chosen_by_paper_experiment_and_claim():
    first = IDS[0]
    paper = first.partition("/")[0]
    of_paper = [one.id for one in chosen([paper])]
    assert of_paper == [key for key in IDS if key.startswith(paper + "/")]
    claim = claims_of(first)[0].id
    assert [one.id for one in chosen([claim, first])] == [first]
    with pytest.raises(InputError, match=f"Did you mean .*{paper}"):
        chosen([paper + "x"])


MODULE = {"__name__": "one", "trial": len, "RATES": (0.1, 1.0), "NET": "mlp:8-4"}
GIVEN = {"title": "One", "all": {"norm": ["@none", "batch"]}, "smoke": {"seconds": 1, "seeds": 1}}


def test_the_file_of_a_paper_declares_an_experiment():
    desk = {"seconds": 5, "needs": ["mnist"], "net": "@NET", "grids": [
        {"lr": "@RATES", "seeds": 2}, {"lr": 3.0, "seeds": [7]}]}  # fmt: skip
    one = declared_experiment("luo2019/one", MODULE, GIVEN | {"desk": desk, "paper": "desk"})
    assert (one.id, one.title, one.own_scale) == ("luo2019/one", "One", True)
    assert (one.version, one.hours, one.observe) == (1, None, Experiment.observe)
    assert one.at("smoke").settings == [{"norm": None, "seed": 0}, {"norm": "batch", "seed": 0}]
    at = one.at("paper")
    assert (at.seconds, at.data, at.seeds) == (5, ("mnist",), None)
    first = {"norm": None, "net": "mlp:8-4", "lr": 0.1, "seed": 0}
    assert at.settings[:2] == [first, first | {"seed": 1}]
    assert at.settings[-1] == {"norm": "batch", "net": "mlp:8-4", "lr": 3.0, "seed": 7}
    assert len(at.settings) == 10
    more = {"version": 2, "hours": 5.0, "panels": {"title": "Fig. 1"}, "paper": {"seconds": 9}}
    module = MODULE | {"observe": dict, "panels": lambda table, title: [title]}
    two = declared_experiment("luo2019/two", module, GIVEN | more)
    assert (two.own_scale, list(two.scales)) == (False, ["smoke", "paper"])
    assert (two.observe, two.version, two.hours, two.panels(None)) == (dict, 2, 5.0, ["Fig. 1"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"titel": "x"}, "Unknown key of luo2019/one 'titel'. Did you mean 'title'"),
        ({"title": None}, "luo2019/one lacks 'title'"),
        (
            {"smoke": {"seconds": 1, "lr": "@RATE"}},
            "Unknown constant of one 'RATE'. Known names: NET, RATES",
        ),
        ({"smoke": {"seeds": 1}}, "luo2019/one: its scale 'smoke' lacks 'seconds'"),
    ],
)
def test_an_experiment_that_cannot_be_run_is_refused_by_name(change, words):
    given = {k: v for k, v in (GIVEN | change).items() if v is not None}
    with pytest.raises(InputError, match=re.escape(words)):
        declared_experiment("luo2019/one", MODULE, given)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({}, "wei2019 has no experiment for its module 'claim31'"),
        ({"fig1x": GIVEN}, "Unknown module of wei2019/fig1x 'fig1x'. Did you mean 'fig1'"),
    ],
)
def test_modules_and_declarations_belong_together(declared, words, monkeypatch):
    known = experiment_module.paper_file("wei2019")["experiment"] if declared else {}
    made = lambda paper: {"experiment": known | declared}  # noqa: E731
    monkeypatch.setattr(experiment_module, "paper_file", made)
    with pytest.raises(InputError, match=re.escape(words)):
        experiment_module.experiments.__wrapped__()


def test_the_shipped_ledger_is_what_the_code_says():
    """A paper whose ledger is not there yet has nothing to verify; one that is there is whole."""
    ledger = shipped_ledger()
    there = {paper for paper in PAPERS if (ledger_folder() / paper / "ledger.json").is_file()}
    assert set(ledger.papers) == there
    absent = tuple(f"{paper}/" for paper in PAPERS if paper not in there)
    assert [line for line in verify(ledger) if not line.startswith(absent)] == []
    assert not [row.id for row in ledger if row.scale == "smoke"]


# everything, at scale smoke

TIMED = {"luo2019/small-batches"}  # they measure CPU time


@pytest.mark.slow
@pytest.mark.parametrize("key", IDS)
def test_smoke(key, tmp_path, monkeypatch):
    """Without any data set: every claim is judged, charts are drawn, trials repeat themselves."""
    import torch

    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "empty"))
    torch.set_default_dtype(torch.float32)
    one = experiments()[key]
    found = run(one, "smoke", tmp_path, executor="serial")
    assert found.failures == ()
    assert set(found.judgements) == {claim.id for claim in claims_of(key)}
    for name, judgement in found.judgements.items():
        assert judgement.verdict in set(VERDICTS) - {BLOCKED, NOT_RUN}, name
        assert judgement.reason, name
    stored = json.loads(json.dumps(plain_data(found.observations), allow_nan=False))
    back = plain_values(stored)
    assert plain_data(back) == stored
    for claim in claims_of(key):  # the same verdict from what the ledger keeps
        assert judged(claim, back).verdict == found.judgements[claim.id].verdict
    for row in rows_of(found):
        json.dumps(row.to_json(), allow_nan=False)
    for panel in found.panels:
        assert panel.chart().to_dict()["layer"]
        assert panel.x
        assert panel.y
        assert type(panel).from_json(panel.to_json()) == panel
    settings = min(one.plan("smoke").rows, key=lambda row: json.dumps(plain_data(row)))
    first, second = (plain_data(rounded(one.trial(**settings))) for _ in range(2))
    assert first == second or key in TIMED

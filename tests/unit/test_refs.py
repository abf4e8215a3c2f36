from normscope import refs
from normscope.refs import KARAKIDA2019, WEI2019, Equation, equation, equations_of


def test_equations_are_attached_in_reading_order():
    @equation(WEI2019, "Eq. (7)")
    @equation(KARAKIDA2019, "Eq. (27)")
    def rate(x):
        return 2 / x

    assert equations_of(rate) == (Equation(WEI2019, "Eq. (7)"), Equation(KARAKIDA2019, "Eq. (27)"))
    assert rate(4) == 0.5
    assert str(equations_of(rate)[0]) == "wei2019 Eq. (7)"


def test_functions_without_equations():
    assert equations_of(len) == ()


def test_references_read_as_citations():
    papers = [x for x in vars(refs).values() if isinstance(x, refs.Reference)]
    assert len({p.key for p in papers}) == len(papers)
    for paper in papers:
        assert str(paper).startswith(paper.authors)
        assert f"({paper.year})" in str(paper)
        assert paper.title in str(paper)

"""float64, fixed seeds and warnings as errors for every test (markers: pyproject.toml)."""

import pytest


@pytest.fixture(autouse=True)
def _float64_and_seed(request):
    """Tests compute in float64 unless they say otherwise, and never depend on their order."""
    if "torch" not in __import__("sys").modules:
        yield
        return
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)

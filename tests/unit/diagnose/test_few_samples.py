"""Too few samples: no verdict on what they cannot tell, and a word about it."""

import pytest
import torch
from torch import nn

from normscope.diagnose import examine, findings_of

PER_SAMPLE = {"dead-units", "favoured-class", "input-independent-gradients"}


def net():
    """Half of its units are dead, and one class is favoured."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
    model.append(nn.Linear(24, 4))
    with torch.no_grad():
        model[2].bias[:12] = -100
        model[4].bias[0] = 30
    return model


@pytest.mark.parametrize(
    ("samples", "batches", "judged"), [(1, 1, 0), (31, 1, 0), (1, 20, 0), (32, 1, 1), (16, 2, 1)]
)
def test_a_handful_of_samples_gives_no_verdict_on_units(samples, batches, judged):
    """Of one sample half of all rectified units are zero, and one class is always predicted."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batches, samples, 12, generator=draw)
    data = [(part, torch.arange(samples) % 4) for part in x]
    found = examine(net(), data, preset="fast" if batches == 1 else "standard")
    severe = {finding.rule for finding in found.above("note")}
    assert PER_SAMPLE & {f.rule for f in found.findings} == (PER_SAMPLE if judged else set())
    assert ({"dead-units", "favoured-class"} <= severe) == bool(judged)
    seen = found["activations"].num_samples
    said = [note for note in found.notes if "Not judged (needs" in note]
    assert bool(said) is not bool(judged)
    assert judged or f"got {seen}" in said[0]
    by_rules = tuple(f for f in found.findings if f.severity != "unjudged")
    assert findings_of(found.measurements, found.convention) == by_rules
    assert bool(found.unjudged) == (not by_rules)

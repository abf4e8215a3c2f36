"""A fresh set: healthy and broken set-ups made by someone who had not read the rules.

The author trains networks, and had read how findings are counted and the names of the older
set-ups, but neither the rules of ``examine`` nor what it says. The networks are those that people
write for small tasks, and the defects are those that people report: one option of a healthy
set-up's function breaks it. The sentence and the words of every defect were written before any tool
was run on any of them; they are what a practitioner would accept as its name. Afterwards every
set-up was trained at two seeds: healthy ones that trained badly, and defects that did no harm, were
changed or left out. The author never ran ``examine`` on them.

All data are made up or come with scikit-learn, so that nothing has to be downloaded.
"""

from benchmarks.findings.fresh import images, sequences, vectors

__all__ = ["SETUPS"]

SETUPS = [*vectors.SETUPS, *images.SETUPS, *sequences.SETUPS]

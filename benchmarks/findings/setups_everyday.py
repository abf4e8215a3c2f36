"""An everyday set: networks and mistakes that people post about, by someone who had not read the
rules of ``examine``, its documentation or what it says.

Every broken set-up is a healthy one's function with one option. The sentence and the words of every
defect were written before any tool was run. Afterwards every set-up was trained at two seeds:
healthy ones that trained badly, and defects that did no harm, were changed or left out. All data
are made up or come with scikit-learn.
"""

from benchmarks.findings.everyday import classifiers, others, sequences

__all__ = ["SETUPS"]

SETUPS = [*classifiers.SETUPS, *others.SETUPS, *sequences.SETUPS]

"""``make bench``, or ``python -m benchmarks --help``; nothing in normscope needs this package."""

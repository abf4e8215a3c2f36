"""Frozen records: every answer of normscope, numpy and plain numbers only."""

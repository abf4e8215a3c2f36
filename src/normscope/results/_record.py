from normscope.record import Record

__all__ = ["Record"]

"""Results as Altair charts, and charts as files. Needs the ``report`` extra."""

from normscope.report.charts import CHARTS, chart
from normscope.report.files import FORMATS, check_path, save

__all__ = ["CHARTS", "FORMATS", "chart", "check_path", "save"]

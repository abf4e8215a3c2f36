"""Results as Altair charts, charts as files, examinations as pages. Needs the ``report`` extra."""

from normscope.report.charts import CHARTS, chart
from normscope.report.difference import difference_page, save_difference
from normscope.report.files import FORMATS, check_path, save
from normscope.report.page import page, page_fragment, save_page

__all__ = [
    "CHARTS",
    "FORMATS",
    "chart",
    "check_path",
    "difference_page",
    "page",
    "page_fragment",
    "save",
    "save_difference",
    "save_page",
]

"""Results as Altair charts, charts as files, examinations as pages. Needs the ``report`` extra."""

from normscope.report.charts import CHARTS as CHARTS
from normscope.report.charts import chart as chart
from normscope.report.difference import difference_page as difference_page
from normscope.report.difference import save_difference as save_difference
from normscope.report.files import FORMATS as FORMATS
from normscope.report.files import check_path as check_path
from normscope.report.files import save as save
from normscope.report.page import page as page
from normscope.report.page import page_fragment as page_fragment
from normscope.report.page import save_page as save_page
from normscope.report.papers import paper_page as paper_page
from normscope.report.papers import papers_page as papers_page
from normscope.report.papers import save_papers as save_papers

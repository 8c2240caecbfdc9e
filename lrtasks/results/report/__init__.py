"""The report: one self-contained HTML page made from run records."""

from lrtasks.results.report.content import Report, make_report
from lrtasks.results.report.page import render_page

__all__ = ["Report", "make_report", "render_page"]

"""The report: one self-contained HTML page made from run records."""

from lrtasks.results.report.arrange import make_report
from lrtasks.results.report.content import Report
from lrtasks.results.report.heatmap import heat_map_svg
from lrtasks.results.report.page import render_page
from lrtasks.results.report.sources import Sources, read_sources

__all__ = ["Report", "Sources", "heat_map_svg", "make_report", "read_sources", "render_page"]

"""Run records and their evaluation: a data frame of all runs, tables, comparisons, figures and the report."""

from lrtasks.record import RunRecord, read_record, read_records
from lrtasks.results.frame import frame

__all__ = ["RunRecord", "frame", "read_record", "read_records"]

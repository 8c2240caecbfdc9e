"""Run records, and what is made of them: one data frame, tables, comparisons, figures, the report."""

from lrtasks.record import RunRecord, read_record, read_records
from lrtasks.results.frame import frame

__all__ = ["RunRecord", "frame", "read_record", "read_records"]

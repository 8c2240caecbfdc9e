"""Run records, and what is made of them: tables beside the papers' figures."""

from lrtasks.record import RunRecord, read_record, read_records

__all__ = ["RunRecord", "read_record", "read_records"]

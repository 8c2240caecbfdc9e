"""Trackers: the course of a run for JSONL readers, TensorBoard and Weights & Biases. None is required."""

from lrtasks.evaluation.trackers.tracking import Tracking, track_finished, tracker_names

__all__ = ["Tracking", "track_finished", "tracker_names"]

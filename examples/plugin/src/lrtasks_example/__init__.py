"""A task and a model for lrtasks. This file imports neither, so that whoever uses the task need not load torch."""

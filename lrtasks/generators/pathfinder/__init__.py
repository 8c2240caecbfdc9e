"""The Pathfinder generator: settings, tables, placement and images. The tasks are in ``generators/tasks``.

An image holds two long dashed paths that start near each other, many short dashed paths (distractors), and round marks:
two on the long paths, one on each distractor. The design follows Linsley et al., "Learning long-range spatial
dependencies with horizontal gated recurrent units" (arXiv:1805.08315), and the settings follow
Pathfinder-Segmentation in the DLR paper.
"""

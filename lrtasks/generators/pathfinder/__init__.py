"""The Pathfinder generator: settings, tables, placement and images; the tasks are in ``generators/tasks``.

An image holds two long dashed paths that start near each other, many short dashed paths (distractors), and round marks:
two on the long paths, one on each distractor. After Linsley et al., "Learning long-range spatial dependencies with
horizontal gated recurrent units" (arXiv:1805.08315), with the settings of the DLR paper's Pathfinder-Segmentation.
"""

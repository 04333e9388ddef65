"""Candidates scored by all signals and sorted: the two stages, constraints, the index."""

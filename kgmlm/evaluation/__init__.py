"""Evaluation of a run: protocols, filtered ranks, metrics, comparisons."""

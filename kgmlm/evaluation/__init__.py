"""How well a run ranks: protocols, filtered ranks, metrics, comparisons."""

"""Which triples are true: classification, calibration, completion of a graph."""

"""Prediction of true triples: classification, calibration, completion of a graph."""

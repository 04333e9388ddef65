"""A run made: texts trained, signals added, weights chosen on validation."""

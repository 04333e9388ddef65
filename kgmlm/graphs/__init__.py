"""Knowledge graphs: entities, relations, triples and queries; datasets and their files."""

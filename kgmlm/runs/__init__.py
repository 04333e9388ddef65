"""A run on disk: its folder, its record, its pack; opened to rank."""

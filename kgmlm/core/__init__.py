"""The ground: errors, settings, files, arrays and the machine. Knows no graph and no model."""

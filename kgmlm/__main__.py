"""``python -m kgmlm`` runs the command ``kgmlm``."""

from __future__ import annotations

from kgmlm.cli.app import app

if __name__ == "__main__":
    app()

"""``python -m kgmlm`` runs the command ``kgmlm``."""

from __future__ import annotations

from kgmlm.cli.app import run_app

if __name__ == "__main__":
    run_app()

"""``python -m kgmlm.cli`` is ``kgmlm``."""

from __future__ import annotations

from kgmlm.cli import run_app

if __name__ == "__main__":
    run_app()

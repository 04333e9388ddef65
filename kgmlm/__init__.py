"""kgmlm: link prediction on knowledge graphs with masked language models.

The public names load on first use, so that ``import kgmlm`` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgmlm.datasets import load_graph
    from kgmlm.graph import KnowledgeGraph
    from kgmlm.kg import EntityTable, KgmlmError
    from kgmlm.prediction import Predictor, open_predictor

__version__ = "0.1.0"

__all__ = [
    "EntityTable",
    "KgmlmError",
    "KnowledgeGraph",
    "Predictor",
    "__version__",
    "load_graph",
    "open_predictor",
]

_HOMES = {
    "EntityTable": "kgmlm.kg",
    "KgmlmError": "kgmlm.kg",
    "KnowledgeGraph": "kgmlm.graph",
    "Predictor": "kgmlm.prediction",
    "load_graph": "kgmlm.datasets",
    "open_predictor": "kgmlm.prediction",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kgmlm' has no attribute {name!r}")

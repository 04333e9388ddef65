"""kgmlm: link prediction on knowledge graphs with masked language models.

The public names load on first use, so that ``import kgmlm`` stays cheap.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgmlm.datasets import load_graph
    from kgmlm.graph import KnowledgeGraph
    from kgmlm.jobs import data
    from kgmlm.jobs.classifying import calibrate, classify, measure_probabilities, rank_relations
    from kgmlm.jobs.completing import complete
    from kgmlm.jobs.evaluating import Comparison, Report, compare, evaluate
    from kgmlm.jobs.exporting import export
    from kgmlm.jobs.feedback import feedback
    from kgmlm.jobs.importing import import_graph
    from kgmlm.jobs.indexing import index
    from kgmlm.jobs.information import Info, info
    from kgmlm.jobs.onnx import onnx
    from kgmlm.jobs.packing import pack, unpack
    from kgmlm.jobs.reporting import report
    from kgmlm.jobs.serving import serve
    from kgmlm.jobs.showing import linearize
    from kgmlm.jobs.training import train
    from kgmlm.jobs.tuning import rerank, tune
    from kgmlm.judging import Classified
    from kgmlm.kg import EntityTable, KgmlmError
    from kgmlm.prediction import Predictor
    from kgmlm.run import Run, open_run

__version__ = "0.1.0"

# Threads of OpenMP that wait for each other spin, which takes the cores from other processes: training beside
# five of them took four times as long as with threads that soon sleep (docs/speed.md). GNU's OpenMP, which
# torch's wheels for Linux bring, reads this when torch is imported; its own default is 300,000 rounds.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
if "torch" not in sys.modules and not any(name in os.environ for name in _WAITING):
    os.environ["GOMP_SPINCOUNT"] = "1000"

_HOMES = {
    "Classified": "kgmlm.judging",
    "Comparison": "kgmlm.jobs.evaluating",
    "EntityTable": "kgmlm.kg",
    "Info": "kgmlm.jobs.information",
    "KgmlmError": "kgmlm.kg",
    "KnowledgeGraph": "kgmlm.graph",
    "Predictor": "kgmlm.prediction",
    "Report": "kgmlm.jobs.evaluating",
    "Run": "kgmlm.run",
    "calibrate": "kgmlm.jobs.classifying",
    "classify": "kgmlm.jobs.classifying",
    "compare": "kgmlm.jobs.evaluating",
    "complete": "kgmlm.jobs.completing",
    "evaluate": "kgmlm.jobs.evaluating",
    "export": "kgmlm.jobs.exporting",
    "feedback": "kgmlm.jobs.feedback",
    "import_graph": "kgmlm.jobs.importing",
    "index": "kgmlm.jobs.indexing",
    "info": "kgmlm.jobs.information",
    "linearize": "kgmlm.jobs.showing",
    "load_graph": "kgmlm.datasets",
    "measure_probabilities": "kgmlm.jobs.classifying",
    "onnx": "kgmlm.jobs.onnx",
    "pack": "kgmlm.jobs.packing",
    "unpack": "kgmlm.jobs.packing",
    "open_run": "kgmlm.run",
    "rank_relations": "kgmlm.jobs.classifying",
    "report": "kgmlm.jobs.reporting",
    "rerank": "kgmlm.jobs.tuning",
    "serve": "kgmlm.jobs.serving",
    "train": "kgmlm.jobs.training",
    "tune": "kgmlm.jobs.tuning",
}

__all__ = [
    "Classified",
    "Comparison",
    "EntityTable",
    "Info",
    "KgmlmError",
    "KnowledgeGraph",
    "Predictor",
    "Report",
    "Run",
    "__version__",
    "calibrate",
    "classify",
    "compare",
    "complete",
    "data",
    "evaluate",
    "export",
    "feedback",
    "import_graph",
    "index",
    "info",
    "linearize",
    "load_graph",
    "measure_probabilities",
    "onnx",
    "open_run",
    "pack",
    "rank_relations",
    "report",
    "rerank",
    "serve",
    "train",
    "tune",
    "unpack",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("kgmlm.jobs.data")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kgmlm' has no attribute {name!r}")

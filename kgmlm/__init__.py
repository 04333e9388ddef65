"""kgmlm: link prediction on knowledge graphs with masked language models.

The public names load on first use, so that ``import kgmlm`` stays cheap.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgmlm import data
    from kgmlm.core.errors import KgmlmError
    from kgmlm.data import linearize
    from kgmlm.evaluation.compare import Comparison, compare
    from kgmlm.evaluation.evaluate import Report, evaluate
    from kgmlm.graphs.datasets import load_graph
    from kgmlm.graphs.entities import EntityTable
    from kgmlm.graphs.graph import KnowledgeGraph
    from kgmlm.importing.import_graph import import_graph
    from kgmlm.prediction.classify import (
        Classified,
        calibrate,
        classify,
        rank_relations,
    )
    from kgmlm.prediction.complete import complete
    from kgmlm.prediction.export import export
    from kgmlm.prediction.missing import Missing, missing
    from kgmlm.ranking.predictor import Predictor
    from kgmlm.reporting.report import report
    from kgmlm.runs.feedback import feedback
    from kgmlm.runs.index import index
    from kgmlm.runs.onnx import onnx
    from kgmlm.runs.run import Run, open_run
    from kgmlm.serving.serve import serve
    from kgmlm.sharing.embeddings import embeddings, similar
    from kgmlm.sharing.info import Info, info
    from kgmlm.sharing.pack import pack, unpack
    from kgmlm.sharing.push import push
    from kgmlm.training.train import train
    from kgmlm.training.tune import tune
    from kgmlm.training.update import apply_feedback, update

__version__ = "0.1.0"

# Threads of OpenMP that wait for each other spin, which takes the cores from other processes: training beside
# five of them took four times as long as with threads that soon sleep (eval/MEASURED.md). GNU's OpenMP, which
# torch's wheels for Linux bring, reads this when torch is imported; its own default is 300,000 rounds.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
if "torch" not in sys.modules and not any(name in os.environ for name in _WAITING):
    os.environ["GOMP_SPINCOUNT"] = "1000"
if "numpy" not in sys.modules:  # OpenBLAS: let idle threads spin for 2**18 cycles, not its 2**26
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")

if "IPython" in sys.modules:  # in notebooks without widgets bars are text, which needs no advice
    warnings.filterwarnings("ignore", "IProgress not found")

_HOMES = {
    "Classified": "kgmlm.prediction.classify",
    "Comparison": "kgmlm.evaluation.compare",
    "EntityTable": "kgmlm.graphs.graph",
    "Info": "kgmlm.sharing.info",
    "Missing": "kgmlm.prediction.missing",
    "KgmlmError": "kgmlm.core.errors",
    "KnowledgeGraph": "kgmlm.graphs.graph",
    "Predictor": "kgmlm.ranking.predictor",
    "Report": "kgmlm.evaluation.evaluate",
    "Run": "kgmlm.runs.run",
    "apply_feedback": "kgmlm.training.update",
    "calibrate": "kgmlm.prediction.classify",
    "classify": "kgmlm.prediction.classify",
    "compare": "kgmlm.evaluation.compare",
    "complete": "kgmlm.prediction.complete",
    "evaluate": "kgmlm.evaluation.evaluate",
    "export": "kgmlm.prediction.export",
    "feedback": "kgmlm.runs.feedback",
    "import_graph": "kgmlm.importing.import_graph",
    "index": "kgmlm.runs.index",
    "info": "kgmlm.sharing.info",
    "linearize": "kgmlm.data",
    "missing": "kgmlm.prediction.missing",
    "load_graph": "kgmlm.graphs.datasets",
    "onnx": "kgmlm.runs.onnx",
    "embeddings": "kgmlm.sharing.embeddings",
    "similar": "kgmlm.sharing.embeddings",
    "pack": "kgmlm.sharing.pack",
    "unpack": "kgmlm.sharing.pack",
    "push": "kgmlm.sharing.push",
    "open_run": "kgmlm.runs.run",
    "rank_relations": "kgmlm.prediction.classify",
    "report": "kgmlm.reporting.report",
    "serve": "kgmlm.serving.serve",
    "train": "kgmlm.training.train",
    "tune": "kgmlm.training.tune",
    "update": "kgmlm.training.update",
}
__all__ = [
    "Classified",
    "Comparison",
    "EntityTable",
    "Info",
    "KgmlmError",
    "KnowledgeGraph",
    "Missing",
    "Predictor",
    "Report",
    "Run",
    "__version__",
    "apply_feedback",
    "calibrate",
    "classify",
    "compare",
    "complete",
    "data",
    "embeddings",
    "evaluate",
    "export",
    "feedback",
    "import_graph",
    "index",
    "info",
    "linearize",
    "load_graph",
    "missing",
    "onnx",
    "open_run",
    "pack",
    "push",
    "rank_relations",
    "report",
    "serve",
    "similar",
    "train",
    "tune",
    "unpack",
    "update",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("kgmlm.data")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kgmlm' has no attribute {name!r}")

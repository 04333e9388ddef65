"""How a run is asked: by which parts of its score, through which index, how precisely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from kgmlm.constraints import Constraint
    from kgmlm.graph import KnowledgeGraph
    from kgmlm.ranker import Ranker
    from kgmlm.runs import RunFolder
    from kgmlm.shortlisting import Retrieval
    from kgmlm.slots import EntityTypes
    from kgmlm.watching import Watcher


Runtime = Literal["auto", "torch", "onnx"]


@dataclass(frozen=True)
class Way:
    """How a run is asked: by which parts of its score, through which index, how precisely.

    What is None goes by the run; ``runtime`` says what reads texts, "auto" taking ONNX Runtime where it can
    do all that is asked; ``allow_self`` lets an entity be its own answer; ``typed`` and
    ``functional`` forbid answers as :mod:`kgmlm.constraints` has it.
    """

    scores: str = "all"
    allow_self: bool = False
    typed: bool = False
    functional: bool = False
    rerank: int | None = None
    retrieve: int | None = None
    effort: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str | None = None
    runtime: Runtime = "torch"

    def __post_init__(self) -> None:
        """Refuse unknown scores before anything is opened; what is known needs no heavy import for it."""
        from kgmlm.kg import ConfigError, check_whole

        for name, count in (("--rerank", self.rerank), ("--retrieve", self.retrieve)):
            if count is not None:
                check_whole(name, count, 0)
        for name, value, choices in (
            ("--precision", self.precision, ("fp32", "bf16")),
            ("--runtime", self.runtime, get_args(Runtime)),
        ):
            if value not in choices:
                raise ConfigError(f"{name} is {' or '.join(choices)}, not {value!r:.80}")
        if self.scores not in ("all", "text", "likelihood", "vector", "kge", "rules", "types"):
            from kgmlm.ranker import check_scores

            check_scores(self.scores)

    def given(self, **values: Any) -> Way:
        """The same but for those values that are not None."""
        return replace(self, **{key: value for key, value in values.items() if value is not None})

    def plain(self) -> Way:
        """That by which probabilities are fitted: all signals in fp32, unconstrained, no second stage."""
        return Way(rerank=0, retrieve=0, device=self.device, runtime=self.runtime)

    @property
    def is_plain(self) -> bool:
        """Whether the first stage is that of :meth:`plain`."""
        second = {key: getattr(self, key) for key in ("rerank", "retrieve", "effort")}
        return self == replace(self.plain(), **second)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return (self.device or "").startswith("cuda")

    def sent(self) -> Way:
        """The same for a machine that has GPUs of its own: one of them, or the CPU."""
        return replace(self, device="cuda" if self.on_gpu else self.device or "cpu")

    @property
    def reranks(self) -> bool:
        """Whether a second stage takes part, where the run has one."""
        return self.scores in ("all", "text") and self.rerank != 0

    def computed_by(self, run: RunFolder) -> tuple[Literal["torch", "onnx"], str]:
        """What reads a run's texts, and why that is not what was asked for.

        Raises:
            ConfigError: when that is torch, which is not installed.
        """
        from kgmlm.kg import ConfigError
        from kgmlm.machine import installed, may_have_gpu

        if self.runtime == "torch":
            return "torch", ""
        lack = self._lack(run)
        if not lack:
            gpu = self.runtime == "auto" and self.device is None and installed("torch") and may_have_gpu()
            return ("torch", "") if gpu else ("onnx", "")
        if not installed("torch"):
            raise ConfigError(f"{lack}, and torch is not installed")
        return "torch", f"{lack}: torch reads the texts" if self.runtime == "onnx" else ""

    def _lack(self, run: RunFolder) -> str:
        """What keeps ONNX Runtime from reading a run's texts; nothing where it can."""
        from kgmlm import onnx_model
        from kgmlm.machine import installed
        from kgmlm.mixture import Use
        from kgmlm.upkeep import has_reranker

        if not (run.model_folder / onnx_model.FILE).is_file():
            return f"{run.path} has no model/{onnx_model.FILE} (`kgmlm onnx` writes one)"
        if not installed("onnxruntime"):
            return "ONNX Runtime is not installed (pip install onnxruntime)"
        if self.precision != "fp32":
            return f"ONNX Runtime computes in fp32, not {self.precision}"
        if self.device not in (None, "cpu"):
            return f"ONNX Runtime computes on the CPU here, not on '{self.device}'"
        if self.reranks and has_reranker(run.path) and (run.chosen.use or Use(0, 0)).k:
            return "ONNX Runtime runs no reranker (--rerank 0 leaves it out)"
        if self.retrieve or (self.retrieve is None and self.scores == "all" and shortlist_of(run)):
            return "ONNX Runtime asks no index"
        return ""

    def ranker(
        self, run: RunFolder, graph: KnowledgeGraph, tell: Callable[[str], None] = lambda message: None
    ) -> Ranker:
        """A run's ranker over a graph, by the parts of the score that were asked for.

        Args:
            tell: called with a sentence where something else computes than was asked for.

        Raises:
            ConfigError: when the run has no such part, or nothing to rerank with.
        """
        ranker = self._opened(run, graph, tell)
        if self.rerank:
            ranker = self._reranking(run, ranker, self.rerank)
        ranker.reduce(self.precision == "bf16")
        return ranker.constrained(*self.constraints(run, graph))

    def _reranking(self, run: RunFolder, ranker: Ranker, k: int) -> Ranker:
        """One that reranks so many of the best.

        Raises:
            ConfigError: when there is nothing to rerank with.
        """
        from kgmlm.kg import ConfigError
        from kgmlm.upkeep import has_reranker

        if not self.reranks:
            raise ConfigError(f"--rerank goes with --scores all or text, not {self.scores}")
        if not ranker.reranks and not has_reranker(run.path) and run.chosen.reverse is None:
            raise ConfigError(
                f"{run.path} has no reranker; `kgmlm rerank {run.path}` trains one, and "
                f"`kgmlm tune {run.path} --add reverse` does without"
            )
        if not ranker.reranks:
            raise ConfigError(
                f"{run.path}: validation chose not to rerank, so there is no weight to rerank with; "
                f"`kgmlm tune {run.path}` chooses again"
            )
        again, reverse = ranker.reranking, ranker.reverse
        return ranker.but(
            reranking=again and replace(again, use=replace(again.use, k=k)),
            reverse=reverse and replace(reverse, k=k),
        )

    def _opened(self, run: RunFolder, graph: KnowledgeGraph, tell: Callable[[str], None]) -> Ranker:
        """By the runtime that was asked for, or by torch where that cannot."""
        from kgmlm.kg import ModelError
        from kgmlm.machine import installed
        from kgmlm.opening import ONNX

        runtime, why = self.computed_by(run)
        if why:
            tell(why)
        try:
            device = ONNX if runtime == "onnx" else self.device
            return run.ranker(device, graph, self.scores, self.reranks)
        except ModelError as error:
            if runtime == "torch" or not installed("torch"):
                raise
            tell(f"{error}; torch reads the texts")
        return run.ranker(self.device, graph, self.scores, self.reranks)

    def constraints(self, run: RunFolder, graph: KnowledgeGraph) -> list[Constraint]:
        """What was asked for of a run's training, over a graph."""
        from kgmlm.constraints import Functional, Typed
        from kgmlm.signals import rows_of

        learned: list[Constraint] = []
        if self.typed:
            learned.append(Typed(types_of(run)))
        if self.functional:
            learned.append(Functional.learn(run.graph.context))
        if not learned:
            return []
        _, relation_rows = rows_of(graph.context, run.graph.context)
        return [constraint.over(graph.context, relation_rows) for constraint in learned]

    def retrieval(self, run: RunFolder, ranker: Ranker, default: int | None = None) -> Retrieval | None:
        """The index that finds candidates, where only some are to be scored.

        Args:
            default: how many, where it was not said; 0 of ``retrieve`` is all.
        """
        k = default if self.retrieve is None and self.scores == "all" else self.retrieve
        if not k and self.effort is None:
            return None
        from kgmlm.indexing import open_retrieval

        return open_retrieval(run, ranker, k or None, self.effort)

    def words(self) -> list[str]:
        """What is not as by default, for names of files."""
        return [
            *([] if self.scores == "all" else [self.scores]),
            *(["allow-self"] if self.allow_self else []),
            *(["typed"] if self.typed else []),
            *(["functional"] if self.functional else []),
            *([] if self.rerank is None else [f"rerank-{self.rerank}"]),
            *([] if self.retrieve is None else [f"retrieve-{self.retrieve}"]),
            *([] if self.effort is None else [f"effort-{self.effort}"]),
            *([] if self.precision == "fp32" else [self.precision]),
        ]


def shortlist_of(run: RunFolder) -> int | None:
    """How many entities are scored unless something else is asked for; None is all.

    A recipe indexes a large graph; once the model has changed, that index no longer counts.
    """
    from kgmlm.chosen import text_fingerprint

    kept = run.record.get("shortlist")
    return kept["entities"] if kept and kept["of"] == text_fingerprint(run.path) else None


def types_of(run: RunFolder) -> EntityTypes:
    """Types of a run's entities: as its signal knows them, where it has that, else counted by its settings.

    Raises:
        RunError: when the signal is damaged.
    """
    from kgmlm.signals.types import Types

    run.check(Types.file)
    file = run.path / Types.file
    return (Types.open(file, run.graph) if file.is_file() else Types.fit(run.graph, run.settings.types)).types


def read_entities(ranker: Ranker, watch: Watcher, batch_size: int = 64) -> None:
    """Read the vectors that are missing and count, each in one of the processes that share the work."""
    from kgmlm.reading import read_together

    if unread := ranker.unread:
        assert ranker.vectors is not None
        read_together(ranker.vectors, batch_size, lambda n: watch("reading entities", n, unread))

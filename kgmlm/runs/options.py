"""Options of ranking by a run: signals, constraints, second stages, index, precision, device, runtime."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

Runtime = Literal["auto", "torch", "onnx"]
Precision = Literal["fp32", "bf16"]


class ComputeKeywords(TypedDict, total=False):
    """The computation of scores; see :class:`RankingOptions`."""

    precision: Precision | None
    device: str | None
    runtime: Runtime | None


class RankingKeywords(ComputeKeywords, total=False):
    """The fields of :class:`RankingOptions` as keywords; None leaves one as it is."""

    scores: str | None
    allow_self: bool | None
    typed: bool | None
    functional: bool | None
    unlinked: bool | None
    candidates: str | Path | None
    rerank: int | None
    retrieve: int | None
    probabilities: bool | None


@dataclass(frozen=True)
class RankingOptions:
    """Options of ranking by a run: parts of the score, candidates, computation.

    Attributes:
        scores: "all" that it has, its "text", or one signal alone.
        allow_self: let an entity answer a query about itself where training says that it cannot.
        typed: leave out entities whose types do not fit, as training has them.
        functional: leave out what training has filled already, where a relation has one answer.
        unlinked: leave out entities that training links to the query's entity by another triple.
        candidates: a table of the entities that can answer: column entity and, if you like, relation and
            side; a relation without a list of its own goes by the entities that have no relation, if any.
        rerank: how many of the best the second stages score; None is what validation chose, 0 none.
        retrieve: score only so many entities per query, found by the index; 0 scores all, None goes by the
            run's recipe.
        probabilities: say how probable the shown answers are, for which each of them is asked for from its
            other side.
        precision: "fp32" or "bf16".
        device: such as "cpu" or "cuda"; None takes a GPU where there is one.
        runtime: what reads texts: "torch", or "onnx" (ONNX Runtime) in runs that :func:`~kgmlm.onnx` has made
            ready for it, whose scores are NumPy arrays; "auto" takes the latter on a CPU where it can do all
            that is asked. Evaluation and completion take torch.

    Raises:
        ConfigError: when there are no such scores, or a value is out of range.

    Example:
        >>> kgmlm.open_run("runs/demo", RankingOptions(scores="text", rerank=0))  # doctest: +SKIP
    """

    scores: str = "all"
    allow_self: bool = False
    typed: bool = False
    functional: bool = False
    unlinked: bool = False
    candidates: str | Path | None = None
    rerank: int | None = None
    retrieve: int | None = None
    probabilities: bool = True
    precision: Precision = "fp32"
    device: str | None = None
    runtime: Runtime = "auto"

    def __post_init__(self) -> None:
        """Refuse unknown scores before anything is opened; what is known needs no heavy import for it."""
        from kgmlm.core.errors import ConfigError, check_whole

        for name, count in (("--rerank", self.rerank), ("--retrieve", self.retrieve)):
            if count is not None:
                check_whole(name, count, 0)
        for name, value, choices in (
            ("--precision", self.precision, ("fp32", "bf16")),
            ("--runtime", self.runtime, get_args(Runtime)),
        ):
            if value not in choices:
                raise ConfigError(f"{name} is {' or '.join(choices)}, not {value!r:.80}")
        if self.scores not in ("all", "text"):
            from kgmlm.signals import check_scores

            check_scores(self.scores)

    def given(self, **values: Any) -> RankingOptions:
        """A copy with those values that are not None.

        Raises:
            ConfigError: for what is no option.
        """
        from kgmlm.core.errors import ConfigError

        names = [field.name for field in fields(self)]
        if wrong := [name for name in values if name not in names]:
            alike = get_close_matches(wrong[0], names, 1, 0.6)
            meant = f"; did you mean {alike[0]}?" if alike else ""
            raise ConfigError(f"there is no argument {wrong[0]}{meant}")
        return replace(self, **{key: value for key, value in values.items() if value is not None})

    def plain(self) -> RankingOptions:
        """The options of probabilities: all signals in fp32, unconstrained, no second stage."""
        return RankingOptions(rerank=0, retrieve=0, device=self.device, runtime=self.runtime)

    @property
    def on_gpu(self) -> bool:
        """Return whether a GPU is asked for by name."""
        return (self.device or "").startswith("cuda")

    def sent(self) -> RankingOptions:
        """A copy for a machine that has GPUs of its own: one of them, or the CPU."""
        return replace(self, device="cuda" if self.on_gpu else self.device or "cpu")

    @property
    def reranks(self) -> bool:
        """Return whether a second stage takes part, where the run has one."""
        return self.scores in ("all", "text") and self.rerank != 0

    def words(self) -> list[str]:
        """Words for the options that are not as by default, for names of files."""
        return [
            *([] if self.scores == "all" else [self.scores]),
            *(["allow-self"] if self.allow_self else []),
            *(["typed"] if self.typed else []),
            *(["functional"] if self.functional else []),
            *(["unlinked"] if self.unlinked else []),
            *([] if self.candidates is None else [f"of-{Path(self.candidates).stem}"]),
            *([] if self.rerank is None else [f"rerank-{self.rerank}"]),
            *([] if self.retrieve is None else [f"retrieve-{self.retrieve}"]),
            *([] if self.precision == "fp32" else [self.precision]),
        ]

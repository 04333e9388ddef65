"""How a run is asked: by which parts of its score, through which index, how precisely."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Runtime = Literal["auto", "torch", "onnx"]


@dataclass(frozen=True)
class RankingOptions:
    """How a run is asked: by which parts of its score, through which index, how precisely.

    What is None goes by the run; ``runtime`` says what reads texts, "auto" taking ONNX Runtime where it can
    do all that is asked; ``allow_self`` lets an entity be its own answer; ``typed`` and
    ``functional`` forbid answers as :mod:`kgmlm.ranking.constraints` has it.
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
        if self.scores not in ("all", "text", "likelihood", "vector", "kge", "rules", "types"):
            from kgmlm.ranking.ranker import check_scores

            check_scores(self.scores)

    def given(self, **values: Any) -> RankingOptions:
        """The same but for those values that are not None."""
        return replace(self, **{key: value for key, value in values.items() if value is not None})

    def plain(self) -> RankingOptions:
        """That by which probabilities are fitted: all signals in fp32, unconstrained, no second stage."""
        return RankingOptions(rerank=0, retrieve=0, device=self.device, runtime=self.runtime)

    @property
    def is_plain(self) -> bool:
        """Whether the first stage is that of :meth:`plain`."""
        second = {key: getattr(self, key) for key in ("rerank", "retrieve", "effort")}
        return self == replace(self.plain(), **second)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return (self.device or "").startswith("cuda")

    def sent(self) -> RankingOptions:
        """The same for a machine that has GPUs of its own: one of them, or the CPU."""
        return replace(self, device="cuda" if self.on_gpu else self.device or "cpu")

    @property
    def reranks(self) -> bool:
        """Whether a second stage takes part, where the run has one."""
        return self.scores in ("all", "text") and self.rerank != 0

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

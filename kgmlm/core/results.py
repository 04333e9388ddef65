"""Results of functions: a short repr, a table in notebooks, and the table itself."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """The base of results that are tables."""

    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        table: str = self.to_frame().to_html(float_format="{:.4f}".format)
        return table


class Outcome(dict[str, Any], Result):
    """The values that a job has made or measured, by name, as ``--json`` prints them.

    >>> Outcome({"output": "new.tsv", "listed": 2, "probabilities": {"prior": 0.1}})
    <output='new.tsv', listed=2>
    """

    @property
    def single(self) -> dict[str, Any]:
        """The values that are no lists and no figures by name."""
        return {key: value for key, value in self.items() if not isinstance(value, Mapping | list | tuple)}

    def to_frame(self) -> pd.DataFrame:
        """A row for each of the figures by name, or else for each single value."""
        import pandas as pd

        parts = {key: value for key, value in self.items() if isinstance(value, Mapping)}
        if parts and not self.single:
            return pd.DataFrame.from_dict(parts, orient="index")
        return pd.DataFrame({"value": pd.Series(self.single, dtype=object)})

    def __repr__(self) -> str:
        shown = (f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value!r:.60}"
                for key, value in self.single.items())  # fmt: skip
        return f"<{', '.join(shown) or ', '.join(self)}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{super()._repr_html_()}"


def names_first(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of triples with the names of their ends before, and their labels behind what else it has."""
    names = [name for name in frame if str(name).endswith("_name")]
    labels = [str(name).removesuffix("_name") for name in names]
    return frame[[*names, *(x for x in frame if x not in (*names, *labels)), *labels]]

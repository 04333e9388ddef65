"""Dates of triples: what a text says, and when each triple of a file was made.

A date stands for a time from its beginning to its end: "2023" for a year, "2023-05" for a month,
"2023-05-17" for a day, Unix times and ISO dates with a time of day for a second.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgmlm.core.errors import DataError

Dates: TypeAlias = npt.NDArray[Any]  # datetime64 by the second, UTC; not-a-time where nobody knows

_PERIOD = re.compile(r"([0-9]{4})(?:-?([0-9]{2})(?:-?([0-9]{2}))?)?")
_WHOLE = re.compile(r"^([0-9]+)\.0*$")  # a year, as a column of numbers with gaps has it
_UNIX = {(9, 11): 1, (12, 14): 1_000, (15, 17): 1_000_000, (18, 20): 1_000_000_000}  # digits: units a second


class Period(NamedTuple):
    """A time from its first second to the one after its last."""

    begin: np.datetime64
    end: np.datetime64

    @classmethod
    def of(cls, begin: datetime, end: datetime) -> Period:
        """The time between two moments of UTC."""
        return cls(np.datetime64(begin, "s"), np.datetime64(end, "s"))


def period(text: str) -> Period | None:
    """The time that a text stands for; None where it is no date.

    Years, ISO dates (of months, days and times of day, with or without a zone; without one they are UTC), and
    Unix times in seconds, milliseconds, microseconds or nanoseconds.

    >>> str(period("2023").end), str(period("2023-02").end), str(period("1700000000").begin)
    ('2024-01-01T00:00:00', '2023-03-01T00:00:00', '2023-11-14T22:13:20')
    >>> str(period("2023-05-17T10:00:00+02:00").begin), period("May 2023")
    ('2023-05-17T08:00:00', None)
    """
    text = _WHOLE.sub(r"\1", text.strip())
    try:
        if (match := _PERIOD.fullmatch(text)) and len(text) != 6:  # 202305 may be another number
            return _calendar(*(int(part) for part in match.groups() if part))
        if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
            whole = text.partition(".")[0]
            units = next((x for (least, most), x in _UNIX.items() if least <= len(whole) <= most), None)
            return None if units is None else _second(datetime.fromtimestamp(int(whole) // units, UTC))
        return _second(datetime.fromisoformat(text)) if text[:4].isascii() and text[:4].isdecimal() else None
    except (ValueError, OverflowError, OSError):
        return None


def _calendar(year: int, month: int | None = None, day: int | None = None) -> Period:
    """A year, a month or a day."""
    begin = datetime(year, month or 1, day or 1)
    if day is not None:
        return Period.of(begin, begin + timedelta(days=1))
    after = (year, month + 1) if month is not None and month < 12 else (year + 1, 1)
    return Period.of(begin, datetime(*after, 1))


def _second(at: datetime) -> Period:
    utc = at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    begin = utc.replace(microsecond=0)
    return Period.of(begin, begin + timedelta(seconds=1))


def given_period(text: str, option: str) -> Period:
    """The time that an option names.

    Raises:
        DataError: when it is no date.
    """
    asked = period(text)
    if asked is None:
        raise DataError(f"{option} is {text!r}, which is no date such as 2023, 2023-05-17 or 1684281600")
    return asked


def dates_of(texts: pa.ChunkedArray, where: str, first: int = 1) -> Dates:
    """When each triple was made, from the texts of its column of dates; empty ones are unknown.

    Args:
        where: how an error names the place of a text, before its number.
        first: the number (or line) of the first text.

    Raises:
        DataError: naming the first text that is no date.
    """
    coded: Any = texts.combine_chunks()
    if not isinstance(coded, pa.DictionaryArray):
        coded = coded.dictionary_encode()
    known = [("" if text is None else str(text)) for text in coded.dictionary.to_pylist()]
    periods = [period(text) if text.strip() else None for text in known]
    begins = np.array([np.datetime64("NaT", "s") if x is None else x.begin for x in periods], "M8[s]")
    at_n = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.array([bool(text.strip()) and x is None for text, x in zip(known, periods, strict=True)])
    if len(wrong) and (bad := np.flatnonzero(wrong[at_n] & (at_n >= 0))).size:
        text = known[at_n[bad[0]]]
        raise DataError(f"{where}{first + int(bad[0])}: {text!r:.80} is no date such as 2023 or 2023-05-17")
    dates: Dates = np.append(begins, np.datetime64("NaT", "s"))[at_n]
    return dates


def written(dates: Dates) -> pa.Array:
    """Dates as a column of text: days, or with their time where some date has one; empty where unknown.

    >>> written(np.array(["2023-05-17", "NaT"], "M8[s]")).to_pylist()
    ['2023-05-17', '']
    """
    days = dates.astype("M8[D]")
    known = ~np.isnat(dates)
    whole = bool((days[known] == dates[known]).all())
    texts = np.where(known, (days if whole else dates).astype(np.str_), "")
    return pa.array(texts.tolist(), pa.large_string())


def day(moment: np.datetime64) -> str:
    """The day of a moment."""
    return str(moment.astype("M8[D]"))

"""What `mutmut run` found: a line of figures for each module, then every mutant that no test noticed.

python tests/mutants.py [--brief]     in the folder in which mutmut ran; see CONTRIBUTING.md
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

# Exit codes of the tests under a mutant; others are of processes that ran out of time.
STATES = {0: "survived", 1: "killed", 3: "killed", 5: "no tests", 33: "no tests", None: "not run"}
COLUMNS = ("killed", "timeout", "survived", "no tests", "not run")


def results(folder: Path) -> dict[str, dict[str, str]]:
    """The state of each mutant, by module."""
    outcomes = {}
    top = folder / "mutants" / "kgmlm"
    for path in sorted(top.rglob("*.meta")):
        codes = json.loads(path.read_text("utf-8"))["exit_code_by_key"]
        states = {mutant: STATES.get(code, "timeout") for mutant, code in codes.items()}
        outcomes[path.relative_to(top).as_posix().removesuffix(".py.meta")] = states
    return outcomes


def table(found: dict[str, dict[str, str]]) -> str:
    """The figures as Markdown; what runs out of time is noticed, what no test reaches is not."""
    lines = [f"| module | mutants | {' | '.join(COLUMNS)} | score |", "|---" * (len(COLUMNS) + 3) + "|"]
    everything = {f"{m}.{k}": state for m, states in found.items() for k, state in states.items()}
    for name, states in {**{f"`{m}`": s for m, s in found.items()}, "all": everything}.items():
        counts = Counter(states.values())
        run = len(states) - counts["not run"]
        score = f"{100 * (counts['killed'] + counts['timeout']) / run:.1f} %" if run else ""
        cells = (name, len(states), *(counts[c] for c in COLUMNS), score)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    result = results(Path.cwd())
    print(table(result))
    if "--brief" in sys.argv:
        return
    mutmut = Path(sys.executable).parent / "mutmut"
    for states in result.values():
        for mutant, state in states.items():
            if state in ("survived", "no tests"):
                shown = subprocess.run([mutmut, "show", mutant], capture_output=True, text=True, check=True)
                changed = [
                    x for x in shown.stdout.splitlines() if x[:1] in "+-" and x[:3] not in ("+++", "---")
                ]
                print(f"\n{mutant} ({state})", *changed, sep="\n")


if __name__ == "__main__":
    main()

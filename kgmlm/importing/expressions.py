"""Class expressions of OWL and lists of RDF, read as triples between entities.

``A subClassOf [R some B]`` says that things of A have R to things of B: it is read as (A, R, B), and so are
``only``, ``value`` and cardinalities. An intersection is read as its members, a list as its items, and a
union that A is equivalent to as subclasses of A. What a triple cannot express (other unions, complements,
cardinalities of zero, nested expressions) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kgmlm.core.arrays import IntArray
from kgmlm.graphs.queries import distinct_triples

OWL = "http://www.w3.org/2002/07/owl#"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
SUBCLASS = "http://www.w3.org/2000/01/rdf-schema#subClassOf"
EQUIVALENT = f"{OWL}equivalentClass"
PROPERTY, BOTH, EITHER = f"{OWL}onProperty", f"{OWL}intersectionOf", f"{OWL}unionOf"
FIRST, REST, NIL = f"{RDF}first", f"{RDF}rest", f"{RDF}nil"
FILLERS = (
    *(f"{OWL}{name}" for name in ("someValuesFrom", "allValuesFrom", "hasValue", "onClass")),
)  # predicates from a restriction to what its property leads to
PREDICATES = frozenset((PROPERTY, BOTH, EITHER, FIRST, REST, *FILLERS, f"{OWL}complementOf", f"{OWL}oneOf"))
CLASSES = {SUBCLASS: SUBCLASS, EQUIVALENT: SUBCLASS, f"{RDF}type": f"{RDF}type"}
OWN, NONE = -1, -2  # the relation of the triple itself; no node
DEEPEST = 100  # expressions within each other


class Expressions:
    """The parts of expressions and lists, as a file has told them; entities and relations are ids."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, int]] = {predicate: {} for predicate in PREDICATES}
        self._blanks: IntArray | None = None
        self.nil, self.blank, self.anonymous = NONE, set[int](), set[int]()
        self.none = set[int]()  # restrictions of none

    def add(self, node: int, predicate: str, value: int) -> None:
        """Take a triple whose predicate is one of :data:`PREDICATES`."""
        self.of[predicate].setdefault(node, value)

    def nodes(self) -> set[int]:
        """Return the nodes that stand for an expression or a part of a list."""
        return set().union(*self.of.values())

    def items(self, node: int) -> list[int]:
        """Return the items of a list; none of one that is broken."""
        members, seen = [], set[int]()
        while node in self.of[FIRST] and node not in seen:
            seen.add(node)
            members.append(self.of[FIRST][node])
            node = self.of[REST].get(node, self.nil)
        return members

    def statements_of(self, node: int, deep: int = 0) -> list[tuple[int, int]]:
        """Return what a class expression says about its class, as (relation, tail); the relation :data:`OWN`
        leads to a class that contains it.
        """
        nodes, relation = self.blank, self.of[PROPERTY].get(node)
        if relation is not None:
            filler = next((self.of[name][node] for name in FILLERS if node in self.of[name]), None)
            silent = filler is None or filler in nodes or relation in self.anonymous
            return [] if filler is None or silent or node in self.none else [(relation, filler)]
        if node not in self.of[BOTH] or deep > DEEPEST:
            return []
        statements = []
        for item in self.items(self.of[BOTH][node]):
            statements += self.statements_of(item, deep + 1) if item in nodes else [(OWN, item)]
        return statements

    def settle(self, nil: int | None, labels: Sequence[str]) -> set[int]:
        """Finish reading; return those of :meth:`nodes` that have a name: they are entities, too.

        Args:
            nil: the id of the end of lists, where there is one.
            labels: by id; those of blank nodes begin with ``_:``.
        """
        self.nil = NONE if nil is None else nil
        nodes = self.nodes()
        named = {node for node in nodes if not labels[node].startswith("_:")}
        self.blank = nodes - named
        self.anonymous = {i for i in self.of[PROPERTY].values() if labels[i].startswith("_:")}
        return named

    def of_named(self, subclass: int, kind: int, named: set[int]) -> Iterator[tuple[int, int, int]]:
        """Yield the triples of named classes that are an intersection, a union or a list of things.

        Args:
            subclass, kind: the ids of the relations "subclass of" and "type".
            named: nodes that are not blank.
        """
        for node in named & set(self.of[BOTH]):
            for relation, tail in self.statements_of(node):
                yield node, subclass if relation == OWN else relation, tail
        for predicate, relation in ((EITHER, subclass), (f"{OWL}oneOf", kind)):
            for node in named & set(self.of[predicate]):
                for item in self.items(self.of[predicate][node]):
                    if item not in self.blank:
                        yield item, relation, node

    def expanded(
        self, triples: IntArray, classes: Mapping[int, int], equivalent: int | None
    ) -> tuple[IntArray, IntArray]:
        """Replace triples whose tail is an expression or a list by what that says.

        Args:
            classes: relations whose tails are class expressions, and by which relation a class is linked to
                the members of an intersection.
            equivalent: the relation whose tails may be unions, of which the members are subclasses of the
                head; None where there is none.

        Returns:
            The triples, each once, and those whose tail says nothing that a triple can express.
        """
        if not self.blank:
            return triples, triples[:0]
        if self._blanks is None:
            self._blanks = np.array(sorted(self.blank), np.int64)
        apart = np.isin(triples[:, 2], self._blanks)
        read_triples: list[tuple[int, int, int]] = []
        silent: list[tuple[int, int, int]] = []
        for head, relation, node in triples[apart].tolist():
            if node in self.of[FIRST]:
                statements = [(relation, item) for item in self.items(node) if item not in self.blank]
            elif node in self.of[EITHER] and relation == equivalent:
                items = [x for x in self.items(self.of[EITHER][node]) if x not in self.blank]
                read_triples += [(item, classes[relation], head) for item in items]
                if not items:
                    silent.append((head, relation, node))
                continue
            else:
                own = classes.get(relation)
                statements = (
                    []
                    if own is None
                    else [(own if r == OWN else r, tail) for r, tail in self.statements_of(node)]
                )
            read_triples += [(head, r, tail) for r, tail in statements]
            if not statements:
                silent.append((head, relation, node))
        whole = np.concatenate([triples[~apart], np.array(read_triples, np.int64).reshape(-1, 3)])
        return distinct_triples(whole), np.array(silent, np.int64).reshape(-1, 3)

"""Vocabularies of RDF: predicates of names and descriptions, of files and records, of OBO; languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "description", "alias"]
OWL, SKOS = "http://www.w3.org/2002/07/owl#", "http://www.w3.org/2004/02/skos/core#"
RDF, RDFS = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/2000/01/rdf-schema#"
OBO = "http://purl.obolibrary.org/obo/"

# Predicates of names come first; of several texts, the one with the lowest number counts.
TEXT_PREDICATES: dict[str, tuple[Kind, int]] = {
    "http://www.w3.org/2000/01/rdf-schema#label": ("name", 0),
    "http://www.w3.org/2004/02/skos/core#prefLabel": ("name", 1),
    "http://schema.org/name": ("name", 2),
    "https://schema.org/name": ("name", 2),
    "http://xmlns.com/foaf/0.1/name": ("name", 3),
    "http://purl.org/dc/terms/title": ("name", 4),
    "http://purl.org/dc/elements/1.1/title": ("name", 5),
    "http://schema.org/description": ("description", 0),
    "https://schema.org/description": ("description", 0),
    "http://www.w3.org/2004/02/skos/core#definition": ("description", 1),
    "http://www.geneontology.org/formats/oboInOwl#hasDefinition": ("description", 1),
    "http://www.w3.org/2000/01/rdf-schema#comment": ("description", 2),
    "http://purl.org/dc/terms/description": ("description", 3),
    "http://purl.org/dc/elements/1.1/description": ("description", 4),
    "http://www.w3.org/2004/02/skos/core#altLabel": ("alias", 0),
    "http://schema.org/alternateName": ("alias", 1),
    "https://schema.org/alternateName": ("alias", 1),
    "http://www.w3.org/2008/05/skos-xl#prefLabel": ("name", 1),
    "http://www.w3.org/2008/05/skos-xl#altLabel": ("alias", 0),
    "http://www.w3.org/2008/05/skos-xl#hiddenLabel": ("alias", 2),
    "http://www.w3.org/2004/02/skos/core#hiddenLabel": ("alias", 2),
    "http://purl.obolibrary.org/obo/IAO_0000111": ("name", 6),  # "editor preferred term"
    "http://purl.obolibrary.org/obo/IAO_0000115": ("description", 1),  # "definition"
    "http://purl.obolibrary.org/obo/IAO_0000118": ("alias", 1),  # "alternative term"
    "http://www.geneontology.org/formats/oboInOwl#hasExactSynonym": ("alias", 0),
    "http://www.geneontology.org/formats/oboInOwl#hasNarrowSynonym": ("alias", 1),
    "http://www.geneontology.org/formats/oboInOwl#hasRelatedSynonym": ("alias", 2),
    "http://www.w3.org/2004/02/skos/core#notation": ("alias", 2),
    "http://dbpedia.org/ontology/abstract": ("description", 3),
    "http://purl.org/dc/terms/abstract": ("description", 3),
    "http://www.w3.org/2004/02/skos/core#scopeNote": ("description", 5),
}
# What is left out because it is about the file and not about the world, with the headings for counts.
TERMS, FILES, NOTES, DATES, RECORDS, SCHEMES, AXIOMS, PAGES, LINKS = (
    "types that only RDF, OWL and SKOS have",
    "about files",
    "notes",
    "dates of records",
    "about records",
    "about schemes",
    "axioms about properties",
    "about pages and images",
    "identifiers and links to other data",
)
FOAF, DBO, PROV = "http://xmlns.com/foaf/0.1/", "http://dbpedia.org/ontology/", "http://www.w3.org/ns/prov#"
LEFT_OUT: dict[str, str] = {
    **{f"{OWL}{name}": FILES for name in ("imports", "versionIRI", "priorVersion", "backwardCompatibleWith")},
    f"{RDFS}isDefinedBy": FILES,
    f"{OBO}IAO_0000700": FILES,  # "has ontology root term"
    **{f"{SKOS}{name}": NOTES for name in ("note", "changeNote", "editorialNote", "historyNote", "example")},
    **{f"http://purl.org/dc/terms/{name}": DATES for name in ("created", "modified")},
    **{f"{http}://schema.org/dateModified": DATES for http in ("http", "https")},
    "http://www.geneontology.org/formats/oboInOwl#creation_date": DATES,
    "http://www.geneontology.org/formats/oboInOwl#inSubset": RECORDS,
    "https://spec.edmcouncil.org/fibo/ontology/FND/Utilities/AnnotationVocabulary/hasMaturityLevel": RECORDS,
    **{f"{SKOS}{name}": SCHEMES for name in ("inScheme", "topConceptOf", "hasTopConcept")},
    f"{RDFS}subPropertyOf": AXIOMS,
    **{f"{RDFS}{name}": AXIOMS for name in ("domain", "range")},
    **{
        f"{OWL}{name}": AXIOMS
        for name in ("inverseOf", "propertyChainAxiom", "equivalentProperty", "propertyDisjointWith")
    },
    **{
        f"{http}://schema.org/{name}": PAGES
        for http in ("http", "https")
        for name in ("image", "logo", "thumbnailUrl", "contentUrl", "url", "mainEntityOfPage")
    },
    **{
        f"{FOAF}{name}": PAGES
        for name in ("depiction", "thumbnail", "homepage", "page", "isPrimaryTopicOf", "primaryTopic")
    },
    f"{DBO}thumbnail": PAGES,
    f"{PROV}wasDerivedFrom": PAGES,
    **{f"{http}://schema.org/sameAs": LINKS for http in ("http", "https")},
    # "has curation status", "term editor", "has obsolescence reason", "term tracker item"
    **{f"{OBO}IAO_{number}": RECORDS for number in ("0000114", "0000117", "0000231", "0000233")},
}
# Namespaces whose predicates are all about pages, links and records.
LEFT_OUT_BELOW = (
    (f"{DBO}wikiPage", PAGES),
    ("http://wikiba.se/ontology#", RECORDS),
    ("http://www.wikidata.org/prop/direct-normalized/", LINKS),
)
# Reified associations: the parts of a triple by the predicates that lead to them.
OBAN, BIOLINK = "http://purl.org/oban/association_has_", "https://w3id.org/biolink/vocab/"
ALIGNMENT = "http://knowledgeweb.semanticweb.org/heterogeneity/alignment"
Part = Literal["head", "relation", "tail"]
_PARTS: tuple[tuple[str, Part], ...] = (("subject", "head"), ("predicate", "relation"), ("object", "tail"))
ASSOCIATIONS: dict[str, Part] = {
    **{f"{OBAN}{name}": part for name, part in _PARTS},
    f"{OBAN}object_property": "relation",
    **{f"{BIOLINK}{name}": part for name, part in _PARTS},
    f"{BIOLINK}relation": "relation",
    **{f"{ALIGNMENT}{sharp}entity1": "head" for sharp in ("#", "")},
    **{f"{ALIGNMENT}{sharp}entity2": "tail" for sharp in ("#", "")},
}
# The relation of an alignment's cell is a sign; without one its entities are the same.
ALIGNED = {f"{ALIGNMENT}{sharp}relation" for sharp in ("#", "")}
MEASURES = {f"{ALIGNMENT}{sharp}measure" for sharp in ("#", "")}
NEGATED = f"{BIOLINK}negated"
DENIED = ""  # the relation of an association that says that something is not so
SIGNS = {"=": f"{SKOS}exactMatch", "<": f"{SKOS}broadMatch", ">": f"{SKOS}narrowMatch"}
# Names of the relations that OBO's ontologies share: most refer to them by number, and import their names.
_RELATIONS = """
BFO_0000050 part of|BFO_0000051 has part|BFO_0000054 realized in|BFO_0000055 realizes
BFO_0000062 preceded by|BFO_0000063 precedes|BFO_0000066 occurs in|BFO_0000067 contains process
RO_0000052 characteristic of|RO_0000053 has characteristic|RO_0000056 participates in
RO_0000057 has participant|RO_0000058 is concretized as|RO_0000059 concretizes|RO_0000079 function of
RO_0000080 quality of|RO_0000081 role of|RO_0000085 has function|RO_0000086 has quality|RO_0000087 has role
RO_0000091 has disposition|RO_0000092 disposition of|RO_0001000 derives from|RO_0001001 derives into
RO_0001015 location of|RO_0001018 contained in|RO_0001019 contains|RO_0001025 located in
RO_0002000 2D boundary of|RO_0002002 has 2D boundary|RO_0002007 bounding layer of|RO_0002150 continuous with
RO_0002160 only in taxon|RO_0002162 in taxon|RO_0002170 connected to|RO_0002176 connects
RO_0002180 has component|RO_0002200 has phenotype|RO_0002201 phenotype of|RO_0002202 develops from
RO_0002203 develops into|RO_0002211 regulates|RO_0002212 negatively regulates
RO_0002213 positively regulates|RO_0002215 capable of|RO_0002216 capable of part of
RO_0002218 has active participant|RO_0002219 surrounded by|RO_0002220 adjacent to|RO_0002221 surrounds
RO_0002233 has input|RO_0002234 has output|RO_0002314 characteristic of part of
RO_0002328 functionally related to|RO_0002331 involved in|RO_0002350 member of|RO_0002351 has member
RO_0002352 input of|RO_0002353 output of|RO_0002434 interacts with|RO_0002436 molecularly interacts with
RO_0002451 transmitted by|RO_0002452 has symptom|RO_0002502 depends on|RO_0002503 towards
RO_0002505 has intermediate|RO_0002559 causally influenced by|RO_0002566 causally influences
RO_0002573 has modifier|RO_0002604 is opposite of|RO_0002610 correlated with|RO_0003000 produces
RO_0003001 produced by|RO_0015007 increased in magnitude relative to
RO_0015008 decreased in magnitude relative to|RO_0015012 reciprocal of
"""
RELATIONS = {
    f"{OBO}{label}": name
    for label, _, name in (row.partition(" ") for row in _RELATIONS.strip().replace("\n", "|").split("|"))
}

# ISO 639-1's two letters of a language, and its three letters by ISO 639-2 and 639-3.
_LANGUAGES = (
    "aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak be:bel "
    "bg:bul bh:bih bi:bis bm:bam bn:ben bo:bod:tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre "
    "cs:ces:cze cu:chu cv:chv cy:cym:wel da:dan de:deu:ger dv:div dz:dzo ee:ewe el:ell:gre en:eng eo:epo "
    "es:spa et:est eu:eus:baq fa:fas:per ff:ful fi:fin fj:fij fo:fao fr:fra:fre fy:fry ga:gle gd:gla "
    "gl:glg gn:grn gu:guj gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv ht:hat hu:hun hy:hye:arm hz:her "
    "ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido is:isl:ice it:ita iu:iku ja:jpn jv:jav ka:kat:geo "
    "kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir "
    "la:lat lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub lv:lav mg:mlg mh:mah mi:mri:mao mk:mkd:mac "
    "ml:mal mn:mon mr:mar ms:msa:may mt:mlt my:mya:bur na:nau nb:nob nd:nde ne:nep ng:ndo nl:nld:dut "
    "nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol ps:pus "
    "pt:por qu:que rm:roh rn:run ro:ron:rum ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag si:sin "
    "sk:slk:slo sl:slv sm:smo sn:sna so:som sq:sqi:alb sr:srp ss:ssw st:sot su:sun sv:swe sw:swa ta:tam "
    "te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah ug:uig "
    "uk:ukr ur:urd uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid yo:yor za:zha zh:zho:chi "
    "zu:zul "
)
_TWO_LETTERS = {
    code: two for two, *threes in (row.split(":") for row in _LANGUAGES.split()) for code in threes
} | {"iw": "he", "in": "id", "ji": "yi", "und": "", "zxx": "", "mis": ""}


def language_of(tag: str) -> str:
    """A language tag in lower case, with the language by ISO 639-1 where that has it.

    >>> language_of("eng"), language_of("de_AT"), language_of("GER-at"), language_of("und")
    ('en', 'de-at', 'de-at', '')
    """
    language, *more = tag.casefold().replace("_", "-").split("-")
    return "-".join([_TWO_LETTERS.get(language, language), *more]).strip("-")


@dataclass(frozen=True)
class Wanted:
    """A choice of RDF: which relations are kept, and by which predicates texts are known.

    Attributes:
        names, descriptions: further predicates, which go before those that are known.
        skip: relations whose triples, and attributes, are left out.
        keep: where there are some, the only relations that are kept.
        skip_blank: leave out the triples of blank nodes.
        skip_deprecated: leave out the triples of entities that are no longer to be used.
    """

    names: Sequence[str] = ()
    descriptions: Sequence[str] = ()
    skip: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    skip_blank: bool = False
    skip_deprecated: bool = False

    @property
    def own(self) -> dict[str, tuple[Kind, int]]:
        """The predicates that were asked for, each with kind and order."""
        given: list[tuple[Sequence[str], Kind]] = [(self.names, "name"), (self.descriptions, "description")]
        return {
            predicate: (kind, at - len(predicates))
            for predicates, kind in given
            for at, predicate in enumerate(predicates)
        }

    @property
    def texts_by(self) -> dict[str, tuple[Kind, int]]:
        """The predicates of texts, each with kind and order."""
        return {**TEXT_PREDICATES, **self.own}

    def refuses(self, relation: str) -> str:
        """Why a triple or an attribute is left out; empty where it is not."""
        if relation in self.skip:
            return "of predicates that are skipped"
        return "of predicates that are not kept" if self.keep and relation not in self.keep else ""

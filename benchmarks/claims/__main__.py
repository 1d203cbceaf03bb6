"""Test the papers' claims on real data; print for each its statement, the paper's figures, ours, and whether it holds.

    python -m benchmarks.claims HOME [--labels 6000] [--queries 12000] [--seeds 3] [--claims 1,8,13]

HOME must contain a corpus packed by `xc prepare` or `xc run`. Neighbouring labels are sampled from it, with the queries
that have one of them. Each variant is trained on that sample with its method's CPU preset and every seed, and evaluated
on up to 5,000 test queries. Its figures are stored in HOME/claims: a stopped run resumes, and claims share variants.
Every figure is a mean over seeds, with the standard deviation in parentheses. A claim that one figure exceeds another
holds if the means differ by more than their pooled standard deviation.
"""

import argparse
import os
from pathlib import Path

from benchmarks.claims.claims import CLAIMS, Claim
from benchmarks.claims.direct_claims import DIRECT_CLAIMS, DirectClaim
from benchmarks.claims.experiments import Experiments, Results


def main() -> None:
    """Train the variants without stored figures, then print a block per claim, and how many hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--labels", type=int, default=6000, help="sampled from those of the corpus")
    parser.add_argument("--queries", type=int, default=12_000, help="their training queries, 0 = all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="parallel trainings, one thread each")
    parser.add_argument("--claims", default="", help="numbers of claims, by default all")
    args = parser.parse_args()
    experiments = Experiments(args.home, labels=args.labels, queries=args.queries, seeds=args.seeds,
                              workers=args.workers)
    corpus = experiments.corpus("sample")
    print(f"{corpus.name}: {len(corpus.training_rows()):,} training queries and {corpus.n_labels:,} labels of "
          f"{len(experiments.full.training_rows()):,} and {experiments.full.n_labels:,}; {args.seeds} seeds",
          flush=True)
    numbers = {int(number) for number in args.claims.split(",") if number}
    claims = [claim for claim in sorted([*CLAIMS, *DIRECT_CLAIMS], key=lambda claim: claim.number)
              if (not numbers or claim.number in numbers) and _is_testable(claim, experiments)]
    experiments.train([variant for claim in claims if isinstance(claim, Claim) for variant in claim.variants.values()])
    hold = [_print_block(claim, experiments) for claim in claims]
    print(f"\n{sum(hold)} of {len(hold)} hold")


def _is_testable(claim: Claim | DirectClaim, experiments: Experiments) -> bool:
    """Return whether the corpus has the graphs that a claim needs."""
    return isinstance(claim, DirectClaim) or not claim.needs_graphs or bool(experiments.full.graphs)


def _print_block(claim: Claim | DirectClaim, experiments: Experiments) -> bool:
    """Print a claim, the paper's figures and ours; return whether it holds."""
    print(f"\n{claim.number}. {claim.statement}\n   paper: {claim.paper}")
    if isinstance(claim, DirectClaim):
        lines, holds = claim.test(experiments)
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
    main()

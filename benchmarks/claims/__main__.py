"""Do the papers' claims hold on real data? One block a claim: what it says, the paper's figures, ours, the verdict.

    python -m benchmarks.claims HOME [--labels 6000] [--queries 12000] [--seeds 3] [--claims 1,8,13]

HOME is one in which `xc prepare` or `xc run` has packed a corpus. Neighbouring labels are drawn from it, and with them
the queries that have one. Each variant is trained on that with its method's CPU preset and the seeds asked for, and
judged on up to 5,000 test queries; the figures are kept in HOME/claims, so that a run that was stopped goes on, and
claims share what they have in common. Every figure is a mean over seeds, with the standard deviation after it. A claim
of more or less holds if the means differ by more than their pooled standard deviation.
"""

import argparse
import os
from pathlib import Path

from benchmarks.claims.claims import CLAIMS, Claim
from benchmarks.claims.lab import Lab, Results
from benchmarks.claims.shown import SHOWN, Shown


def main() -> None:
    """Train what is missing, then print a block a claim, and how many hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--labels", type=int, default=6000, help="drawn from those of the corpus")
    parser.add_argument("--queries", type=int, default=12_000, help="training queries of theirs, 0 = all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="trained at a time, a thread each")
    parser.add_argument("--claims", default="", help="numbers, by default all")
    asked = parser.parse_args()
    lab = Lab(asked.home, labels=asked.labels, queries=asked.queries, seeds=asked.seeds, workers=asked.workers)
    corpus = lab.corpus("sample")
    print(f"{corpus.name}: {len(corpus.training_rows()):,} training queries and {corpus.n_labels:,} labels of "
          f"{len(lab.whole.training_rows()):,} and {lab.whole.n_labels:,}; {asked.seeds} seeds", flush=True)
    wanted = {int(number) for number in asked.claims.split(",") if number}
    claims = [each for each in sorted([*CLAIMS, *SHOWN], key=lambda each: each.number)
              if (not wanted or each.number in wanted) and _can_be_asked(each, lab)]
    lab.train([variant for claim in claims if isinstance(claim, Claim) for variant in claim.variants.values()])
    verdicts = [_block(claim, lab) for claim in claims]
    print(f"\n{sum(verdicts)} of {len(verdicts)} hold")


def _can_be_asked(claim: Claim | Shown, lab: Lab) -> bool:
    return isinstance(claim, Shown) or not claim.graphs or bool(lab.whole.graphs)


def _block(claim: Claim | Shown, lab: Lab) -> bool:
    """Print what a claim says and what was found; return whether it holds."""
    print(f"\n{claim.number}. {claim.says}\n   paper: {claim.paper}")
    if isinstance(claim, Shown):
        lines, holds = claim.show(lab)
    else:
        results = lab.results(claim.variants)
        lines, holds = _table(claim, results), claim.holds(results)
    print("\n".join(f"   {line}" for line in lines))
    print(f"   {'holds' if holds else 'does not hold'}", flush=True)
    return holds


def _table(claim: Claim, results: Results) -> list[str]:
    """Return a line a variant: the mean of each figure over seeds, and its standard deviation."""
    return [f"{variant:<18}" + "  ".join(
        f"{name.replace('P/', 'P@')} {results.mean(variant, name):.4g} ({results.spread(variant, name):.2g})"
        for name in claim.shown if name in results.found[variant][0]) for variant in claim.variants]


if __name__ == "__main__":
    main()

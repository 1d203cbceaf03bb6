"""The fusion trees against scikit-learn's, where features have few values so that quantile bins are exact."""

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor

from xcmodels.checks import Unusable
from xcmodels.retrieval.boosted_trees import RegressionTrees, fit_trees


def data(seed, n=3000, features=3, values=40):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, (n, features)).astype(np.float32) / 7
    y = np.sin(x[:, 0]) + (x[:, 1] > 2) * x[:, 2] + rng.normal(0, 0.3, n)
    return x, y.astype(np.float32)


def error(tree, x, y):
    return float(((tree.predict(x).astype(np.float64) - y) ** 2).sum())


@pytest.mark.parametrize(("depth", "min_leaf", "seed"), [(1, 1, 0), (2, 50, 1), (4, 20, 2), (7, 50, 3), (7, 5, 4),
                                                         (3, 600, 5), (2, 2000, 6)])
def test_as_good_a_fit_as_scikit_learns(depth, min_leaf, seed):
    x, y = data(seed)
    mine = fit_trees(x, y, depth=depth, min_leaf=min_leaf)
    theirs = DecisionTreeRegressor(max_depth=depth, min_samples_leaf=min_leaf, random_state=0).fit(x, y)
    wanted = float(((theirs.predict(x) - y) ** 2).sum())
    assert error(mine, x, y) == pytest.approx(wanted, rel=1e-5)
    leaves, counts = np.unique(mine.predict(x), return_counts=True)
    assert len(leaves) == theirs.get_n_leaves()
    assert counts.min() >= min(min_leaf, len(x))


@pytest.mark.parametrize(("trees", "rate", "depth", "seed"), [(5, 0.5, 3, 0), (20, 0.2, 4, 1), (2, 1.0, 1, 2)])
def test_boosted_trees_are_scikit_learns(trees, rate, depth, seed):
    x, y = data(seed)
    mine = fit_trees(x, y, trees=trees, rate=rate, depth=depth, min_leaf=20)
    theirs = GradientBoostingRegressor(n_estimators=trees, learning_rate=rate, max_depth=depth, min_samples_leaf=20,
                                       init="zero", random_state=0).fit(x, y)
    assert mine.value.shape == (trees, 2**depth)
    assert error(mine, x, y) == pytest.approx(float(((theirs.predict(x) - y) ** 2).sum()), rel=1e-4)
    assert error(mine, x, y) < error(fit_trees(x, y, trees=trees - 1, rate=rate, depth=depth, min_leaf=20), x, y)


@pytest.mark.parametrize("seed", range(3))
def test_zero_one_targets_and_the_defaults(seed):
    x, y = data(seed)
    y = (y > 1).astype(np.float32)
    mine, theirs = fit_trees(x, y), DecisionTreeRegressor(max_depth=7, min_samples_leaf=50, random_state=0).fit(x, y)
    assert error(mine, x, y) == pytest.approx(float(((theirs.predict(x) - y) ** 2).sum()), rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_splits_are_where_the_few_relevant_pairs_are(seed):
    """One pair in a hundred: by plain quantiles a tree explains 94 to 96% of what the exact one does."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50_000, 3)).astype(np.float32)
    y = (rng.random(len(x)) < (x[:, 1] > -1) / (1 + np.exp(-4 * (x[:, 0] - 2.6)))).astype(np.float32)
    exact = DecisionTreeRegressor(max_depth=4, min_samples_leaf=20, random_state=0).fit(x, y)
    nothing, mine = float(((y - y.mean()) ** 2).sum()), error(fit_trees(x, y, depth=4, min_leaf=20), x, y)
    assert 0.005 < y.mean() < 0.01
    assert nothing - mine > 0.98 * (nothing - float(((exact.predict(x) - y) ** 2).sum()))


def test_continuous_features_are_nearly_as_good():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 2)).astype(np.float32)
    y = (np.sin(3 * x[:, 0]) * x[:, 1]).astype(np.float32)
    theirs = DecisionTreeRegressor(max_depth=6, min_samples_leaf=20).fit(x, y)
    wanted = float(((theirs.predict(x) - y) ** 2).sum())
    assert error(fit_trees(x, y, depth=6, min_leaf=20), x, y) < 1.1 * wanted


def test_a_row_alone_has_the_value_that_it_has_among_others():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)).astype(np.float32)
    made = fit_trees(x, (x.sum(1) + rng.normal(size=600)).astype(np.float32), trees=10, rate=0.3, depth=5, min_leaf=5)
    assert [made.predict(x[i:i + 1])[0] for i in range(len(x))] == made.predict(x).tolist()


def test_save_and_load(tmp_path):
    x, y = data(0)
    tree = fit_trees(x, y, depth=4)
    tree.save(tmp_path / "tree.npz")
    again = RegressionTrees.load(tmp_path / "tree.npz")
    assert np.array_equal(again.predict(x), tree.predict(x))
    assert all(np.array_equal(getattr(again, name), getattr(tree, name)) for name in ("feature", "threshold", "value"))


def test_constant_features_give_the_mean():
    x, y = np.full((200, 3), 2.5, np.float32), data(0, n=200)[1]
    tree = fit_trees(x, y)
    assert tree.predict(np.array([[2.5] * 3, [-9, 99, 0]], np.float32)) == pytest.approx([y.mean()] * 2, rel=1e-5)


def test_a_constant_target_and_few_rows():
    x, _ = data(0)
    assert np.array_equal(np.unique(fit_trees(x, np.ones(len(x), np.float32)).predict(x)), [1.0])
    few = fit_trees(x[:9], np.arange(9, dtype=np.float32), min_leaf=50)
    assert few.predict(x) == pytest.approx(np.full(len(x), 4.0))
    one = fit_trees(x[:1], np.array([0.25], np.float32), min_leaf=1)
    assert one.predict(x[:5]).tolist() == [0.25] * 5


def test_no_rows_is_an_error():
    with pytest.raises(Unusable, match="no text of the validation split"):
        fit_trees(np.zeros((0, 3), np.float32), np.zeros(0, np.float32))


@pytest.mark.parametrize("seed", range(3))
def test_predictions_stay_within_the_targets(seed):
    x, y = data(seed, n=700)
    rng = np.random.default_rng(seed)
    wild = np.concatenate([x, rng.normal(0, 100, (2000, 3)).astype(np.float32),
                           np.array([[np.inf] * 3, [-np.inf] * 3], np.float32)])
    predicted = fit_trees(x, y, min_leaf=1).predict(wild)
    assert predicted.dtype == np.float32
    assert y.min() - 1e-6 <= predicted.min()
    assert predicted.max() <= y.max() + 1e-6


def test_a_split_sends_its_own_threshold_left():
    x = np.repeat(np.array([[0], [1], [2]], np.float32), 100, axis=0)
    tree = fit_trees(x, (x[:, 0] > 1).astype(np.float32), depth=1, min_leaf=1)
    assert tree.threshold.tolist() == [[1.0]]
    assert tree.predict(np.array([[0], [1], [1.0001], [2]], np.float32)).tolist() == [0, 0, 1, 1]

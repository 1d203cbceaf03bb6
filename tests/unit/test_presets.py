"""Presets and overrides: every setting has one key, and a wrong key or value says what is right."""

import pytest

from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.preset_parts import BOOSTED, BOOSTED_WEIGHT_2
from xcmodels.methods.presets import PRESETS, ends_before_mining, explained, flat, nearest, resolve
from xcmodels.retrieval.serving_config import FUSED


def test_overrides_take_the_type_of_their_setting():
    made = resolve("ngame", "cpu", {"m1.epochs": "5", "prepare.augment": "TRUE", "m2.dropout": "0.25", "index": "hnsw",
                                    "seed": "7", "encoder.source": "random", "m1.lr": "1e-4", "encoder.tied": "false"})
    assert (made.method.m1.epochs, made.prepare.augment, made.method.m2.dropout) == (5, True, 0.25)
    assert (made.method.index, made.method.seed, made.seed) == ("hnsw", 7, 7)
    assert (made.method.encoder.source, made.method.m1.lr, made.method.encoder.tied) == ("random", 1e-4, False)
    assert isinstance(made.method.m1.epochs, int)


def test_an_override_changes_nothing_else():
    before, after = flat(resolve("ngame", "cpu", {})), flat(resolve("ngame", "cpu", {"m2.margin": "0.125"}))
    assert {key for key in before if before[key] != after[key]} == {"m2.margin"}
    assert flat(resolve("ngame", "cpu", {})) == before


@pytest.mark.parametrize("preset", sorted(PRESETS["ngame"]))
def test_every_flat_key_is_an_override_and_goes_round(preset):
    settings = resolve("ngame", preset, {})
    keys = flat(settings)
    assert {"m1.epochs", "m2.table_lr", "encoder.kind", "fusion.depth", "prepare.max_title", "seed"} <= set(keys)
    assert not any(key.startswith("method.") for key in keys)
    for base in PRESETS["ngame"]:
        assert resolve("ngame", base, {key: str(value) for key, value in keys.items()}) == settings


@pytest.mark.parametrize("kind", [bool, int, float, str])
def test_every_setting_can_be_moved_alone(kind):
    keys = {key: value for key, value in flat(resolve("ngame", "cpu", {})).items() if type(value) is kind}
    assert keys
    for key, value in keys.items():
        another = {"kind": "transformer", "index": "hnsw", "serve": "sum", "table_dtype": "bfloat16",
                   "table_moments": "rowwise"}.get(key.rpartition(".")[2], "other")
        moved = {bool: not value, int: 17, float: 0.625, str: another}[kind]
        assert flat(resolve("ngame", "cpu", {key: str(moved)}))[key] == moved


@pytest.mark.parametrize(("key", "meant"), [("m1.epohcs", "m1.epochs"), ("prepare.augmnt", "prepare.augment"),
                                            ("encoder.knd", "encoder.kind"), ("sed", "seed"), ("indx", "index"),
                                            ("fusion.shortlst", "fusion.shortlist"), ("encodr", "encoder"),
                                            ("prepar.leak_share", "prepare.leak_share")])
def test_a_misspelt_key_gives_the_nearest(key, meant):
    with pytest.raises(ValueError) as caught:
        resolve("ngame", "cpu", {key: "1"})
    assert str(caught.value) == f"no setting {key!r}, did you mean {meant!r}?"


def test_what_is_near_nothing_gets_every_group_and_a_method_without_a_preset_a_remedy(monkeypatch):
    with pytest.raises(ValueError, match=r"'zzz'; known: prepare, serve, fusion, index, m1, m2, encoder, seed$"):
        resolve("ngame", "cpu", {"zzz": "1"})
    monkeypatch.setitem(PRESETS, "renee", {})
    with pytest.raises(ValueError, match=r"method 'renee' has no preset; add one in its folder's presets\.py"):
        resolve("renee", "cpu", {})


@pytest.mark.parametrize("key", ["", "m1", "prepare", "prepare.", "m1.", ".epochs", "m1.epochs.x", "method.seed",
                                 "__class__", "m1.__doc__", "zzz"])
def test_what_is_no_setting(key):
    with pytest.raises(ValueError, match="no setting"):
        resolve("ngame", "cpu", {key: "1"})


@pytest.mark.parametrize(("key", "value", "message"), [
    ("m1.epochs", "many", "m1.epochs must be a whole number, got 'many'"),
    ("m1.epochs", "1.5", "m1.epochs must be a whole number, got '1.5'"),
    ("m2.dropout", "", "m2.dropout must be a number, got ''"),
    ("prepare.augment", "yes", "prepare.augment must be true or false, got 'yes'")])
def test_a_value_that_does_not_fit(key, value, message):
    with pytest.raises(ValueError) as caught:
        resolve("ngame", "cpu", {key: value})
    assert str(caught.value) == message


def test_a_misspelt_method_or_preset():
    with pytest.raises(ValueError, match="no method 'ngmae', did you mean 'ngame'"):
        resolve("ngmae", "cpu", {})
    with pytest.raises(ValueError, match="no preset 'minlm', did you mean 'minilm'"):
        resolve("ngame", "minlm", {})


def test_nearest():
    assert nearest("qqq", ["one", "two"]) == "; known: one, two"
    assert nearest("onne", ["one", "two"]) == ", did you mean 'one'?"


@pytest.mark.parametrize("preset", sorted(PRESETS["ngame"]))
def test_the_rounds_of_a_preset_cover_every_epoch_once(preset):
    method = ngame(resolve("ngame", preset, {}).method)
    for stage in method.stages:
        rounds = stage.rounds
        assert [epoch for each in rounds for epoch in range(each.first, each.stop)] == list(range(stage.plan.epochs))
        assert [each.index for each in rounds] == list(range(len(rounds)))
        sizes = [each.cluster_size for each in rounds if each.mines]
        assert sizes == sorted(sizes)
        assert max(sizes, default=0) <= min(stage.plan.batch_size, 512)


def test_ngames_table_9():
    for row, batch, epochs, length in (("lf-amazontitles-131k", 1600, 300, 32), ("lf-amazontitles-1.3m", 1600, 300, 32),
                                       ("lf-amazon-131k", 350, 300, 128), ("lf-wikiseealso-320k", 350, 300, 128),
                                       ("lf-wikipedia-500k", 256, 40, 256)):
        settings = resolve("ngame", row, {})
        made = settings.method
        assert (made.m1.batch_size, made.m1.epochs, made.m1.lr) == (batch, epochs, 1e-4)
        assert (made.m1.refresh_every, made.m1.double_every, made.m1.margin, made.m2.table_lr) == (5, 25, 0.3, 0.001)
        assert made.m1.positives == 1       # "only one positive label was randomly sampled for each data point"
        assert (made.fusion.depth, made.fusion.trees, made.fusion.weight) == (7, 1, 1)   # "a standard regression tree"
        assert made.encoder.tied            # one encoder for data points and labels
        assert settings.prepare.validation_max == 10_000            # "around 10K data points"
        assert settings.prepare.max_title == 32
        assert length == 32 or settings.prepare.max_title + settings.prepare.max_content == length


def test_ramens_table_10_and_unidecs_table_2():
    made = resolve("ramen", "lf-wikiseealsotitles-320k", {}).method
    assert (made.base.m1.batch_size, made.base.m1.epochs, made.base.m1.lr, made.base.m1.refresh_every) == (
        1024, 300, 2e-4, 5)
    assert (made.base.m2.positives, made.base.m2.negatives, made.graph.margin, made.graph.adapt) == (2, 12, 0.3, True)
    for method, row, batch, dim in (
            ("unidec", "lf-amazon-131k", 576, 384), ("unidec", "lf-wikiseealso-320k", 677, 384),
            ("unidec", "lf-amazontitles-1.3m", 1098, 256), ("depsl", "lf-wikipedia-500k", 221, 384),
            ("depsl", "lf-amazontitles-1.3m", 2200, 384), ("dexml", "lf-amazontitles-1.3m", 8192, 384)):
        made = resolve(method, row, {}).method
        assert (made.batch_size, made.lr, made.label_lr, made.refresh_every, made.dim) == (batch, 1e-4, 1e-3, 5, dim)
        assert made.serve != "fused"


@pytest.mark.parametrize("name", ["ngame", "unidec", "depsl", "astra", "siamesexml", "siamesexml++"])
def test_published_methods_rank_fused_on_a_cpu(name):
    for preset in ("cpu", "cpu-learned"):
        method = resolve(name, preset, {}).method
        assert (method.serve, method.fusion) == (FUSED, BOOSTED if name in ("ngame", "unidec") else BOOSTED_WEIGHT_2)


def test_a_preset_for_numbered_labels_reads_no_label_texts():
    for name in ("astra", "renee"):
        assert not METHODS[name].make(resolve(name, "cpu-numbered", {}).method).needs_label_texts
        assert METHODS[name].make(resolve(name, "cpu", {}).method).needs_label_texts


def test_presets_name_a_known_method_and_say_what_they_are_for():
    assert set(PRESETS) == set(METHODS)
    for method, named in PRESETS.items():
        assert {"cpu", "cpu-learned"} <= set(named)
        assert all(len(each.about) > 20 for each in named.values())
        assert all(METHODS[method].make(resolve(method, name, {}).method).rounds for name in named)


@pytest.mark.parametrize("method", sorted(PRESETS))
def test_every_setting_is_explained(method):
    """By the comment beside its field: a setting without one, or with a word alone, ends here."""
    for preset in PRESETS[method].values():
        told = explained(preset.settings())
        assert list(told) == list(flat(preset.settings()))
        assert not {key: text for key, text in told.items() if len(text.split()) < 3}


def test_a_setting_says_what_it_is_where_it_stands():
    """What a schedule has it explains itself, and UniDEC says again what its own default is."""
    told = explained(resolve("ramen-unidec", "cpu", {}))
    assert told["base.refresh_every"] == "tau: epochs between two refreshes"
    assert explained(resolve("ngame", "cpu", {}))["m1.refresh_every"] == "tau, tau_r: epochs between two refreshes"
    assert told["base.encoder.kind"] == "bag | transformer | both: a learned vector a token, summed; a language model"


def test_settings_that_depend_on_each_other_come_in_any_order():
    for pairs in ((("balance", "1"), ("serve", "encoder")), (("serve", "encoder"), ("balance", "1"))):
        assert resolve("unidec", "cpu", dict(pairs)).method.serve == "encoder"
    with pytest.raises(ValueError, match="balance: serve must be encoder or fused where balance is 1"):
        resolve("unidec", "lf-amazon-131k", {"balance": "1"})


@pytest.mark.parametrize(("key", "value", "said"), [
    ("encoder.sums", "0", "encoder.sums: sums must be at least 1, got 0"),
    ("encoder.places", "0", "encoder.places: sums must be 1 where places is 0, got 2"),
    ("encoder.token_dropout", "1", "encoder.token_dropout: token_dropout must be at least 0 and below 1, got 1.0"),
    ("fusion.trees", "0", "fusion.trees: trees must be at least 1, got 0"),
    ("fusion.rate", "1.5", "fusion.rate: rate must be between 0 and 1, got 1.5"),
    ("m1.epochs", "-1", "m1.epochs: epochs must be at least 1, got -1"),
    ("m1.epochs", "10001", "m1.epochs: epochs must be at most 10000, got 10001"),
    ("m1.cluster_max", "4", "m1.cluster_max: cluster_max must be at least cluster_size, 8, got 4"),
    ("m1.batch_size", "0", "m1.batch_size: batch_size must be at least 1, got 0"),
    ("m1.lr", "nan", "m1.lr: lr must be a finite number, 0 or more, got nan"),
    ("m2.dropout", "7", "m2.dropout: dropout must be at least 0 and below 1, got 7.0"),
    ("m1.mined", "-1", "m1.mined: mined must be 0 or more, got -1"),
    ("encoder.kind", "gru", "encoder.kind: kind must be one of bag, transformer, both, got 'gru'"),
    ("index", "flat", "index: index must be one of auto, exact, quantised, hnsw, grouped, got 'flat'"),
    ("prepare.max_title", "0", "prepare.max_title: max_title must be at least 1, got 0"),
    ("prepare.validation", "0", "prepare.validation: validation must be above 0, got 0.0: confidences are fitted on"),
    ("prepare.validation_max", "0", "prepare.validation_max: validation_max must be at least 1, got 0"),
    ("fusion.depth", "40", "fusion.depth: depth must be at most 20, got 40"),
    ("fusion.weight", "1e39", "fusion.weight: weight must be at most 1000, got 1e"),
    ("m1.lr", "inf", "m1.lr: lr must be a finite number, 0 or more, got inf"),
    ("prepare.validation", "1", "prepare.validation: validation must be at least 0 and below 1, got 1.0"),
    ("prepare.leak_share", "2", "prepare.leak_share: leak_share must be between 0 and 1, got 2.0"),
    ("prepare.drift_fail", "nan", "prepare.drift_fail: drift_fail must be a finite number, 0 or more, got nan"),
])
def test_a_value_that_cannot_be_trained_with_is_refused(key, value, said):
    with pytest.raises(ValueError, match=said):
        resolve("ngame", "cpu", {key: value})


@pytest.mark.parametrize(("method", "changed", "said"), [
    ("ramen", {"base.m1.cluster_size": "0"}, "base.m1.cluster_size: graph.prune must be false where the base mines "),
    ("ramen-ance", {"base.negatives": "0"}, "base.negatives: graph.prune must be false"),
    ("ramen", {"graph.augment": "true"}, "graph.augment must be false over a base that trains its classifiers in a ")])
def test_graphs_need_a_base_that_does_what_they_ask(method, changed, said):
    with pytest.raises(ValueError, match=said):
        resolve(method, "cpu", changed)
    if "graph.augment" not in changed:
        assert not resolve(method, "cpu", changed | {"graph.prune": "false"}).method.graph.prune


def test_only_the_setting_that_is_refused_is_named():
    for pairs in ((("m2.unit", "true"), ("m2.epochs", "0")), (("m2.epochs", "0"), ("m2.unit", "true"))):
        with pytest.raises(ValueError, match=r"^m2\.epochs: epochs must be at least 1, got 0$"):
            resolve("ngame", "cpu", dict(pairs))


@pytest.mark.parametrize(("method", "changed", "named"), [
    ("ance", {"epochs": "3"}, ["refresh_from"]), ("ance", {"epochs": "4"}, []), ("dpr", {"epochs": "3"}, []),
    ("ngame", {"m1.epochs": "3", "m2.epochs": "6"}, ["m1.refresh_from", "m2.refresh_from"]),
    ("ngame", {"m1.epochs": "3", "m1.cluster_size": "0"}, []),
    ("ngame", {"m1.epochs": "3", "m1.cluster_size": "0", "m1.mined": "2"}, ["m1.refresh_from"]),
    ("ramen", {"base.m1.epochs": "2"}, ["base.m1.refresh_from"])])
def test_a_stage_that_ends_before_it_would_mine_is_told(method, changed, named):
    assert ends_before_mining(method, "cpu", changed) == named


@pytest.mark.parametrize(("method", "preset"), [(method, preset) for method in PRESETS for preset in PRESETS[method]])
def test_every_preset_mines_what_it_is_to(method, preset):
    assert not ends_before_mining(method, preset, {})


def test_a_preset_without_its_method_is_refused(cli):
    code, out, err = cli("presets", "--preset", "cpu-quick")
    assert code == 2 and not out and "no --method is given" in err and "--method NAME --preset cpu-quick" in err


@pytest.mark.parametrize(("method", "rate"), [
    ("ngame", "m1.table_lr"), ("astra", "m1.table_lr"), ("unidec", "token_lr"), ("siamesexml", "siamese.table_lr")])
def test_tokens_that_start_at_random_train_at_three_times_the_rate(method, rate):
    packaged, learned = (flat(resolve(method, preset, {})) for preset in ("cpu", "cpu-learned"))
    assert learned[rate] == 3 * packaged[rate] > 0
    changed = {key for key in packaged if packaged[key] != learned[key]}
    assert changed == {rate, "prepare.tokenizer", "encoder.source", "encoder.idf_power"}

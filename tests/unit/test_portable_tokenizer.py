"""A tokenizer that is exported reads of a text as much as xcflow does."""

import pytest

from tasks.export.portable_tokenizer import portable
from tests.support.tiny import LABELS
from xcmodels.data.text import clean
from xcmodels.data.tokens import Tokenizer, learn_backend


@pytest.mark.parametrize("limit", [1, 2, 192, 2048])
def test_a_text_of_any_limit_is_cut_at_the_same_character(limit):
    tokenizer = Tokenizer(learn_backend(LABELS, 200), max_title=limit, max_content=0)
    cut, normalise = portable(tokenizer, limit).normalizer.normalize_str, tokenizer.backend.normalizer.normalize_str
    for length in (0, 1, 64 * limit - 1, 64 * limit, 64 * limit + 1, 200 * limit):
        text = "\n seal" * length
        text = text.lstrip()[:length]
        assert cut("  " + text) == normalise(clean(text[:64 * limit]))

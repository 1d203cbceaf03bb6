"""Settings of the tables trained by rows: the type of their values, and the moments that are kept."""

from dataclasses import dataclass

from xcmodels import checks
from xcmodels.nn.row_table import DTYPES
from xcmodels.training_plan import RowRule


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """The tables of a module: token embeddings, classifiers or both."""

    table_dtype: str = "float32"   # float32 | bfloat16 (rounded stochastically): of token embeddings and classifiers
    table_moments: str = "full"    # full | rowwise: optimiser moments kept for each value, or one or two for each row

    def __post_init__(self) -> None:
        checks.one_of(self, table_dtype=tuple(DTYPES), table_moments=("full", "rowwise"))

    def rule(self, lr: float, momentum: float | None = None, weight_decay: float = 0.0) -> RowRule:
        """Return how a table is trained at rate `lr`: by SGD where `momentum` is given, otherwise by Adam."""
        return RowRule(lr, momentum, weight_decay, self.table_moments == "rowwise")

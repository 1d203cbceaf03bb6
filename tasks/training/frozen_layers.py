"""The step that runs a transformer's frozen layers: what trains, mines and embeds begins at the layers above."""

from tasks.core.step import StepContext
from xcmodels.data.corpus import Corpus
from xcmodels.nn.devices import fast_products
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.training.frozen_layers import write_states


@fast_products()
def run_frozen_layers(config: EncoderConfig, graphs: bool, context: StepContext) -> None:
    """Write what the frozen layers make of a corpus's texts, and of its anchors if `graphs`."""
    count = write_states(Corpus(context.inputs["corpus"]), config, context.out, graphs=graphs)
    context.say(f"{count:,} tokens and marks")

"""The step that runs a transformer's frozen layers: what trains, mines and embeds begins at the layers above."""

import time

from tasks.core.step import StepContext
from xcmodels.data.corpus import Corpus
from xcmodels.nn.devices import fast_products
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.training.frozen_layers import write_states

SAY_EVERY = 30.0    # seconds


@fast_products()
def run_frozen_layers(config: EncoderConfig, graphs: bool, context: StepContext) -> None:
    """Write what the frozen layers make of a corpus's texts, and of its anchors if `graphs`."""
    said = time.monotonic()

    def report(written: int, of: int) -> None:
        nonlocal said
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            context.say(f"{written:,} of {of:,} tokens and marks")

    count = write_states(Corpus(context.inputs["corpus"]), config, context.out, graphs=graphs, report=report)
    context.say(f"{count:,} tokens and marks")

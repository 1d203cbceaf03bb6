"""The step of the frozen layers: what they make of every text, from which all that trains and embeds begins."""

from tasks.core.step import StepContext
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method
from xcmodels.nn.devices import fast_products
from xcmodels.training.frozen_layers import write_states


@fast_products()
def run_frozen_layers(method: Method, context: StepContext) -> None:
    """Write the states of the corpus's texts that reach the layers that are trained."""
    count = write_states(Corpus(context.inputs["corpus"]), method.encoder, context.out, graphs=method.needs_graphs)
    context.say(f"{count:,} tokens and marks")

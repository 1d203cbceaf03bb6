"""The steps of training: who trains, mines and embeds, by which processes."""

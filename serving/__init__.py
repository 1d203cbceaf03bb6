"""HTTP server that predicts the labels of texts, with a page to try it."""

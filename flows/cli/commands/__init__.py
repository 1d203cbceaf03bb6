"""The commands of `xc`, a module a kind; heavy libraries are imported inside them, so that help is instant."""

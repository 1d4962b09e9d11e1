"""One file a patch: its story (a `Patch` literal) and its wrapper. Generated tables name them; nothing imports all."""

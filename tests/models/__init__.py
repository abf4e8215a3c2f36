"""Small models of many kinds, each with what is true of it, to test readers of models with."""

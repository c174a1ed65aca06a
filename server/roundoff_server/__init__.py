"""The roundoff server: takes batches, keeps them, answers history, raises alerts."""

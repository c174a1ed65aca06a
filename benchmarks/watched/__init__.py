"""Optimizers of several libraries under a watch: who they are, what they train, what a watch of them takes."""

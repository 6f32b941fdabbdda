"""CLER: equivariant regularisation for online continual learning."""

__version__ = "0.1.0"

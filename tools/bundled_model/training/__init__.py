"""Training of the bundled model with PyTorch."""

"""Training, measurement and export of the bundled model."""

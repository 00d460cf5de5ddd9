"""Home Assistant: what a gateway tells it, so that its cameras and answers appear by themselves."""

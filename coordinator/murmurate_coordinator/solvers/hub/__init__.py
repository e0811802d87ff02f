"""Rules under which every member holds the whole model."""

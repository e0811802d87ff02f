"""Settings, addresses and the fields of messages, with their limits: no file, no environment."""

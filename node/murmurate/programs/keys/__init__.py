"""What a program is told: from a file, the environment and the command line."""

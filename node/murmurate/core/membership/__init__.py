"""Who is there: failure detection, rumours, and how long each waits."""

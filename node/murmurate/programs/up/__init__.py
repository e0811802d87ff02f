"""`murmurate up`: a swarm of real processes on this machine."""

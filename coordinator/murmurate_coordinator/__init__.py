"""The optional coordinator: hands out and assembles subnets, or acts as the hub."""

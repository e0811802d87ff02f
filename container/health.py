"""HEALTHCHECK: whether the program in this container is alive. Kubernetes has its own probes."""

import os
import sys
import urllib.request

listen = os.environ.get("MURMURATE_METRICS_LISTEN", "0.0.0.0:9464")
place = listen.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
try:
    with urllib.request.urlopen(f"http://{place}/livez", timeout=2) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(str(error))

"""HEALTHCHECK: whether the program in this container is alive. Kubernetes has its own probes."""

import sys
import urllib.request

try:
    with urllib.request.urlopen("http://127.0.0.1:9464/livez", timeout=2) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(str(error))

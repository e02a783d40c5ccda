# Everything a developer runs. `make help` lists it; `make demo` and `make test` need nothing else on a fresh machine.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
RUN := PYTHONPATH=operator:profiler_job:dev $(VENV)/bin/python
PYTEST := $(VENV)/bin/pytest
# Side by side; tests of one file stay together, for they share what is costly to make.
PYTEST_LIGHT := $(PYTEST) --numprocesses=logical --maxprocesses=8 --dist=loadfile

.PHONY: help demo demo-down test soak soak-operator test-fast test-api test-engine test-e2e test-gpu lint format rooms crds golden \
        locks image cluster-up cluster-down clean bench-profile bench-serving bench-repeat bench-operator

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.made: locks/dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specserve is developed with Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r locks/dev.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable .
	touch $@

venv: $(VENV)/.made  ## the development environment in .venv, specserve-profile and specserve-operator included

demo: venv  ## the main job end to end, on the embedded cluster or on that of KUBECONFIG
	$(RUN) -m demo run

demo-down: venv  ## take away what the demo made
	$(RUN) -m demo down

test: lint test-fast test-api test-engine test-e2e  ## everything: the real cluster and the real vLLM included

test-fast: venv  ## what needs neither cluster nor engine
	$(PYTEST_LIGHT) tests/unit tests/manifests

soak: venv  ## the same with simulations and searches at full length: the figures of docs/method.md
	SPECSERVE_SOAK=1 $(PYTEST_LIGHT) tests/unit
	SPECSERVE_SOAK=1 $(PYTEST) tests/api/test_faults.py

soak-operator: venv  ## three million random steps of the operator in its simulated cluster, on all cores (30 minutes on 2)
	$(RUN) -m tests.unit.operator.model.walk 3000000

test-api: venv  ## against a real API server
	$(PYTEST_LIGHT) tests/api

test-engine: venv  ## the profiler with a real vLLM on the CPU
	$(RUN) -m demo prepare --engine
	$(PYTEST_LIGHT) -m "not timed" tests/engine
	$(PYTEST) -m timed tests/engine

test-e2e: venv  ## on the embedded cluster: real kubelet, real vLLM, the operator from its chart
	$(RUN) -m demo prepare
	$(PYTEST) tests/cluster
	$(PYTEST) tests/e2e

test-gpu: venv  ## marked tests that need a GPU and a vLLM built for it
	$(PYTEST) tests/gpu

bench-profile: venv  ## one boot per K against one boot for all: time to the same interval (17 minutes)
	$(RUN) -m bench profile

bench-serving: venv  ## closed loops of no speculation, each fixed K and the table; draws docs/images/serving.svg (15 minutes)
	$(RUN) -m bench serving

bench-repeat: venv  ## five profiles in a row, other load during two: how much their tables differ (15 minutes)
	$(RUN) -m bench repeat

bench-operator: venv  ## the operator on up to 5,000 nodes and 1,000 servings, beside a bare client (an hour)
	$(RUN) -m bench operator --nodes 500,5000 --servings 100,1000 --namespaces 1,100 --quiet-seconds 120 \
	  --foreign-pods 50000 --changes 40

lint: venv  ## ruff, mypy --strict, the rooms (import-linter)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	PYTHONPATH=operator:profiler_job:dev $(VENV)/bin/lint-imports
	$(RUN) -m rooms check

rooms: venv  ## the picture and the table of rooms in docs/architecture.md, from the imports
	$(RUN) -m rooms write

format: venv  ## let ruff lay the code out
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

crds: venv  ## CRD and reference from the models
	$(RUN) -m specserve_operator.api.crd > crds/speculativeservings.yaml
	cp crds/speculativeservings.yaml charts/specserve/files/
	$(RUN) -m specserve_operator.api.docs > docs/resource.md

golden: venv  ## rewrite the golden manifests; read the difference before you commit it
	SPECSERVE_GOLDEN=write $(PYTEST) tests/manifests

locks: venv  ## compile the lock files anew from pyproject.toml
	$(RUN) -m devcluster locks

image: venv  ## the operator's image as a tar, without a container engine
	$(RUN) -m devcluster image operator

cluster-up: venv  ## the embedded cluster alone
	$(RUN) -m devcluster up

cluster-down: venv  ## take it away
	$(RUN) -m devcluster down

clean:  ## forget the development environment (caches outside the checkout stay)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist

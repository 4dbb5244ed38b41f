# Every target sets up what it needs. `make help` lists them.
PYTHON ?= python3
ENGINE ?= yes
VENV := .venv/bin
SHELL := /bin/bash
# Keep compiled imports whatever the shell sets: otherwise each process that imports torch takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
# The cache of locked packages is shared between checkouts, which saves three minutes in a fresh one.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/trainfleet/mypy

# The files with tests that start launches: collecting all others would take half a minute.
LAUNCHES = $(shell grep -rl --include='test_*.py' 'mark\.launch' tests)

.PHONY: help setup release tag knowledge facts stores demo test test-deep test-cluster test-cluster-deep lint format lock docs docs-serve bench-smoke bench gpu-check clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: ## A .venv with the locked packages, then the Pulumi engine (about 4 min the first time)
	@$(PYTHON) tools/setup.py $(if $(filter no,$(ENGINE)),--no-engine)

knowledge: setup ## Write the tables of what providers do with changes (INPUTS=FILE, CHECK=yes only compares; docs/knowledge.md)
	@$(VENV)/python -W ignore -m tools.knowledge $(or $(INPUTS),$(error INPUTS=FILE names the sources, see docs/knowledge.md)) $(if $(filter yes,$(CHECK)),--check)

facts: setup ## Collect the API facts of AWS and Google Cloud again, from pinned packages (docs/clouds.md)
	@$(VENV)/python -m pip install --quiet --no-deps --upgrade --target build/facts --requirement tools/api_facts/inputs.txt
	@$(VENV)/python -W ignore -m tools.api_facts.gather_aws --models build/facts
	@$(VENV)/python -W ignore -m tools.api_facts.gather_gcp --documents build/facts/googleapiclient/discovery_cache/documents

demo: setup ## Rehearse an AWS platform, then train, kill, resume and report
	@$(VENV)/python tools/demo.py

stores: setup # Build the S3 gateway, the GCS server and Azurite for tests and benchmarks
	@$(VENV)/python -m trainfleet.local_cluster.stores

test: stores ## Every test except the long ones; no root, no account
	@$(VENV)/python -m pytest -m "not deep and not launch" -n 3 --dist worksteal --durations 25
	@$(VENV)/python -m pytest -m "launch and not deep" $(LAUNCHES)

test-deep: stores ## The long tests: ten kills, a fault at every resource
	@$(VENV)/python -m pytest -m "deep and not launch" -n 2 --dist worksteal --timeout 3600 --durations 15
	@$(VENV)/python -m pytest -m "deep and launch" $(LAUNCHES) --timeout 3600 --durations 15

test-cluster: stores ## A real Kubernetes on this machine, and launches on it (Linux, root; about 40 min, 12 more the first time)
	@$(VENV)/python -m tests.cluster.install
	@$(VENV)/python -m pytest -m "cluster and not deep$(if $(SHORT), and not slow)" tests/cluster --timeout 3600 --durations 25

test-cluster-deep: stores ## The long cluster tests: three nodes, the queue, runbooks, every store and launcher, the image (Linux, root)
	@$(VENV)/python -m tests.cluster.install
	@$(VENV)/python -m pytest -m "cluster and deep" tests/cluster --timeout 3600 --durations 25

lint: setup ## Ruff, mypy (strict), import boundaries, spelling, vocabulary, generated pages, held-out mistakes
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy --num-workers 2
	@$(VENV)/lint-imports
	@git ls-files -z | xargs -0 $(VENV)/codespell
	@$(VENV)/python -m tools.vocabulary
	@$(VENV)/python -m tools.reference --check
	@$(VENV)/python -m tools.security --check
	@$(VENV)/python -m tools.heldout

format: setup ## Format the code
	@$(VENV)/ruff check --fix-only --quiet .
	@$(VENV)/ruff format .

lock: setup ## Resolve requirements.lock again (hashes, no index)
	@$(VENV)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --all-extras pyproject.toml -o requirements.lock --quiet

docs: setup ## The documentation site in site/, without a network (open site/index.html)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build

docs-serve: setup ## The site on this machine, built again after each change
	@NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs serve --no-strict

bench-smoke: setup ## The short form of each benchmark
	@$(VENV)/python -m benchmarks.preview --smoke
	@$(VENV)/python -m benchmarks.diff --smoke
	@$(VENV)/python -m benchmarks.overhead --smoke
	@$(VENV)/python -m benchmarks.gpu --smoke --recipe "lm-tiny like lm-1b"
	@$(VENV)/python -m benchmarks.tokens --smoke
	@$(VENV)/python -m benchmarks.float8 --smoke --recipe "lm-tiny like lm-1b"

bench: stores ## Every benchmark in full (an hour or more); records the results in benchmarks/results
	@$(VENV)/python -m benchmarks.preview --record
	@$(VENV)/python -m benchmarks.diff --record
	@$(VENV)/python -m benchmarks.overhead --record
	@$(VENV)/python -m benchmarks.loop --record
	@$(VENV)/python -m benchmarks.scaling --record
	@$(VENV)/python -m benchmarks.sharding --record
	@$(VENV)/python -m benchmarks.scale --record
	@$(VENV)/python -m benchmarks.checkpoints --record
	@$(VENV)/python -m benchmarks.checkpoint_files --record
	@$(VENV)/python -m benchmarks.ingest --record
	@$(VENV)/python -m benchmarks.input_engines --record
	@$(VENV)/python -m benchmarks.batch_threads --record
	@$(VENV)/python -m benchmarks.preparation --record
	@$(VENV)/python -m benchmarks.tokens --record
	@$(VENV)/python -m benchmarks.restart --record
	@$(VENV)/python -m benchmarks.serving --record
	@$(VENV)/python -m benchmarks.recipes --record
	@$(VENV)/python -m benchmarks.imports --record

gpu-check: ## Train on this machine's GPUs and list the missed targets (20 min; in small without a GPU); needs torch, no set-up
	@$(or $(wildcard $(VENV)/python),$(PYTHON)) -m benchmarks.gpu

release: setup ## Build and check sdist, wheel, SBOM, hashes and provenance in dist/ (DRAFT=yes, WITHOUT="3.13": docs/versioning.md)
	@$(VENV)/python -m tools.release $(if $(filter yes,$(DRAFT)),--draft) $(addprefix --without ,$(WITHOUT))

tag: setup ## Commit and tag a release: VERSION=0.2.0 (docs/versioning.md)
	@$(VENV)/python -m tools.release.tag "$(VERSION)"

clean: ## Remove .venv and build and test leftovers (keeps runs/)
	@rm -rf .venv .setup.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build site

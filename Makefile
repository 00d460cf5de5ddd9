# `make help` lists the targets. PYTHON selects the interpreter: make demo PYTHON=python3.12
# ENGINE selects what the demo runs on: make demo ENGINE=llama_cpp

PYTHON ?= python3
VENV ?= .venv
ENGINE ?= onnxruntime
BIN := $(VENV)/bin
# Two processes suit the smallest board that the tests are written for; a file's tests stay together.
PYTEST_WORKERS ?= 2
# How long each sanitizer watches random steps of the kernels.
SANITIZE_SECONDS ?= 10

CODE := edge_vl engines kernels device_profiles tests benchmarks tools examples
# What an installation is made from. The Python code itself is used in place.
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find kernels/csrc -type f)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types unit sanitize home-assistant bars clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-$(ENGINE)  ## stream answers of the bundled model about the bundled pictures
	@$(BIN)/python examples/demo.py $(ENGINE)

test: lint types sanitize unit  ## check style and types, run every test with coverage

lint: $(VENV)/.installed-dev  ## check style without changing anything
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed-dev  ## check types
	$(BIN)/mypy

unit: $(VENV)/.installed-dev build/home-assistant/.installed  ## run every test with coverage
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term

# Each build ends at the first finding: by a sanitizer, or by the test driver itself.
sanitize: $(VENV)/.installed-dev  ## run the kernels under the address, undefined behaviour and thread sanitizers
	@for sanitizers in address,undefined thread; do \
	  echo "kernels under -fsanitize=$$sanitizers" >&2; \
	  build=build/sanitize-$${sanitizers%%,*}; \
	  $(BIN)/cmake -S . -B $$build --log-level=WARNING -DCMAKE_BUILD_TYPE=Release -DEDGE_VL_KERNELS_WERROR=ON \
	    -DEDGE_VL_KERNELS_DRIVER=ON -DEDGE_VL_KERNELS_SANITIZE=$$sanitizers >/dev/null && \
	  $(BIN)/cmake --build $$build --parallel 2 >/dev/null && \
	  $$build/edge_vl_kernels pool 1 && \
	  $$build/edge_vl_kernels kv 1 $(SANITIZE_SECONDS) || exit 1; \
	done

home-assistant: build/home-assistant/.installed  ## install the code of Home Assistant that the tests judge by

format: $(VENV)/.installed-dev  ## format the code and mend what can be mended automatically
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bars: $(VENV)/.installed-dev  ## run every benchmark, keep the results under benchmarks/results
	$(BIN)/python -m benchmarks --all --keep benchmarks/results

clean:  ## remove the environment and everything made here
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find $(CODE) -name __pycache__ -type d -exec rm -rf {} +

# --- environment -----------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "edge_vl needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)" >&2; \
	  echo "name another one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-onnxruntime: $(BUILD_INPUTS) | $(BIN)/python
	@echo "installing edge_vl into $(VENV) ..." >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[onnx,demo]'
	@touch $@

# llama.cpp is compiled from source, once: the wheel stays in pip's cache.
$(VENV)/.installed-llama_cpp: $(BUILD_INPUTS) | $(BIN)/python
	@echo "installing edge_vl and llama.cpp into $(VENV); compiling llama.cpp for the first time takes minutes ..." >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[llama,demo]'
	@touch $@

# Warnings of the compiler are errors here, and a failed build falls back to NumPy: so ask what came out of it.
$(VENV)/.installed-dev: $(BUILD_INPUTS) | $(BIN)/python
	@echo "installing edge_vl and its development tools into $(VENV) ..." >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[onnx,llama,dev]' \
	  --config-settings=cmake.define.EDGE_VL_KERNELS_WERROR=ON
	@$(BIN)/python -c 'import edge_vl_kernels as k, sys; s = k.status(); sys.exit(None if s.compiled else \
	  "the kernels were not compiled (add -v to pip install above to see why): " + s.reason)'
	@touch $(VENV)/.installed-onnxruntime $(VENV)/.installed-llama_cpp $@

# Apart from the other environments: it asks for old versions. Where it cannot be had, its tests are skipped and say so.
build/home-assistant/.installed: tests/home_assistant/requirements.txt | $(BIN)/python
	@echo "installing parts of Home Assistant into $(@D) ..." >&2
	@rm -rf $(@D)
	@$(BIN)/python -m venv $(@D) && \
	  $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r $< && \
	  $(@D)/bin/python -c 'import homeassistant.components.mqtt.sensor' && \
	  touch $@ || \
	  echo "Home Assistant's code could not be installed for $$($(BIN)/python --version); its tests are skipped" >&2

# make demo: see what forgetting is and what CLER does about it.   make test: see it proved.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test soak lint browser docs site clean

demo: $(READY)
	$(BIN)/cler demo --out demo

# With bytecode, or each of the processes that tests start would compile the package anew.
test: lint browser
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist worksteal

# What takes longer than the tests: fuzzing, hundreds of kills, clusters, an attack, 100,000 batches, and what only a GPU can show.
soak: $(READY)
	$(BIN)/python tools/fuzz.py --log tools/fuzz.log
	$(BIN)/python tools/kill_test.py --log tools/kill_test.log
	$(BIN)/python tools/attack.py --log tools/attack.log
	$(BIN)/python tools/cluster_test.py --log tools/cluster_test.log
	$(BIN)/python tools/memory_test.py --log tools/memory_test.log --figure docs/memory.png
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		$(BIN)/python tools/gpu_check.py && $(BIN)/pytest -m gpu; \
	else \
		echo "left out: tools/gpu_check.py and the tests marked gpu, because torch sees no GPU here"; \
	fi

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks tools examples
	$(BIN)/ruff format --check src tests benchmarks tools examples
	$(BIN)/mypy

# The test of the report's page looks at it in chromium, and is skipped where there is none and none can be installed.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "installing chromium, for the test of the report's page" && timeout 60 apt-get -qq update && \
		timeout 90 apt-get -qq -y --no-install-recommends install chromium >/dev/null 2>&1; } || \
		echo "no chromium: the test of the report's page will be skipped"

# The pages of results in docs/, and the README's figure and table, from the result files in results/.
docs: $(READY)
	$(BIN)/cler compare results/cifar100/finetune_m0_bf16 results/cifar100/er-ace_m500_bf16 \
		results/cifar100/er-ace+jigsaw_m500_bf16 results/frontier/er-ace+jigsaw+ema_cifar100_m500_precision-bf16 \
		--figure docs/curves.png
	$(BIN)/cler report results/cifar100 results/mini-imagenet --preface docs/reproduction-notes.md -o build/report
	cp build/report/report.md docs/reproduction.md
	cp build/report/index.html docs/reproduction.html
	{ cat docs/figures-notes.md && echo && \
		$(BIN)/cler analyze figure1 --precision bf16 --seeds 0..4 --out results/figures --markdown && echo && \
		$(BIN)/cler analyze figure3 --precision bf16 --buffer 500 --seeds 0..2 --out results/figures --markdown; \
	} > build/figures.md
	mv build/figures.md results/figures/figure1.png results/figures/figure3.png docs
	$(BIN)/cler frontier results/frontier results/cifar100 --notes docs/frontier-notes.md \
		--arithmetic results/frontier/arithmetic.json -o docs/frontier.md --into README.md

# The documentation as a site, in site/. The tour is run, with fresh runs.
site: $(READY)
	rm -rf build/tour
	$(BIN)/mkdocs build

clean:
	rm -rf $(VENV) site demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "cler needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..."; exit 1; }
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	touch $@

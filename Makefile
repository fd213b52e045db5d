# make: sets up .venv, builds the page of the default model and all that it needs, and prints a
# summary.   make study: all models, and what compares them.   make model NAME=mine: one model of
# params.yaml.   make example: a real model (examples/qwen).   make example-digits: also the second
# digit of its answers.   make test: runs every test.
# `branches` runs what is missing side by side, then `dvc repro`, or `dvc repro --all-pipelines` for
# make study. It loads libraries once. Plain `dvc repro` gives the same outputs, and takes longer.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE # each of hundreds of stages would compile our code again

.PHONY: all quick study model example example-digits setup test bench lint site remote push pull
.PHONY: starter lock
all: setup
	@python -m stages.lib.console.locks
	python -m stages.lib.console.branches default
	@bag status

# Runs no stage: fetches tables and page of the default model from data/starter, and verifies them
# against the locks.
quick: setup
	@python -m stages.lib.console.starter fetch
	@bag status

study: setup
	@python -m stages.lib.console.locks
	python -m stages.lib.console.branches study
	@bag status

# make model NAME=mine: takes one model of params.yaml through every chapter, to a page of its own.
# A run that was stopped resumes where it stopped.
define through_every_chapter
@python -m stages.lib.console.locks
python -m stages.warm dvc repro stages/report/dvc.yaml:report_data@$(NAME)
python -m stages.report.index $(NAME) reports/$(NAME)/index.html
@echo "The page to read: reports/$(NAME)/index.html"
endef

model: setup
	@test -n "$(NAME)" || { \
		echo "make model: name a model of params.yaml, such as NAME=abacus" >&2; exit 1; }
	$(through_every_chapter)

# make example MODEL=…: a real model, from its GGUF file or org/name@commit on the Hub
# (examples/qwen).
MODEL ?= models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
example: NAME = qwen
example: setup
	@if ! grep -q '^  qwen:' params.yaml; then \
		bag add qwen "$(MODEL)" --entry examples/qwen/entry.yaml; \
	elif [ "$(origin MODEL)" != file ]; then \
		for part in $(subst @, ,$(MODEL)); do grep -qF "$$part" params.yaml || { \
			echo "make example: qwen in params.yaml is from another model than $(MODEL);" \
				"remove its entry first" >&2; exit 1; }; done; fi
	$(through_every_chapter)

# make example-digits MODEL=…: also the entry that predicts the second digit, and both digits
# compared. It reads the folder of the model that `make example` makes.
example-digits: NAME = qwen-second
example-digits: example
	@grep -q '^  qwen-second:' params.yaml || \
		bag add qwen-second data/models/qwen --entry examples/qwen/second.yaml
	$(through_every_chapter)
	python -m stages.warm dvc repro stages/neurons/dvc.yaml:digit_figure@qwen-digits \
		stages/claims/dvc.yaml:digit_claims@qwen-digits
	@echo "Both digits compared: reports/neurons/qwen-digits.png and table digit_circuits"

setup: .venv/installed

# Installs what a lock pins, but torch. uv takes a quarter of pip's time, but reads none of pip's
# settings, such as another index; where it fails, pip installs.
define install
grep -v '^torch==' $(1) | xargs .venv/bin/uv pip install --quiet --no-deps || \
	grep -v '^torch==' $(1) | xargs .venv/bin/pip install --quiet --no-deps --no-compile
endef

# A .venv of another Python is removed: venv would keep its links to that Python.
# pip would compile all that it installs, a minute of work. Python compiles what is imported; the
# last command does so for what every stage needs, while pip installs `bag`. torch is as large as
# all else together. pip installs it meanwhile, as its settings may name a build, and then what this
# machine's build needs besides, such as CUDA's libraries.
.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))" || { \
		echo "make: bag needs Python 3.11 to 3.14, and $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
			"name another, such as make PYTHON=python3.12" >&2; exit 1; }
	@test "$$(.venv/bin/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" || rm -rf .venv
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --no-deps --no-compile $$(grep '^uv==' requirements.lock)
	.venv/bin/pip install --quiet --no-deps --no-compile $$(grep '^torch==' requirements.lock) & \
	$(call install,requirements.lock) && wait $$!
	.venv/bin/pip install --quiet --constraint requirements.lock torch
	.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable . & \
	.venv/bin/python -c "import dvc.repo; from stages import warm; warm.load()" && wait $$!
	touch $@

test: .venv/tests
	python -m pytest $(if $(MICRO),--micro=$(MICRO))

bench: .venv/tests
	python -m tests.bench

lint: .venv/tests
	ruff check stages tests
	ruff format --check stages tests
	mypy

# What only tests and lint need is not part of the setup, which all other targets wait for.
.venv/tests: tests/requirements.lock .venv/installed
	$(call install,$<)
	touch $@

# make site: builds the documentation with a search, as pages that need no server and no network.
# Its generator is not part of the setup either.
site: .venv/site
	@python -m stages.site.gallery
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --config-file stages/site/mkdocs.yml
	@echo "The page to read: site/index.html"

.venv/site: stages/site/requirements.lock .venv/installed
	$(call install,$<)
	touch $@

# Sets where `make push` and `make pull` share outputs: make remote URL=s3://bucket/folder (or
# ssh://user@host/folder, /a/folder …).
remote: setup
	@case "$$URL" in \
	"") echo "make remote: name a place, such as URL=s3://bucket/folder, ssh://user@host/folder" \
		"or /a/folder" >&2; exit 1 ;; \
	*://*:*@*) echo "make remote: the URL holds a password, and Git tracks .dvc/config;" \
		"leave it out, then run dvc remote modify --local storage password ..." >&2; exit 1 ;; \
	esac
	@dvc remote add --force --default storage "$$URL"
	dvc remote modify storage verify true

# Pushes all outputs that are here, after checking that the locks are complete.
push: setup
	@python -m stages.lib.console.remote push

# Fetches outputs and verifies them against the locks, which plain `dvc pull` does not: all outputs;
# with SUBJECT=abacus those of one model, what its stages read, and its page; with
# FILE=data/abacus/store/activations/add.h5 one file or folder.
pull: setup
	@python -m stages.lib.console.remote pull "$$SUBJECT" "$$FILE"

# Fills data/starter, which `make quick` reads, from DVC's cache, exactly as the locks say.
starter: setup
	@python -m stages.lib.console.starter fill

# Pins what an extra adds to the packages of other locks: extra, those locks, its own lock.
define pin
.venv/bin/pip install --quiet $(addprefix --constraint ,$(2)) --editable .[$(1)]
.venv/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' \
	| grep -vxF $(addprefix --file=,$(2)) > $(3)
endef

# Resolves the newest versions that pyproject.toml admits and pins every one of them.
lock:
	rm -rf .venv
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet setuptools uv --editable .
	.venv/bin/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' \
		> requirements.lock
	$(call pin,dev,requirements.lock,tests/requirements.lock)
	$(call pin,site,requirements.lock tests/requirements.lock,stages/site/requirements.lock)

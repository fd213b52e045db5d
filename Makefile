# make: sets up, makes the default subject's page and all it takes, and says what that is.   make study: all subjects, and what compares them.
# make model NAME=mine: the same of one model of params.yaml.   make example: a real model (examples/qwen).
# make test: sets up and passes every test.
# stages.warm: plain `dvc repro` makes the same, and loads the same libraries again for every stage.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE # each of hundreds of stages would compile our code again

.PHONY: all quick study model example setup test bench lint site remote push pull starter lock
all: setup
	@python -m stages.lib.console.locks
	python -m stages.warm dvc repro
	@bag status

# Computes nothing: tables and the page of the default subject, from data/starter, verified against the locks.
quick: setup
	@python -m stages.lib.console.starter fetch
	@bag status

study: setup
	@python -m stages.lib.console.locks
	python -m stages.warm dvc repro --all-pipelines
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
	@test -n "$(NAME)" || { echo "make model: say which model of params.yaml, such as NAME=abacus" >&2; exit 1; }
	$(through_every_chapter)

# make example MODEL=…: a real model, from its GGUF file or org/name@commit on the Hub (examples/qwen).
MODEL ?= models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
example: NAME = qwen
example: setup
	@grep -q '^  qwen:' params.yaml || bag add qwen "$(MODEL)" --entry examples/qwen/entry.yaml
	$(through_every_chapter)

setup: .venv/installed

# pip would compile all that it installs, a minute of work. Python compiles what is imported; the last command does so for what every stage needs.
.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --no-deps --no-compile --requirement requirements.lock
	.venv/bin/pip install --quiet --constraint requirements.lock torch  # what this machine's build of it needs besides, such as CUDA's libraries
	.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	.venv/bin/python -c "import dvc.repo; from stages import warm; warm.load()"
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
	.venv/bin/pip install --quiet --no-deps --no-compile --requirement $<
	touch $@

# make site: the documentation with a search, as pages that need no server and no network. Its
# generator is not part of the setup either.
site: .venv/site
	@python -m stages.site.gallery
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --config-file stages/site/mkdocs.yml
	@echo "The page to read: site/index.html"

.venv/site: stages/site/requirements.lock .venv/installed
	.venv/bin/pip install --quiet --no-deps --no-compile --requirement $<
	touch $@

# Where `make push` and `make pull` share artifacts: make remote URL=s3://bucket/folder (or
# ssh://user@host/folder, /a/folder …).
remote: setup
	@case "$$URL" in \
	"") echo "make remote: say where, such as URL=s3://bucket/folder, ssh://user@host/folder or /a/folder" >&2; exit 1 ;; \
	*://*:*@*) echo "make remote: the URL holds a password, and .dvc/config is a tracked file; leave it out, then say" \
		"dvc remote modify --local storage password ..." >&2; exit 1 ;; \
	esac
	@dvc remote add --force --default storage "$$URL"
	dvc remote modify storage verify true

# Everything that is here to the remote, once the locks that say what that is are whole.
push: setup
	@python -m stages.lib.console.remote push

# From the remote, verified against the locks, which plain `dvc pull` is not: everything; with
# SUBJECT=abacus what is of one subject, what its stages read and its page; with
# FILE=data/abacus/store/activations/add.h5 one file or folder.
pull: setup
	@python -m stages.lib.console.remote pull "$$SUBJECT" "$$FILE"

# Fills data/starter, which `make quick` reads, from DVC's cache, exactly as the locks say.
starter: setup
	@python -m stages.lib.console.starter fill

# Pins what an extra adds to the packages of other locks: extra, those locks, its own lock.
define pin
.venv/bin/pip install --quiet $(addprefix --constraint ,$(2)) --editable .[$(1)]
.venv/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -vxF $(addprefix --file=,$(2)) > $(3)
endef

# Resolves the newest versions that pyproject.toml admits and pins every one of them.
lock:
	rm -rf .venv
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet setuptools --editable .
	.venv/bin/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' > requirements.lock
	$(call pin,dev,requirements.lock,tests/requirements.lock)
	$(call pin,site,requirements.lock tests/requirements.lock,stages/site/requirements.lock)

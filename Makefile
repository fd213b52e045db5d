# make: sets up, makes the default subject's page and all it takes, and says what that is.   make study: all subjects, and what compares them.
# make test: sets up and passes every test.
# stages.warm: plain `dvc repro` makes the same, and loads the same libraries again for every stage.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: all study setup test bench lint remote push pull lock
all: setup
	@python -m stages.lib.console.locks
	python -m stages.warm dvc repro
	@bag made

study: setup
	@python -m stages.lib.console.locks
	python -m stages.warm dvc repro --all-pipelines
	@bag made

setup: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --no-deps --no-compile --requirement requirements.lock
	.venv/bin/python -m compileall -qq -j 0 .venv/lib || true  # by all cores, where pip has one; some packages hold files of other Pythons
	.venv/bin/pip install --quiet --constraint requirements.lock torch  # what this machine's build of it needs besides, such as CUDA's libraries
	.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

test: setup
	python -m pytest $(if $(MICRO),--micro=$(MICRO))

bench: setup
	python -m tests.bench

lint: setup
	ruff check stages tests
	ruff format --check stages tests
	mypy

# Where `dvc push` and `dvc pull` share artifacts: make remote URL=s3://bucket/folder (or ssh://user@host/folder, /a/folder …).
remote: setup
	@case "$$URL" in \
	"") echo "make remote: say where, such as URL=s3://bucket/folder, ssh://user@host/folder or /a/folder" >&2; exit 1 ;; \
	*://*:*@*) echo "make remote: the URL holds a password, and .dvc/config is a tracked file; leave it out, then say" \
		"dvc remote modify --local storage password ..." >&2; exit 1 ;; \
	esac
	@dvc remote add --force --default storage "$$URL"
	dvc remote modify storage verify true

# Everything to the remote, once the locks that say what that is are whole.
push: setup
	@python -m stages.lib.console.locks
	dvc push

# Everything of one subject from the remote, of all chapters, and what all subjects read, without which neither bag nor its explorer can
# say much: prompts, the catalogue of heuristics, the setting of labels. make pull SUBJECT=abacus
pull: setup
	@stages=$$(dvc stage list --all --name-only) || exit; \
	own=$$(echo "$$stages" | awk -F @ -v subject="$$SUBJECT" '/@/ && $$2 == subject' | grep .) || { \
		echo "make pull: there is no subject '$$SUBJECT', only" $$(echo "$$stages" | sed -n 's/.*@//p' | sort -u) >&2; exit 1; }; \
	shared=$$(echo "$$stages" | grep -E '^stages/(corpus|heuristics)/[^@]*$$'); \
	if [ "$$SUBJECT" = planted ]; then shared="$$shared stages/subjects/dvc.yaml:plant"; fi; \
	dvc pull $$own $$shared

# Resolves the newest versions that pyproject.toml admits and pins every one of them.
lock:
	rm -rf .venv
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet setuptools --editable .[dev]
	.venv/bin/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' > requirements.lock

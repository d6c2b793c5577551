# Each target sets up what it needs. `make serve` and `make test` work on a fresh clone with
# Python 3.11+ and a C compiler.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq

# What it takes to run a node; what it takes to work on it, besides; what is ours, compiled and installed.
RUNTIME     := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development
BUILT       := $(VENV)/.built
INSTALLED   := $(VENV)/.installed

SOURCES := setup.py compiled.txt \
  $(shell find src -name '*.py' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h')

.PHONY: \
  bench-amqp \
  bench-celery \
  bench-client \
  bench-connections \
  bench-engine \
  bench-groups \
  bench-limits \
  bench-http \
  bench-mqtt \
  bench-spark \
  bench-storage \
  bench-tls \
  bench-transactions \
  churn \
  clean \
  compare \
  crash \
  damage \
  foreign \
  hostile \
  lint \
  openapi \
  pipeline-demo \
  qos2-kills \
  serve \
  setup \
  soak \
  spark-crash \
  steady \
  test

# What we need is downloaded while what is ours is compiled.
setup:
	@$(MAKE) --silent --no-print-directory --jobs=2 $(INSTALLED) $(DEVELOPMENT)

$(RUNTIME): pyproject.toml scripts/install.py
	@test -x $(BIN)/python || { echo "creating $(VENV) …"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python scripts/install.py
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@$(BIN)/python scripts/install.py arrow spark dev
	@touch $@

# Whatever changed: setup.py compiles just that, by the contents of files and not by their dates.
$(BUILT): $(RUNTIME) $(SOURCES)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# Names and commands; everything else is used where it stands.
$(INSTALLED): pyproject.toml | $(BUILT)
	@echo "installing braidmq …"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

serve: $(INSTALLED)
	@$(BIN)/braid serve

# One worker more than cores: a third of their time tests wait, for timers, disks and nodes that start and stop.
test: setup
	$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder

# Against a live RabbitMQ and Mosquitto, all there is; CI runs the quick part. Needs root the first time.
compare: setup
	$(BIN)/python -m bench.rabbitmq $(BIN)/python -m pytest -q tests/differential tests/clients/go tests/clients/node/test_amqplib.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint src  # it calls pycodestyle by name
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/unused.py

bench-storage: setup
	$(BIN)/python -m bench.storage

# Needs root the first time: it installs RabbitMQ to compare with.
bench-amqp: setup
	$(BIN)/python -m bench.amqp

# Needs root the first time: it installs Mosquitto to compare with.
bench-mqtt: setup
	$(BIN)/python -m bench.mqtt

# Needs root the first time.
bench-celery: setup
	$(BIN)/python -m bench.celery_workers

# Beside plain connections, and beside RabbitMQ and Mosquitto over TLS. Needs root the first time.
bench-tls: setup
	$(BIN)/python -m bench.tls

# Rate limits unused, in turns with none; and a steady client beside a flood.
bench-limits: setup
	$(BIN)/python -m bench.rates

bench-client: setup
	$(BIN)/python -m bench.client

bench-groups: setup
	$(BIN)/python -m bench.groups

bench-transactions: setup
	$(BIN)/python -m bench.transactions

bench-engine: setup
	$(BIN)/python -m bench.engine

bench-http: setup
	$(BIN)/python -m bench.http

# Half an hour: 200 000 messages for each protocol, QoS and kind of session, at 5 000 and 20 000 a second.
steady: setup
	$(BIN)/python -m bench.steady

# QoS 2 through kill -9: KILLS=… EXCHANGES=… SEED=…
qos2-kills: setup
	$(BIN)/python scripts/qos2_kills.py --kills $(or $(KILLS),200) --exchanges $(or $(EXCHANGES),100000) --seed $(or $(SEED),1)

# Flip, cut and delete at every kind of file: CASES=… SEED=…
damage: setup
	DAMAGE_CASES=$(or $(CASES),500) DAMAGE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -s -q tests/engine/test_damage.py

# Needs golang-go and golang-github-rabbitmq-amqp091-go-dev: the tests of that library, of kombu, py-amqp and Celery, and our
# cases of it, of amqplib, of Celery from 5.3 on, and of clients that outlive ten kills of the node.
foreign: setup
	$(BIN)/python -m bench.foreign --rounds $(or $(TIMES),3)
	$(BIN)/python -m bench.foreign_python
	CELERY_VERSIONS=all SURVIVED_KILLS=10 BRAIDMQ_CLIENT_KILLS=10 $(BIN)/python -m pytest -q tests/clients/go \
	  tests/clients/node/test_amqplib.py tests/clients/amqp/test_celery_delays.py tests/clients/amqp/test_surviving_kills.py \
	  tests/client/test_reconnect.py

# After a change to the HTTP API.
openapi: setup
	$(BIN)/python -c "from braidmq.api.assembly import openapi_text; print(openapi_text(), end='')" > docs/openapi.json

bench-connections: setup
	$(BIN)/python -m bench.connections

# Clients that mean harm, beside one that does not: memory, latency, and what is left.
hostile: setup
	$(BIN)/python -m bench.hostile

# make churn CONNECTS=1000000
CONNECTS ?= 100000
churn: setup
	$(BIN)/python -m bench.churn --connects $(CONNECTS)

# Needs Java 17, as everything with Spark does.
pipeline-demo: setup
	$(BIN)/python scripts/pipeline_demo.py

spark-crash: setup
	for sink in topic lake copy; do \
	  $(BIN)/python scripts/spark_crash.py --sink $$sink --kills 20 --pause 1 --every 0.5 \
	    --master 'local-cluster[2,1,1024]' || exit; \
	done

# Kills and power cuts under traffic of every protocol: docs/RELIABILITY.md.
ROUNDS ?= 50
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
crash: setup
	mkdir -p build/crash
	$(BIN)/python -m braidmq.testing.crash --rounds $(ROUNDS) --seed $(SEED) --dir build/crash --json build/crash/$(SEED).json

# Every protocol at a steady rate, limits reached: memory, files and disk must stay flat.
MINUTES ?= 5
soak: setup
	$(BIN)/python -m braidmq.testing.soak --minutes $(MINUTES)

# Needs Java 17.
bench-spark: setup
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.spark_sink
	$(BIN)/python -m bench.spark_lake

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete

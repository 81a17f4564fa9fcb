# The commands of this checkout. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
FUZZ_READY := $(VENV)/.fuzz-ready
BUILT_READY := $(VENV)/.built-ready
SPARK_READY := $(VENV)/.spark-ready
ARCHIVE_READY := tests/spark_jobs/.build/.ready
# One worker more than cores; why, and which tests share one: tests/groups.py.
PARALLEL := -rs -n $(or $(WORKERS),auto) --dist loadscope --no-loadscope-reorder

.DEFAULT_GOAL := help

##@ Every day

# A heading is a line of `##@`, and what a target does stands behind its `##`.
help: ## list the targets
	@awk -F':.*## ' '/^##@ /{printf "%s%s\n", n++ ? "\n" : "", substr($$0, 5)} /^[a-z][a-z0-9-]*:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Millrace needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 -m venv failed: on Debian, apt-get install python3-venv"; exit 1; }

$(BUILT_READY): $(BIN)/python protocol/_record_walk.c tools/build_compiled.py
	@$(BIN)/python tools/build_compiled.py
	@touch $@

$(RUN_READY): $(BIN)/python requirements/run.txt tools/setup_venv.py | $(BUILT_READY)
	@$(BIN)/python tools/setup_venv.py run
	@touch $@

$(DEV_READY): $(RUN_READY) requirements/dev.txt | $(BUILT_READY)
	@$(BIN)/python tools/setup_venv.py dev
	@touch $@

$(FUZZ_READY): $(DEV_READY) requirements/fuzz.txt
	@$(BIN)/python tools/setup_venv.py fuzz
	@touch $@

$(SPARK_READY): $(DEV_READY) requirements/spark.txt
	@$(BIN)/python tools/setup_venv.py spark
	@touch $@

setup: $(RUN_READY) $(BUILT_READY) ## build .venv with what the broker needs

setup-dev: $(DEV_READY) ## add what tests, lint and types need; then one test at a time (CONTRIBUTING.md)

run: $(RUN_READY) $(BUILT_READY) ## serve Kafka on 127.0.0.1:9092, data under ./millrace-data
	@exec $(BIN)/millrace serve

cluster: $(RUN_READY) $(BUILT_READY) ## three nodes on 127.0.0.1:9092 to 9094, data under ./millrace-cluster
	@exec $(BIN)/millrace cluster start

lint: $(DEV_READY) ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check -q .

types: $(DEV_READY) ## mypy, strict
	@$(BIN)/mypy -p millrace.runtime -p millrace.protocol -p millrace.wal -p millrace.s3stream -p millrace.kraft -p millrace.broker -p millrace.spark_jobs -p millrace.testing -p tests.bench -p tests.sim -p tests.docker

test: ## lint, types and the whole suite
	@$(MAKE) --no-print-directory -j3 $(SPARK_READY) jars s3-server
	@$(MAKE) --no-print-directory $(ARCHIVE_READY)
	@$(MAKE) --no-print-directory lint types
	@$(BIN)/python -m pytest $(PARALLEL)

quick: $(DEV_READY) s3-server ## the suite without the parts that start other runtimes
	@$(BIN)/python -m pytest $(PARALLEL) --ignore=tests/compat --ignore=tests/spark_jobs

##@ Before a release

test-wheel: $(DEV_READY) jars ## the wheel in a fresh environment as a stranger uses it: examples, 200 tests, pytest -n 4, Node, Java; some minutes
	@$(BIN)/python -m tests.testing.wheel

docker-test: $(DEV_READY) ## images and compose files in a real engine: one node, three nodes that fail over, Spark (ONLY="single cluster spark"; DEBIAN_BASE=FILE: no registry)
	@$(BIN)/python -m tests.docker $(if $(ONLY),--only $(ONLY)) $(if $(DEBIAN_BASE),--debian-base "$(DEBIAN_BASE)")

compat: $(SPARK_READY) tools-system jars ## every client against every kind of record, group and tool; some minutes
	@MILLRACE_COMPAT=full $(BIN)/python -m pytest tests/compat --durations=15

compat-cluster: $(SPARK_READY) tools-system jars ## the clients, groups and tools on three nodes that are restarted without end; five to ten minutes
	@MILLRACE_COMPAT=cluster $(BIN)/python -m pytest tests/compat/cluster --durations=15 -s

roll: $(DEV_READY) jars ## three nodes restarted one after the other under applications of four clients, ours and Apache Kafka's: a table (ROUNDS, 1)
	@$(BIN)/python -m tests.compat.rolled --rounds $${ROUNDS:-1}

compare: $(DEV_READY) jars ## whole answers of the describing APIs, sequences of groups and fetches, codes of odd requests: beside Apache Kafka (REQUESTS, SEED)
	@$(BIN)/python -m tests.compat.peer --requests $${REQUESTS:-1500} --seed $${SEED:-1}

client-suites: $(DEV_READY) jars ## the tests that clients' authors wrote, from their packages: docs/clients.md; ONLY="NAME ..." for some
	@$(BIN)/python -m tests.compat.suites $(ONLY)

demo: $(SPARK_READY) spark_jobs/jars/.ready ## 1 GB of real files through the whole product, digests compared; then with kill -9
	@$(BIN)/python -m tests.demo

##@ Hunts

crash: $(DEV_READY) ## kill -9 at random moments, 50 times
	@MILLRACE_KILLS=$${MILLRACE_KILLS:-50} MILLRACE_SEED=$${MILLRACE_SEED:-$$(date +%s)} $(BIN)/python -m pytest tests/crash/test_kill.py --timeout 900 -q -s

attack: $(DEV_READY) ## hostile clients, wrong clocks and swapped volumes against a live broker, the long forms
	@MILLRACE_ATTACK=full $(BIN)/python -m pytest tests/attack --timeout 1200 -s

sim: $(DEV_READY) ## hunt through simulated nodes under drawn faults, 10,000 seeds (SEEDS, FROM, WORKERS)
	@$(BIN)/python -m tests.sim hunt --seeds $${SEEDS:-10000} --from $${FROM:-0} --workers $${WORKERS:-2}

sim-quorum: $(DEV_READY) ## hunt through simulated quorums of controllers, 2,000 seeds (SEEDS, FROM, WORKERS)
	@$(BIN)/python -m tests.sim quorum hunt --seeds $${SEEDS:-2000} --from $${FROM:-0} --workers $${WORKERS:-2}

sim-cluster: $(DEV_READY) ## hunt through simulated clusters whose brokers fail and hand over, 300 seeds (SEEDS, FROM, WORKERS)
	@$(BIN)/python -m tests.sim.cluster.hunt --seeds $${SEEDS:-300} --from $${FROM:-0} --workers $${WORKERS:-2}

sim-cluster-bugs: $(DEV_READY) ## plant deliberate bugs, one at a time, between simulated nodes: each has to be found
	@$(BIN)/python -m tests.sim.cluster.bugs

rolling-upgrade: $(DEV_READY) ## nodes of this version and of another checkout's in one cluster, upgraded and taken back while clients use it (BASE, a folder with its own .venv; LOG=object)
	@$(BIN)/python -m tests.live.rolling_upgrade --base $(BASE) $(if $(LOG),--log $(LOG))

chaos: $(DEV_READY) s3-server ## kill, stop, halt real nodes of a cluster, cut and slow their network (root), while clients use it, ten minutes (MINUTES, SEED, FAULTS=nodes or network)
	@$(BIN)/python -m tests.live.chaos --minutes $${MINUTES:-10} --seed $${SEED:-0} $(if $(FAULTS),--faults $(FAULTS))

sim-bugs: $(DEV_READY) ## plant deliberate bugs, one at a time, in simulated nodes: each has to be found
	@$(BIN)/python -m tests.sim bugs --workers $${WORKERS:-2}

crash-sim: $(DEV_READY) ## power cuts at every disk write and store request of a simulated node, and during recovery
	@$(BIN)/python -m tests.sim crash $(if $(SEED),--seed "$(SEED)") $(if $(STEP),--step $(STEP)) --workers $${WORKERS:-2}

outage: $(DEV_READY) ## a live broker under load whose store is away for two minutes, twice (OUTAGE_S, 120)
	@MILLRACE_OUTAGE_S=$${OUTAGE_S:-120} $(BIN)/python -m pytest tests/live/test_s3.py -k goes_away --timeout 1200 -q

slow-store: $(DEV_READY) s3-server ## ten minutes of load on a broker whose log and data lie behind a proxy as slow as S3 is (SLOW_STORE_S, 600)
	@MILLRACE_SLOW_STORE_S=$${SLOW_STORE_S:-600} $(BIN)/python -m pytest tests/live/test_slow_store.py --timeout 1800 -q -s

soak: $(DEV_READY) ## ten minutes of everything at once at full rate, memory judged to be flat (SOAK_SECONDS)
	@$(BIN)/python -m tests.bench.soak --seconds $${SOAK_SECONDS:-600}

fuzz: $(FUZZ_READY) ## everything that reads bytes from outside, guided by coverage (FUZZ_SECONDS, 120)
	@$(BIN)/python -m tests.fuzz --seconds $${FUZZ_SECONDS:-120}

##@ Measurements

bench: $(DEV_READY) ## every figure the broker is held to, beside the device underneath
	@$(BIN)/python -m tests.bench.bench

bench-paired: $(DEV_READY) ## this version and another checkout's by turns, what a change costs (BASE, a folder with its own .venv; PAIRS, 10)
	@$(BIN)/python -m tests.bench.paired --base $(BASE) --pairs $${PAIRS:-10}

bench-cluster: $(DEV_READY) jars ## for how long nothing is written while a partition moves, a broker is stopped, or killed; what real clients see of a move; what elections and three nodes cost; three of Apache Kafka (ONLY="moved clients stopped killed elections three_nodes kafka", ROUNDS, 3)
	@$(BIN)/python -m tests.bench.cluster $(ONLY) --rounds $${ROUNDS:-3}

bench-partitions: $(DEV_READY) jars ## what 10 to 100,000 partitions cost three nodes: commits, memory, starts, elections; three of Apache Kafka (SIZES, KAFKA_SIZES)
	@$(BIN)/python -m tests.bench.partitions $(if $(SIZES),--sizes $(SIZES)) $(if $(KAFKA_SIZES),--kafka-sizes $(KAFKA_SIZES))

bench-claims: $(DEV_READY) ## what claims cost a log of blocks, beside the same log with a lock and the device alone (ROUNDS, 5)
	@$(BIN)/python -m tests.bench.claims --rounds $${ROUNDS:-5}

bench-growing: $(DEV_READY) ## for how long nothing is written while one node becomes three, and three one; a restart and a move beside it
	@$(BIN)/python -m tests.bench.growing

bench-testing: $(DEV_READY) jars ## a broker for tests beside Apache Kafka's jars: ready, first record, isolation, memory (ROUNDS, 5)
	@$(BIN)/python -m tests.bench.testing --rounds $${ROUNDS:-5}

bench-cold: $(DEV_READY) ## what a reader of history costs those at the tail, and its rate beside the store's own (STORE=memory, disk or s3)
	@$(BIN)/python -m tests.bench.cold_reader --store $${STORE:-memory}

bench-storage: $(DEV_READY) ## what storing costs and a crash costs, one after the other: cost, compaction_steady, recovery, object_wal, metadata_bytes (ONLY)
	@$(BIN)/python -m tests.bench.storage $(ONLY)

bench-stalls: $(DEV_READY) ## how long one request that asks for much holds everybody else, API by API (COUNT, 10000 names a request)
	@$(BIN)/python -m tests.bench.stalls --places --count $${COUNT:-10000}

##@ Parts and housekeeping

setup-spark: $(SPARK_READY) spark_jobs/jars/.ready ## add what the Spark pipelines need

tools-system: ## kcat from the system's packages, where they can be installed
	@tests/compat/install_system_tools.sh

jars: tools-system ## the Java side: Kafka's tools, Spark's connector, Spark's S3 client for the tests; one after the other, for they share Maven's repository
	@$(MAKE) --no-print-directory tests/compat/java/libs/.ready
	@$(MAKE) --no-print-directory spark_jobs/jars/.ready
	@$(MAKE) --no-print-directory tests/spark_jobs/s3/jars/.ready

s3-server: tests/s3server/.build/s3server ## the S3 server that tests run against

tests/s3server/.build/s3server: tests/s3server/main.go tests/s3server/go.mod tests/s3server/go.sum
	@if command -v go >/dev/null 2>&1; then echo "building the S3 server of the tests ..."; \
		cd tests/s3server && CGO_ENABLED=0 go build -trimpath -buildvcs=false -gcflags="all=-N -l" -ldflags="-s -w" -o .build/s3server . ; \
	else echo "missing: go 1.25 or newer: the tests on a real S3 server will fail" >&2; fi

tests/compat/java/libs/.ready: tests/compat/java/pom.xml
	@echo "copying Kafka's Java clients and tools ..."
	@mvn -q -B -f tests/compat/java/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=libs
	@touch $@

spark_jobs/jars/.ready: spark_jobs/pom.xml
	@echo "copying Spark's Kafka connector ..."
	@mvn -q -B -f spark_jobs/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=jars
	@touch $@

tests/spark_jobs/s3/jars/.ready: tests/spark_jobs/s3/pom.xml
	@echo "copying Hadoop's S3 client ..."
	@mvn -q -B -f tests/spark_jobs/s3/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=jars
	@touch $@

$(ARCHIVE_READY): tests/spark_jobs/class_archive.py $(SPARK_READY) spark_jobs/jars/.ready tests/spark_jobs/s3/jars/.ready
	@echo "keeping what Spark loads as it starts ..."
	@$(BIN)/python -m tests.spark_jobs.class_archive
	@touch $@

lock: $(BIN)/python ## pin requirements/*.in anew, with hashes and without index addresses
	@$(BIN)/python -m pip install -q uv
	@cd requirements && for set in run dev spark fuzz; do ../$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate $$set.in -o $$set.txt; done

clean: ## remove what make built, never data
	@rm -rf $(VENV) build *.egg-info protocol/*.so tests/compat/java/libs tests/s3server/.build tests/spark_jobs/.build spark_jobs/jars tests/spark_jobs/s3/jars .mypy_cache .ruff_cache

.PHONY: setup-dev docker-test test-wheel bench-testing attack slow-store bench compare bench-cold bench-paired bench-stalls bench-storage outage s3-server soak client-suites compat compat-cluster roll help setup setup-spark run lint types test quick tools-system jars lock clean demo crash crash-sim sim sim-bugs sim-quorum sim-cluster sim-cluster-bugs chaos rolling-upgrade cluster bench-cluster bench-claims bench-growing bench-partitions

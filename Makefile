# Carillon. To list the targets, run `make` or `make help`.
#
# Requires Go, make and bash. `make test` also requires a C compiler for the race
# detector. To turn both off, set RACE=.

.DEFAULT_GOAL := help

MODULE := github.com/carillonhq/carillon

# Variables that you can set.
VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null)
RACE         ?= -race
TEST_TIMEOUT ?= 25m
TEST_FLAGS   ?=
PKG          ?= ./...
FUZZTIME     ?= 20s
BENCH        ?= .
BENCHTIME    ?= 1s
SOAK         ?= 2m
RATE         ?=
HOSTILE      ?=
RESUMES      ?=
DURATION     ?=
COUNT        ?= 20
SEED         ?= 1
SEEDS        ?= 100
FAULTS       ?=
HOLD         ?=
CLEAN        ?=
NODES        ?=
FROM         ?= 11255d65
MINUTES      ?= 10
CRON         ?=
EMBEDDED     ?=

export RACE TEST_TIMEOUT TEST_FLAGS PKG FUZZTIME BENCH BENCHTIME SOAK RATE HOSTILE RESUMES COUNT DURATION SEED SEEDS FAULTS HOLD CLEAN FROM EMBEDDED MINUTES CRON

# Programs are static, so that they run on hosts with another or an older C library. They
# find the users and groups of tasks only in /etc/passwd and /etc/group. With CGO_ENABLED=1,
# which requires a C compiler, they use the host's NSS (LDAP, SSSD). Scripts that use the race
# detector set it too.
export CGO_ENABLED ?= 0

# -trimpath: a build contains no paths of this host, so it is reproducible, and checkouts share
# the build cache.
# -buildvcs=false: builds work outside of a checkout, and in one that another user owns. -X sets
# the version.
export GOFLAGS := $(strip $(shell go env GOFLAGS 2>/dev/null) -trimpath -buildvcs=false)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z\/-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables, with their defaults:"
	@echo "  PKG=./... TEST_FLAGS= TEST_TIMEOUT=25m RACE=-race    make test PKG=./pkg/store TEST_FLAGS='-run Commit -v'"
	@echo "  COUNT=20              repetitions of each test       make stress PKG=./pkg/kv TEST_FLAGS='-run Batcher'"
	@echo "  FUZZTIME=20s          for each fuzz target           make fuzz FUZZTIME=5m"
	@echo "  BENCH=. BENCHTIME=1s  benchmarks, time for each      make bench PKG=./pkg/internal/schedule"
	@echo "  SOAK=2m               duration                       make soak SOAK=1h"
	@echo "  HOSTILE=              1: with hostile connections    make soak HOSTILE=1 SOAK=10m"
	@echo "  RESUMES=              1: resume 10,000 tasks         make soak RESUMES=1"
	@echo "  RATE=                 runs per second, steady load   make soak RATE=1000 SOAK=20m"
	@echo "  DURATION=5m SEED=1    duration, seed of the faults   make chaos DURATION=20m SEED=7"
	@echo "  FAULTS=               only these kinds of faults     make chaos FAULTS=kill-all,quorum-lost"
	@echo "  HOLD=                 duration of each fault         make chaos FAULTS=node-cut-off HOLD=5m DURATION=5m"
	@echo "  SEED=1 SEEDS=100      first seed, number of seeds    make sim SEED=4711 SEEDS=1 DURATION=1m"
	@echo "  TASKS=10000           number of tasks                make outage TASKS=1000"
	@echo "  RUN_SECONDS=          stop after this time           RUN_SECONDS=15 make run"
	@echo "  NODES=                only these members             make cluster-up NODES=n2"
	@echo "  EMBEDDED=             1: agents with embedded etcd   make cluster-up EMBEDDED=1"
	@echo "  MINUTES=10 CRON=      duration, path of cron         make shadow MINUTES=60 CRON=/tmp/x/usr/sbin/cron"
	@echo "  UI_TESTS= CHROMIUM=   only these; path of Chromium   make ui-test UI_TESTS=Pages"
	@echo "  VMS= VM_TESTS=        only these                     make vm-test VMS=trixie VM_TESTS=pause"
	@echo "  FROM=11255d65         commit to upgrade from         make upgrade FROM=HEAD~100"
	@echo "  CLEAN=                1 also deletes the data        make cluster-down CLEAN=1"

.PHONY: build
build: ## Build build/carillon
	@mkdir -p build
	go build -ldflags "-X $(MODULE)/pkg/daemon.version=$(VERSION)" -o build/carillon ./cmd/carillon

# go.mod sets the versions of etcd and etcdctl.
build/etcd: go.mod ## Build etcd, for the local cluster
	@mkdir -p build
	go build -o $@ go.etcd.io/etcd/server/v3

build/etcdctl: go.mod ## Build etcdctl, to inspect the local cluster
	@mkdir -p build
	go build -o $@ go.etcd.io/etcd/etcdctl/v3

.PHONY: run
run: build ## Run one node with the tasks in examples/ and show them, until Ctrl-C
	@bash scripts/run.sh

.PHONY: test
test: ## Run the quick tests with the race detector; print failures last
	@bash scripts/test.sh

.PHONY: test-cluster
test-cluster: ## Run the long tests: real daemons, benchmarks, chaos
	@bash scripts/test.sh cluster

.PHONY: stress
stress: ## Run the tests of PKG COUNT times under CPU load
	@bash scripts/stress.sh

.PHONY: ui-test
ui-test: build ## Test the Web UI in Chromium, which is installed on Debian; write screenshots to build/ui
	@bash scripts/ui-test.sh

.PHONY: lint
lint: ## Run gofmt, go vet and staticcheck; check imports, links in docs, and generated pages
	@bash scripts/lint.sh

.PHONY: oracle
oracle: ## Compare schedules with a brute-force search: all zones and clock changes from 1970 to 2040
	go test -count=1 -timeout 60m -run '_AgreesWithOracle' $(TEST_FLAGS) ./pkg/internal/schedule -everything

.PHONY: why-oracle
why-oracle: ## Compare the answers of why with all records of DAYS days in virtual time, chosen by SEED
	CARILLON_LEDGER_WHY_DAYS=$(or $(DAYS),30) CARILLON_LEDGER_WHY_SEED=$(or $(SEED),1) go test -count=1 -v -timeout 60m -run '^TestLedger_WhyAgrees' $(TEST_FLAGS) ./pkg/scheduler

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME
	@bash scripts/fuzz.sh

.PHONY: bench
bench: ## Run the Go benchmarks
	@bash scripts/bench.sh

.PHONY: place
place: build ## Show where each placement strategy puts runs, on six agents and after the loss of one
	@bash scripts/place.sh

.PHONY: failover
failover: build ## Measure the longest pause of tasks when nodes join, drain, restart and are killed
	@build/carillon bench failover

.PHONY: soak
soak: ## Run a cluster under load for SOAK while nodes join and leave
	@bash scripts/soak.sh

.PHONY: chaos
chaos: ## Inject faults into a cluster for DURATION, chosen by SEED, and check the guarantees
	@bash scripts/chaos.sh

.PHONY: upgrade
upgrade: ## Upgrade a cluster from the commit FROM to this one, node by node, and back
	@bash scripts/upgrade.sh

.PHONY: sim
sim: ## Simulate SEEDS clusters in virtual time, starting at SEED, with DURATION of faults each
	@bash scripts/sim.sh

.PHONY: mutants
mutants: ## Check that the simulation detects a broken protocol
	go test -count=1 -timeout $(TEST_TIMEOUT) -run '^TestMutants_' $(TEST_FLAGS) ./pkg/internal/test/sim

.PHONY: outage
outage: ## Stop a cluster with TASKS tasks for a day and check how it catches up, in virtual time and on a real etcd
	CARILLON_OUTAGE=etcd CARILLON_OUTAGE_TASKS=$(or $(TASKS),10000) go test -count=1 -v -timeout 1h -run '^TestOutage_' $(TEST_FLAGS) ./pkg/internal/test/sim

.PHONY: shadow
shadow: build ## Compare a real cron with shadow tasks of its crontab for MINUTES (root; CRON is the path of cron)
	@bash scripts/shadow.sh

.PHONY: cluster-up
cluster-up: build build/etcd build/etcdctl ## Start three etcd members and three agents on this host; with EMBEDDED=1, only agents
	@bash scripts/cluster-up.sh $(NODES)

.PHONY: cluster-down
cluster-down: ## Stop the local cluster; CLEAN=1 deletes its data
	@bash scripts/cluster-down.sh $(NODES)

.PHONY: docs
docs: build ## Write the references of the command line and of the HTTP API to build/docs
	@bash scripts/cli-docs.sh
	@bash scripts/api-docs.sh

.PHONY: deb
deb: ## Build a Debian package in build/, for GOARCH (default: this host)
	@bash scripts/deb.sh

.PHONY: deb-test
deb-test: ## Install, upgrade, remove and purge the package on a clean Debian (root; DEB_ROOT is a tarball of one)
	@bash scripts/deb-test.sh

.PHONY: vm-test
vm-test: ## Test the package in virtual machines with cgroup v2 and v1, against docs/how-to/limits.md (root)
	@bash scripts/vm-test.sh

.PHONY: clean
clean: ## Delete build/, including the data of `make run`
	@bash scripts/clean.sh

# Carillon. To list the targets, run `make` or `make help`.
#
# Requires Go, make and bash. `make test` also requires a C compiler for the race
# detector. To turn both off, set RACE=.

.DEFAULT_GOAL := help

MODULE := github.com/carillonhq/carillon

# Other variables have their defaults in the scripts, to which make passes the command line's.
VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null)
TEST_TIMEOUT ?= 25m

# Programs are static, so that they run on hosts with another or an older C library. They
# find the users and groups of tasks only in /etc/passwd and /etc/group. With CGO_ENABLED=1,
# which requires a C compiler, they use the host's NSS (LDAP, SSSD). Scripts that use the race
# detector set it too.
export CGO_ENABLED ?= 0

# -dwarf=false: a build takes a tenth less processor time without data for debuggers. Stack traces and
# profiles do not need them. For a debugger, run go build without make.
# -trimpath: a build contains no paths of this host, so it is reproducible, and checkouts share
# the build cache.
# -buildvcs=false: builds work outside of a checkout, and in one that another user owns. -X sets
# the version.
# -toolexec: compilers and linkers run for a few seconds, so they need no garbage collector until they
# use a gigabyte of memory. Tests do not get these variables.
export GOFLAGS := $(strip $(shell go env GOFLAGS 2>/dev/null) -trimpath -buildvcs=false -gcflags=all=-dwarf=false '-toolexec=env GOGC=off GOMEMLIMIT=1GiB')

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) ":" } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "The tests take PKG=./pkg/store, TEST_FLAGS='-run Commit -v', RACE= (no race detector) and TEST_TIMEOUT=25m."
	@echo "Each script in scripts/ describes the other variables of its target, for example FAULTS in scripts/chaos.sh."

##@ Build and run

.PHONY: build
build: ## Build build/carillon
	@mkdir -p build
	go build -ldflags "-X $(MODULE)/pkg/internal/version.version=$(VERSION)" -o build/carillon ./cmd/carillon

.PHONY: run
run: build ## Run one node with the tasks in examples/ and show them, until Ctrl-C
	@bash scripts/run.sh

.PHONY: build/carillon-bench
build/carillon-bench: ## Build the program that measures Carillon as a whole
	@mkdir -p build
	go build -ldflags "-X $(MODULE)/pkg/internal/version.version=$(VERSION)" -o $@ ./cmd/carillon-bench

# go.mod sets the versions of etcd and etcdctl.
build/etcd: go.mod ## Build etcd, for the local cluster
	@mkdir -p build
	go build -o $@ go.etcd.io/etcd/server/v3

build/etcdctl: go.mod ## Build etcdctl, to inspect the local cluster
	@mkdir -p build
	go build -o $@ go.etcd.io/etcd/etcdctl/v3

.PHONY: cluster-up
cluster-up: build build/etcd build/etcdctl ## Start three etcd members and three agents on this host; EMBEDDED=1: agents with an embedded etcd
	@bash scripts/cluster-up.sh $(NODES)

.PHONY: cluster-down
cluster-down: ## Stop the local cluster; CLEAN=1 deletes its data
	@bash scripts/cluster-down.sh $(NODES)

.PHONY: docs
docs: build ## Write the references of the command line, the HTTP API and the records, and the tests of each guarantee, to build/docs
	@bash scripts/cli-docs.sh
	@bash scripts/api-docs.sh
	@go run ./scripts/records -page build/docs/records.md
	@bash scripts/guarantees.sh

.PHONY: site
site: docs ## Write the manual and these references as a site with a search to build/site
	@VERSION=$(VERSION) go run ./scripts/site build/site build/docs/cli.md build/docs/api.md build/docs/records.md

.PHONY: deb
deb: ## Build a Debian package in build/; GOARCH=arm64
	@bash scripts/package.sh deb

.PHONY: image
image: ## Build the container image build/carillon-image.tar, for amd64 and arm64, without Docker
	@bash scripts/image.sh

.PHONY: release
release: ## Build all files of a release in build/release; VERSION=v1.2.3 SIGNING_KEY=~/.ssh/id_ed25519
	@VERSION=$(VERSION) bash scripts/release.sh

.PHONY: clean
clean: ## Delete build/, including the data of make run
	@bash scripts/clean.sh

##@ Before each commit

.PHONY: lint
lint: ## Run gofmt, go vet and staticcheck; check imports and the links in docs
	@bash scripts/lint.sh

.PHONY: test
test: ## Run the quick tests with the race detector; print failures last
	@bash scripts/test.sh

##@ Longer tests

.PHONY: cross
cross: ## Check the command line for macOS and Windows: vet, build, size
	@bash scripts/cross.sh

.PHONY: test-cluster
test-cluster: ## Run the long tests: real daemons, benchmarks, a short chaos
	@bash scripts/test.sh cluster

.PHONY: stress
stress: ## Run the tests of PKG 20 times under CPU load; COUNT=100
	@bash scripts/stress.sh

.PHONY: ui-test
ui-test: build ## Test the Web UI in Chromium; write screenshots to build/ui
	@bash scripts/ui-test.sh

.PHONY: fuzz
fuzz: ## Run each fuzz target for 20 s; FUZZTIME=5m
	@bash scripts/fuzz.sh

.PHONY: mutants
mutants: ## Check that the simulation detects a broken Carillon
	go run ./pkg/internal/test/mutant/overlay build/_mutants
	go test -overlay build/_mutants/overlay.json -count=1 -timeout $(TEST_TIMEOUT) -run '^Test(Mutants|Story)_' $(TEST_FLAGS) ./pkg/internal/test/sim ./pkg/internal/authority ./pkg/scheduler ./pkg/internal/backup/restore

.PHONY: deploy-test
deploy-test: ## Test the alert rules with Prometheus' own engine, and the chart with Helm's library
	cd deploy/prometheus && go test $(TEST_FLAGS) ./...
	cd deploy/helm && go test $(TEST_FLAGS) ./...

.PHONY: sim
sim: ## Simulate 100 clusters in virtual time; SEED=4711 SEEDS=1 DURATION=1m
	@bash scripts/sim.sh

.PHONY: chaos
chaos: ## Inject faults into a real cluster and check the guarantees; SEED=7 DURATION=20m FAULTS=kill-all
	@bash scripts/chaos.sh

.PHONY: soak
soak: ## Run a cluster under load while nodes join and leave; SOAK=1h, RATE=1000
	@bash scripts/soak.sh

.PHONY: upgrade
upgrade: ## Upgrade a cluster from a commit to this one, node by node, and back; FROM=HEAD~100
	@bash scripts/upgrade.sh

.PHONY: outage
outage: ## Stop a cluster for a day and check how it catches up; TASKS=1000
	CARILLON_OUTAGE=etcd CARILLON_OUTAGE_TASKS=$(or $(TASKS),10000) go test -count=1 -v -timeout 1h -run '^TestOutage_' $(TEST_FLAGS) ./pkg/internal/test/sim

.PHONY: oracle
oracle: ## Compare schedules with a brute-force search: all zones and clock changes from 1970 to 2040
	go test -count=1 -timeout 60m -run '_AgreesWithOracle' $(TEST_FLAGS) ./pkg/internal/schedule -everything

.PHONY: why-oracle
why-oracle: ## Compare the answers of why with all records of 30 days in virtual time; DAYS=10 SEED=7
	CARILLON_LEDGER_WHY_DAYS=$(or $(DAYS),30) CARILLON_LEDGER_WHY_SEED=$(or $(SEED),1) go test -count=1 -v -timeout 60m -run '^TestLedger_WhyAgrees' $(TEST_FLAGS) ./pkg/scheduler

.PHONY: shadow
shadow: build ## Compare a real cron with shadow tasks of its crontab (root); MINUTES=60 CRON=/usr/sbin/cron
	@bash scripts/shadow.sh

.PHONY: deb-test
deb-test: ## Install, upgrade, remove and purge the package on a clean Debian (root)
	@bash scripts/deb-test.sh

.PHONY: image-test
image-test: image ## Run the agent of the image as the first process of a container, without Docker (root)
	CARILLON_RELEASE=$(CURDIR)/build go -C scripts/release test -count=1 -run '^TestImage_' $(TEST_FLAGS) .

.PHONY: release-test
release-test: ## Build a release twice, compare, and test its packages and its container image (root)
	@bash scripts/release-test.sh

.PHONY: vm-test
vm-test: ## Test the package in virtual machines with cgroup v2 and v1 (root)
	@bash scripts/vm-test.sh

##@ Measure

.PHONY: bench
bench: ## Run the Go benchmarks; PKG=./pkg/kv BENCH=Batcher BENCHTIME=5s
	@bash scripts/bench.sh

.PHONY: place
place: build ## Show where each placement strategy puts runs, on six agents and after the loss of one
	@bash scripts/place.sh

// Command layers checks the structure of the code. Packages import only what the table below allows, so that
// imports point down. Each external module is imported in a few places only. Nothing below main ends the process or
// creates a context. The command is part of make lint.
//
//	cli, daemon → api, scheduler → election, shard, executor, store → kv, schedule → task
//
// Tests may import what they need (a test of the executor uses etcd), with one exception: only packages schedule
// and importer use robfig/cron, also in tests.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/carillonhq/carillon"

// allowedImports lists the packages of this module that each package may import. A package that is missing here is
// an error, because adding a package is a decision.
var allowedImports = map[string][]string{
	"cmd/carillon":       {"pkg/cli", "pkg/daemon"},
	"cmd/carillon-bench": {"pkg/bench", "pkg/daemon"},

	// daemon uses client for carillon dev, which asks its own API for a login link.
	"pkg/daemon": {"pkg/client", "pkg/internal/oidclogin", "pkg/internal/ui", "pkg/internal/readmodel", "pkg/daemon/auditlog", "pkg/daemon/bootstraptoken", "pkg/daemon/datadir", "pkg/daemon/etcdhistory", "pkg/daemon/garbage", "pkg/daemon/peerprobe", "pkg/daemon/hostfacts", "pkg/daemon/clockguard", "pkg/daemon/unixsocket", "pkg/daemon/systemd", "pkg/filetrust", "pkg/internal/connlimit", "pkg/internal/peercerts", "pkg/internal/secret", "pkg/policy", "pkg/internal/manifest", "pkg/internal/certs", "pkg/internal/api", "pkg/scheduler", "pkg/scheduler/placement", "election", "shard", "executor", "executor/proctree", "executor/spool", "pkg/cgroup", "pkg/store", "pkg/store/etcdadmin", "pkg/store/record", "pkg/kv", "pkg/kv/embedded", "pkg/task", "executor/workdir", "executor/guardian", "executor/process", "executor/httpaction", "pkg/internal/access", "pkg/internal/authority", "pkg/store/eventlog"},
	// auditlog stores late audit records and copies and removes those in etcd.
	"pkg/daemon/auditlog": {"pkg/daemon/datadir", "pkg/kv", "pkg/store", "pkg/store/etcdadmin", "pkg/store/record", "pkg/task"},
	// bootstraptoken creates the cluster with its first access records.
	"pkg/daemon/bootstraptoken": {"pkg/daemon/datadir", "pkg/filetrust", "pkg/internal/access", "pkg/internal/authority", "pkg/store", "pkg/store/record", "pkg/task"},
	// etcdhistory detects by revisions that etcd was restored, and stores them in datadir.
	"pkg/daemon/etcdhistory": {"pkg/daemon/datadir", "pkg/store", "pkg/task"},
	// What a node decides, measures or probes by itself. daemon wires them.
	"pkg/daemon/clockguard": {"pkg/task"},
	"pkg/daemon/garbage":    {},
	// datadir stores files. It uses etcd's leases only as numbers.
	"pkg/daemon/datadir":   {"pkg/filetrust", "pkg/task"},
	"pkg/daemon/hostfacts": {"pkg/task"},
	"pkg/daemon/peerprobe": {"pkg/internal/api", "pkg/internal/certs", "pkg/task"},
	// systemd reports the node's state. The access rule of unixsocket also applies to an inherited socket.
	"pkg/daemon/systemd": {"pkg/daemon/unixsocket"},
	// unixsocket opens the socket, and marks for api the requests of users who need no token. Processes of attempts are not
	// among these users, so it needs to know how attempts are found.
	"pkg/daemon/unixsocket": {"executor/proctree", "pkg/cgroup", "pkg/filetrust", "pkg/internal/api", "pkg/internal/connlimit", "pkg/task"},
	// bench is above daemon: it wires the components as daemon does, to measure them.
	"pkg/bench": {"pkg/cli/factory", "pkg/cli/failure", "pkg/cli/output", "pkg/daemon/garbage", "pkg/daemon", "pkg/internal/test/check", "pkg/internal/api", "pkg/client", "pkg/scheduler", "pkg/scheduler/placement", "election", "shard", "executor", "executor/proctree", "executor/spool", "pkg/cgroup", "pkg/store", "pkg/store/record", "pkg/kv", "pkg/kv/embedded", "pkg/internal/schedule", "pkg/task", "executor/workdir", "executor/guardian", "executor/process", "pkg/internal/access", "pkg/internal/authority", "executor/httpaction", "pkg/policy"},
	// cli uses the API like any other client, and contains no part of a node. It parses schedules to report errors
	// before it sends them. It creates the key files for secrets, which an operator copies to the nodes.
	"pkg/cli": {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/complete", "pkg/cli/load", "pkg/cli/logs", "pkg/cli/apply", "pkg/cli/schedule", "pkg/cli/run", "pkg/cli/task", "pkg/cli/node", "pkg/cli/shard", "pkg/cli/cluster", "pkg/cli/secret", "pkg/cli/cert", "pkg/cli/config", "pkg/cli/audit", "pkg/cli/events", "pkg/cli/top", "pkg/cli/imports", "pkg/cli/access", "pkg/cli/namespace", "pkg/cli/role", "pkg/cli/token", "pkg/cli/login", "pkg/client", "pkg/internal/manifest", "pkg/task"},
	// failure creates the errors of commands, output prints, settings finds what a command needs to reach a server.
	// None of them makes calls.
	"pkg/cli/failure":  {"pkg/client", "pkg/internal/manifest", "pkg/task"},
	"pkg/cli/output":   {"pkg/cli/failure", "pkg/internal/manifest", "pkg/internal/schedule", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/settings": {"pkg/cli/failure", "pkg/client", "pkg/internal/manifest", "pkg/task"},
	// factory is what commands share. The packages above it are shared by several nouns.
	"pkg/cli/factory":   {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/settings", "pkg/client", "pkg/internal/certs", "pkg/task"},
	"pkg/cli/selection": {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/client", "pkg/internal/schedule", "pkg/task"},
	"pkg/cli/batch":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/client", "pkg/task"},
	"pkg/cli/view":      {"pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/client", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/complete":  {"pkg/cli/output", "pkg/cli/settings", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/view", "pkg/client", "pkg/internal/access", "pkg/internal/schedule", "pkg/task"},
	"pkg/cli/watch":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/client", "pkg/task"},

	// One package for each noun. task is above run and schedule, whose tables it shows. schedule, imports and task
	// read files and show changes as apply does.
	"pkg/cli/logs":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/task"},
	"pkg/cli/apply":    {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/batch", "pkg/cli/view", "pkg/client", "pkg/internal/manifest", "pkg/task"},
	"pkg/cli/schedule": {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/view", "pkg/cli/complete", "pkg/cli/apply", "pkg/client", "pkg/internal/manifest", "pkg/internal/schedule", "pkg/task"},
	"pkg/cli/run":      {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/cli/watch", "pkg/cli/logs", "pkg/client", "pkg/internal/curl", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/task":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/cli/watch", "pkg/cli/logs", "pkg/cli/apply", "pkg/cli/schedule", "pkg/cli/run", "pkg/client", "pkg/internal/manifest", "pkg/internal/schedule", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/node":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/cli/watch", "pkg/client", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/shard":    {"pkg/cli/output", "pkg/cli/factory", "pkg/cli/watch", "pkg/client", "pkg/task"},
	"pkg/cli/cluster":  {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/internal/overview", "pkg/internal/peercerts", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/secret":   {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/batch", "pkg/cli/complete", "pkg/client", "pkg/envfile", "pkg/internal/secret", "pkg/task"},
	"pkg/cli/cert":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/batch", "pkg/cli/complete", "pkg/internal/certs", "pkg/task"},
	"pkg/cli/config":   {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/settings", "pkg/cli/factory", "pkg/cli/complete", "pkg/client", "pkg/task"},
	"pkg/cli/audit":    {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/internal/wording", "pkg/task"},
	// access names verbs and kinds of objects as internal/access, which is pure, defines them.
	"pkg/cli/login":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/settings", "pkg/cli/factory", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/task"},
	"pkg/cli/access":    {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/cli/token", "pkg/client", "pkg/internal/access", "pkg/task"},
	"pkg/cli/namespace": {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/task"},
	"pkg/cli/role":      {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/task"},
	"pkg/cli/token":     {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/batch", "pkg/cli/view", "pkg/cli/complete", "pkg/client", "pkg/task"},
	"pkg/cli/events":    {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/complete", "pkg/client", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/load":      {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/view", "pkg/client", "pkg/internal/wording", "pkg/task"},
	"pkg/cli/top":       {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/client", "pkg/internal/top", "pkg/task"},
	"pkg/cli/imports":   {"pkg/cli/failure", "pkg/cli/output", "pkg/cli/factory", "pkg/cli/selection", "pkg/cli/complete", "pkg/cli/apply", "pkg/internal/importer", "pkg/internal/manifest", "pkg/internal/schedule", "pkg/task"},

	// wording is pure: the command line and the pages share it.
	"pkg/internal/wording": {"pkg/client", "pkg/internal/schedule", "pkg/task"},
	// overview is pure: the command line, top and the pages show its problems.
	"pkg/internal/overview": {"pkg/client", "pkg/internal/wording", "pkg/task"},
	"pkg/internal/curl":     {"pkg/task"},
	"pkg/internal/top":      {"pkg/client", "pkg/internal/overview", "pkg/internal/wording", "pkg/task"},
	"pkg/internal/importer": {"pkg/internal/manifest", "pkg/internal/schedule", "pkg/task"},
	"pkg/internal/manifest": {"pkg/internal/schema", "pkg/internal/schedule", "pkg/task"},
	// schema is shared by the OpenAPI document and the schema for editors.
	"pkg/internal/schema": {"pkg/internal/schedule", "pkg/task"},

	// api is the server: it authenticates, describes and routes, and wires the handlers of each resource.
	"pkg/internal/api": {"pkg/client", "pkg/internal/api/logins", "pkg/internal/oidclogin", "pkg/internal/api/ask", "pkg/internal/readmodel", "pkg/internal/api/cluster", "pkg/internal/api/events", "pkg/internal/api/httpapi", "pkg/internal/api/load", "pkg/internal/api/logs", "pkg/internal/api/nodes", "pkg/internal/api/peers", "pkg/internal/api/runs", "pkg/internal/api/secrets", "pkg/internal/api/attempts", "pkg/internal/api/tasks", "pkg/internal/api/views", "pkg/internal/connlimit", "pkg/internal/schema", "pkg/internal/secret", "pkg/internal/statement", "pkg/store", "pkg/store/record", "pkg/task", "pkg/internal/access", "pkg/internal/api/accesscontrol", "pkg/internal/authority", "pkg/store/eventlog"},
	// ui shows in pages what the API answers, through client. It asks access and authority only whose session a request has
	// and which buttons to offer.
	"pkg/internal/ui": {"pkg/client", "pkg/internal/access", "pkg/internal/authority", "pkg/internal/manifest", "pkg/internal/overview", "pkg/internal/schedule", "pkg/internal/wording", "pkg/task"},
	// browsertest tests the pages in a browser. Only its tests import anything.
	"pkg/internal/ui/browsertest": {},
	// httpapi is shared by the handlers of all resources. peers makes requests to other nodes. views shows records,
	// and selection finds tasks. A resource imports no other resource, except that runs and board import attempts,
	// which extends what they show.
	"pkg/internal/api/httpapi": {"pkg/client", "pkg/store", "pkg/store/record", "pkg/task", "pkg/internal/access", "pkg/internal/authority"},
	"pkg/internal/api/peers":   {"pkg/client", "pkg/internal/readmodel", "pkg/internal/api/httpapi", "pkg/internal/statement", "pkg/task"},
	"pkg/internal/api/views":   {"pkg/client", "pkg/internal/api/httpapi", "pkg/internal/schedule", "pkg/store", "pkg/store/record", "pkg/task"},
	// ask asks the owners of shards.
	"pkg/internal/api/ask":      {"pkg/client", "pkg/internal/access", "pkg/internal/api/httpapi", "pkg/internal/api/peers", "pkg/internal/api/views", "pkg/internal/readmodel", "pkg/store", "pkg/store/record", "pkg/task"},
	"pkg/internal/api/tasks":    {"pkg/client", "pkg/internal/ledger", "pkg/internal/api/ask", "pkg/internal/readmodel", "pkg/internal/api/httpapi", "pkg/internal/api/views", "pkg/internal/runstats", "pkg/internal/schedule", "pkg/internal/why", "pkg/store", "pkg/store/record", "pkg/task", "pkg/internal/access", "pkg/internal/authority"},
	"pkg/internal/api/attempts": {"pkg/client", "pkg/internal/api/httpapi", "pkg/internal/api/peers", "pkg/store", "pkg/task"},
	// logins lets people sign in with the identity providers of oidclogin, which knows nothing of the cluster.
	"pkg/internal/api/logins": {"pkg/client", "pkg/internal/api/httpapi", "pkg/internal/oidclogin", "pkg/task"},
	"pkg/internal/oidclogin":  {"pkg/filetrust", "pkg/internal/access", "pkg/task"},
	// accesscontrol changes access records and reads audit records. access and authority decide what it may change.
	"pkg/internal/api/accesscontrol": {"pkg/client", "pkg/internal/access", "pkg/internal/api/httpapi", "pkg/internal/authority", "pkg/internal/oidclogin", "pkg/store", "pkg/store/record", "pkg/task"},
	// access is pure: it decides who may do what. authority keeps the records that it decides by current.
	"pkg/internal/access":     {"pkg/task"},
	"pkg/internal/authority":  {"pkg/clock", "pkg/internal/access", "pkg/kv", "pkg/store", "pkg/store/record", "pkg/task", "pkg/wake"},
	"pkg/internal/api/runs":   {"pkg/client", "pkg/internal/api/ask", "pkg/internal/api/httpapi", "pkg/internal/api/attempts", "pkg/internal/api/views", "pkg/internal/readmodel", "pkg/store", "pkg/store/record", "pkg/task", "pkg/internal/access"},
	"pkg/internal/api/load":   {"pkg/client", "pkg/internal/access", "pkg/internal/api/ask", "pkg/internal/api/httpapi", "pkg/internal/readmodel", "pkg/task"},
	"pkg/internal/api/logs":   {"pkg/client", "pkg/internal/api/httpapi", "pkg/internal/api/peers", "pkg/store", "pkg/store/record", "pkg/task", "pkg/internal/access"},
	"pkg/internal/api/events": {"pkg/client", "pkg/internal/api/httpapi", "pkg/store", "pkg/store/eventlog", "pkg/task", "pkg/internal/access", "pkg/internal/authority"},
	"pkg/internal/api/nodes":  {"pkg/client", "pkg/internal/api/httpapi", "pkg/internal/api/views", "pkg/store", "pkg/task", "pkg/internal/access"},
	// cluster lets package audit check the live cluster.
	"pkg/internal/api/cluster": {"pkg/client", "pkg/internal/api/ask", "pkg/internal/api/httpapi", "pkg/internal/api/views", "pkg/internal/audit", "pkg/store", "pkg/store/etcdadmin", "pkg/store/record", "pkg/task", "pkg/internal/access"},
	"pkg/internal/api/secrets": {"pkg/client", "pkg/internal/api/httpapi", "pkg/internal/secret", "pkg/store", "pkg/store/record", "pkg/task", "pkg/internal/access"},
	"pkg/client":               {"pkg/task"},
	// why is pure: its caller reads the records.
	"pkg/internal/why": {"pkg/internal/access", "pkg/internal/ledger", "pkg/internal/schedule", "pkg/task"},
	// ledger is pure: package retention writes its chunks, and package why reads them.
	"pkg/internal/ledger": {"pkg/task"},
	// runstats sums up records.
	"pkg/internal/runstats": {"pkg/client", "pkg/task"},
	"pkg/scheduler":         {"pkg/scheduler/absence", "pkg/scheduler/activescan", "pkg/scheduler/definition", "pkg/scheduler/fanout", "pkg/scheduler/feed", "pkg/scheduler/known", "pkg/scheduler/metrics", "pkg/scheduler/nslimits", "pkg/scheduler/pace", "pkg/scheduler/pastruns", "pkg/scheduler/placement", "pkg/scheduler/reconcile", "pkg/scheduler/retention", "pkg/scheduler/rows", "pkg/scheduler/scanlimit", "pkg/scheduler/taskstate", "pkg/scheduler/tickpolicy", "pkg/store", "pkg/store/record", "pkg/internal/readmodel", "pkg/internal/schedule", "pkg/task"},
	// placement chooses the nodes of runs. It does not depend on shards, ticks or records.
	"pkg/scheduler/placement": {"pkg/task"},
	// tickpolicy is pure arithmetic over ticks and counts of runs.
	"pkg/scheduler/tickpolicy": {"pkg/task"},
	// retention deletes through store what shards request.
	"pkg/scheduler/retention": {"pkg/internal/ledger", "pkg/internal/schedule", "pkg/store", "pkg/store/record", "pkg/task"},
	// activescan lists active attempts for all shards at once. pace counts tokens, and does not depend on runs.
	"pkg/scheduler/activescan": {"pkg/store"},
	"pkg/scheduler/pace":       {},
	// readmodel is pure: owners write rows, and the API asks for them.
	"pkg/internal/readmodel": {"pkg/internal/schedule", "pkg/task"},
	// rows writes what queries read, and pastruns reads a part of that from the history. No decision depends on them.
	"pkg/scheduler/rows":     {"pkg/internal/readmodel", "pkg/scheduler/pastruns", "pkg/scheduler/taskstate", "pkg/store", "pkg/store/record", "pkg/task"},
	"pkg/scheduler/pastruns": {"pkg/internal/readmodel", "pkg/store", "pkg/store/record", "pkg/task"},
	// scanlimit limits what queries cost a node.
	"pkg/scheduler/scanlimit": {},
	// taskstate holds the state of one task. It reads and decides nothing.
	"pkg/scheduler/taskstate": {"pkg/scheduler/definition", "pkg/scheduler/placement", "pkg/scheduler/retention", "pkg/scheduler/tickpolicy", "pkg/internal/readmodel", "pkg/internal/schedule", "pkg/store", "pkg/store/record", "pkg/task"},
	// definition parses entries, and does not depend on shards.
	"pkg/scheduler/definition": {"pkg/scheduler/tickpolicy", "pkg/internal/schedule", "pkg/store/record", "pkg/task"},
	// known holds the known records of a shard, and compares them with those in etcd.
	"pkg/scheduler/known": {"pkg/scheduler/definition", "pkg/scheduler/taskstate", "pkg/store", "pkg/store/record", "pkg/task"},
	// reconcile lists keys, and passes them to the owners of shards.
	"pkg/scheduler/reconcile": {"pkg/store", "pkg/store/record"},
	// absence decides which attempts are lost because their node is gone.
	"pkg/scheduler/absence": {"pkg/scheduler/taskstate", "pkg/store"},
	// nslimits checks tasks by the records of their namespaces, as access defines them.
	"pkg/scheduler/nslimits": {"pkg/internal/access", "pkg/scheduler/definition", "pkg/scheduler/taskstate", "pkg/store/record", "pkg/task"},
	// fanout computes what becomes of the parts of a run.
	"pkg/scheduler/fanout": {"pkg/scheduler/taskstate", "pkg/task"},
	// feed follows a shard for its worker.
	"pkg/scheduler/feed": {"pkg/store"},
	// metrics counts what workers do.
	"pkg/scheduler/metrics": {"pkg/store", "pkg/task"},

	"election": {"pkg/kv"},
	"shard":    {"pkg/store", "pkg/store/record", "pkg/kv", "pkg/task"},
	// executor is the state machine of the inbox. The packages below it depend neither on the inbox nor on etcd.
	"executor": {"executor/guardian", "executor/process", "executor/proctree", "executor/spool", "pkg/cgroup", "pkg/kv", "pkg/store", "pkg/store/record", "pkg/task"},
	// process starts the processes of attempts, and waits for their end.
	"executor/process": {"executor/guardian", "executor/mask", "executor/proctree", "executor/spool", "executor/status", "executor/workdir", "pkg/cgroup", "pkg/envfile", "pkg/policy", "pkg/spawn", "pkg/task"},
	// httpaction sends the requests of attempts. It shares with process only what an attempt and its result are.
	"executor/httpaction": {"executor/mask", "executor/process", "executor/proctree", "executor/spool", "pkg/policy", "pkg/task"},
	"pkg/store":           {"pkg/store/etcdadmin", "pkg/store/eventlog", "pkg/store/record", "pkg/kv", "pkg/task"},
	// record has the keys and values, events converts changes of revisions to events. Both are pure. store reads
	// and writes, eventlog only reads.
	"pkg/store/eventlog": {"pkg/store/events", "pkg/store/record", "pkg/kv", "pkg/task"},
	"pkg/store/events":   {"pkg/store/record", "pkg/task"},
	"pkg/store/record":   {"pkg/task"},
	// etcdadmin reports and changes the members of etcd, and touches no record.
	"pkg/store/etcdadmin": {"pkg/kv", "pkg/task"},

	// guardian receives the attempts, and kills them with proctree. It does not depend on how they are started.
	"executor/guardian": {"executor/proctree", "executor/workdir", "pkg/cgroup"},
	// proctree finds the processes of an attempt, and does not depend on what starts them.
	"executor/proctree": {"pkg/cgroup", "pkg/task"},
	// status reads what attempts report, workdir maintains their directories. Neither depends on processes.
	"executor/status":  {"pkg/task"},
	"executor/workdir": {"pkg/filetrust", "pkg/task"},
	// spool stores files, and does not depend on processes or the inbox.
	"executor/spool": {"executor/mask", "pkg/task"},
	// mask finds values of secrets in texts, and knows neither secrets nor outputs.
	"executor/mask": {},

	// audit reads a live cluster, and repairs through store.
	"pkg/internal/audit": {"pkg/internal/access", "pkg/internal/ledger", "pkg/store", "pkg/store/etcdadmin", "pkg/store/record", "pkg/kv", "pkg/internal/schedule", "pkg/task"},
	// check judges whole histories, for tests and for bench. It does no I/O.
	"pkg/internal/test/check": {"pkg/internal/test/check/oracle", "pkg/internal/ledger", "pkg/store/record", "pkg/task", "pkg/internal/access"},

	// oracle and utccron compute ticks by themselves, to be compared with those of schedule. oracle uses schedule only
	// for schedules that it does not support.
	"pkg/internal/test/check/oracle":  {"pkg/internal/test/check/utccron", "pkg/internal/schedule", "pkg/task"},
	"pkg/internal/test/check/utccron": {},

	// secret encrypts, envfile reads files with variables, policy decides what a node may run. They are independent
	// of each other.
	"pkg/internal/secret": {},
	"pkg/envfile":         {"pkg/task"},
	"pkg/policy":          {"pkg/filetrust", "pkg/internal/manifest", "pkg/task"},

	// filetrust determines who can change a file, whatever the file contains.
	"pkg/filetrust": {},

	// statement signs and verifies requests between nodes, and is pure.
	"pkg/internal/statement": {},

	// certs handles files and TLS, and does not depend on its users.
	"pkg/internal/certs": {},
	// peercerts creates the certificates of the members of an embedded etcd, for the agent and the command line.
	"pkg/internal/peercerts": {"pkg/internal/certs"},

	// connlimit limits connections, and does not depend on what is sent over them.
	"pkg/internal/connlimit": {},

	// cgroup uses the kernel's control groups, and does not depend on attempts.
	"pkg/cgroup": {},
	// clock provides a sleep that a context can end, and random durations.
	"pkg/clock": {},
	// callgroup passes panics of goroutines on to the one that waits for them.
	"pkg/callgroup": {},
	// wake provides a one-slot signal between goroutines.
	"pkg/wake": {},
	// spawn creates processes. nofile must be initialized before any other package.
	"pkg/spawn":        {"pkg/spawn/nofile"},
	"pkg/spawn/nofile": {},

	"pkg/kv": {},
	// embedded runs an etcd in this process, and gives its users a client of kv.
	"pkg/kv/embedded": {"pkg/kv", "pkg/internal/certs"},
	// kvmem is an in-memory etcd for tests and the simulation.
	"pkg/kv/kvmem":               {},
	"pkg/internal/test/etcdhook": {},
	"pkg/internal/schedule":      {"pkg/task"},
	"pkg/task":                   {},

	"scripts/layers": {},
}

// outsideImports lists imports from other modules that only some packages may have. The first prefix that matches
// an import applies.
var outsideImports = []struct {
	prefix string
	by     []string
	tests  bool // the rule also applies to tests
	why    string
}{
	{"go.etcd.io/etcd/server/", []string{"pkg/kv/embedded"}, false, "only kv/embedded runs an etcd"},
	// recorder needs every revision, and audit the whole prefix, which store does not provide, because it returns the
	// current state of records. Both only read, and an audit repairs through store. bench also measures etcd
	// without Carillon.
	{"go.etcd.io/", []string{"pkg/kv", "pkg/kv/embedded", "pkg/kv/kvmem", "pkg/store", "pkg/store/etcdadmin", "pkg/store/eventlog", "pkg/store/events", "pkg/store/record", "election", "pkg/daemon", "pkg/daemon/auditlog", "pkg/daemon/datadir", "pkg/daemon/etcdhistory", "pkg/internal/audit", "pkg/internal/authority", "pkg/bench", "pkg/internal/test/recorder", "pkg/internal/test/sim", "pkg/internal/test/etcdhook"}, false,
		"only kv (with embedded), store (with etcdadmin and eventlog), election, authority and daemon (with etcdhistory) touch the etcd client, and record, events, datadir and auditlog its types; audit and bench from outside; kvmem and what is in pkg/internal/test for tests"},
	{"github.com/coreos/go-oidc", []string{"pkg/internal/oidclogin"}, true, "only oidclogin talks to identity providers"},
	{"golang.org/x/oauth2", []string{"pkg/internal/oidclogin"}, true, "only oidclogin talks to identity providers"},
	{"code.dny.dev/ssrf", []string{"pkg/policy"}, true, "only policy judges addresses"},
	{"github.com/robfig/cron", []string{"pkg/internal/schedule", "pkg/internal/importer"}, true, "only schedule imports robfig/cron, and importer, which reads the schedules of Kubernetes with it"},
}

// sharedPackages are packages that import nothing from this module, and that every package except those of stdOnly
// may import.
var sharedPackages = []string{"pkg/callgroup", "pkg/clock", "pkg/wake"}

// stdOnly may import only the standard library.
var stdOnly = []string{"pkg/task", "scripts/layers"}

// isMain reports whether a package may end the process and create contexts.
func isMain(name string) bool {
	return strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "scripts/")
}

// testsOnly is the prefix of packages that only tests may import, in addition to those whose name ends in test,
// such as kvtest.
const testsOnly = "pkg/internal/test/"

// forTests reports whether a package is only for tests. It may do what tests may do, unless the table names it: the
// judge of histories must not depend on what it judges.
func forTests(name string) bool {
	_, listed := allowedImports[name]
	return !listed && (strings.HasSuffix(name, "test") || strings.HasPrefix(name, testsOnly))
}

// bannedCalls are calls that only main may make.
var bannedCalls = map[string]string{
	"os.Exit":            "only main ends the process",
	"syscall.Exit":       "only main ends the process",
	"log.Fatal":          "only main ends the process",
	"log.Fatalf":         "only main ends the process",
	"log.Fatalln":        "only main ends the process",
	"context.Background": "contexts come from main; clean-up uses context.WithoutCancel and a deadline",
	"context.TODO":       "contexts come from main; clean-up uses context.WithoutCancel and a deadline",
}

// shell is the part of a package around its deterministic part: the files that read, wait, lock, log and count. All
// other files are the deterministic part. They must not have any import in impureImports, read the clock, use the
// global random numbers, or use the types of the shell.
type shell struct {
	files []string
	types []string
}

// deterministicParts lists the packages with a deterministic part, with its shell.
var deterministicParts = map[string]shell{
	"pkg/daemon/clockguard":    {}, // an empty shell: the whole package is deterministic
	"pkg/internal/overview":    {},
	"pkg/scheduler/absence":    {},
	"pkg/scheduler/definition": {files: []string{"cache.go"}},
	"pkg/scheduler/fanout":     {},
	"pkg/scheduler/known":      {},
	"pkg/scheduler/nslimits":   {},
	"pkg/scheduler/rows":       {},
	"pkg/scheduler/taskstate":  {},
	"pkg/scheduler/tickpolicy": {},
	"pkg/store/events":         {},
	"pkg/scheduler": {
		files: []string{
			"ask.go", "engine.go", "known_freezes.go", "past_runs.go",
			"preload.go", "read_attempts.go", "read_histories.go", "report.go", "review.go",
			"revised.go", "round.go", "stall.go", "store.go", "worker.go",
		},
		types: []string{"worker", "Engine", "Fleet"},
	},
}

// impureImports are the imports, by prefix, that the deterministic part of a package must not have.
var impureImports = []string{
	"context", "sync", "net", "os", "io", "log", "runtime", "weak", "golang.org/x/sync", "go.uber.org/zap", "github.com/prometheus",
}

func main() {
	faults, err := checkTree()
	if err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(2)
	}

	for _, f := range faults {
		fmt.Println(f)
	}

	if len(faults) > 0 {
		fmt.Printf("layers: %d faults; the rules are in scripts/layers/main.go\n", len(faults))
		os.Exit(1)
	}
}

// pkg is the output of go list for a package.
type pkg struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	CgoFiles     []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// checkTree checks all packages, and returns the faults in order.
func checkTree() ([]string, error) {
	packages, err := listPackages()
	if err != nil {
		return nil, err
	}

	var c checker

	for _, p := range packages {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(name, "build/") {
			continue // not part of the source tree
		}

		c.checkImports(name, p)

		if err := c.checkCalls(name, p); err != nil {
			return nil, err
		}
	}

	c.checkProduct(packages)
	slices.Sort(c.faults)

	return c.faults, nil
}

// checkProduct checks that the program carillon contains no instrument, through whatever packages. A fault names the
// imports that lead to it.
func (c *checker) checkProduct(packages []pkg) {
	imports := map[string][]string{}
	for _, p := range packages {
		imports[p.ImportPath] = p.Imports
	}

	seen := map[string]bool{}
	var visit func(path, way string)
	visit = func(path, way string) {
		if seen[path] {
			return
		}
		seen[path] = true

		name := strings.TrimPrefix(path, module+"/")
		if strings.HasPrefix(name, testsOnly) || strings.HasPrefix(name, "pkg/kv/kvtest") || name == "pkg/kv/kvmem" || name == "pkg/bench" {
			c.addFault("cmd/carillon", "contains %s, which is for tests and benchmarks: %s", name, way)
			return
		}

		for _, next := range imports[path] {
			visit(next, way+" → "+strings.TrimPrefix(next, module+"/"))
		}
	}

	visit(module+"/cmd/carillon", "cmd/carillon")
}

// listPackages returns all packages of the module.
func listPackages() ([]pkg, error) {
	// With -e, because checkTree reports import cycles, and go vet reports broken packages.
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,CgoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Stderr = os.Stderr

	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}

	var packages []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read what go list says: %w", err)
		}

		packages = append(packages, p)
	}

	if len(packages) == 0 {
		return nil, errors.New("go list names no packages: run it in the repository")
	}

	return packages, nil
}

// checker collects the faults.
type checker struct{ faults []string }

func (c *checker) addFault(where, format string, args ...any) {
	c.faults = append(c.faults, where+": "+fmt.Sprintf(format, args...))
}

// checkImports checks the imports of a package.
func (c *checker) checkImports(name string, p pkg) {
	may, known := allowedImports[name]

	if forTests(name) {
		p.Imports, p.TestImports = nil, slices.Concat(p.Imports, p.TestImports)
	} else if !known {
		c.addFault(name, "the package is not in the table of scripts/layers/main.go: say there what it may import")
	}

	for _, path := range p.Imports {
		inner, ours := strings.CutPrefix(path, module+"/")
		if ours && known && !slices.Contains(may, inner) && !slices.Contains(sharedPackages, inner) {
			c.addFault(name, "imports %s, which is not below it; it may import: %s", inner, orNothing(may))
		}

		if slices.Contains(stdOnly, name) && strings.Contains(firstElement(path), ".") {
			c.addFault(name, "imports %s; it may import the standard library only", path)
		}

		c.checkOutside(name, path, false)
	}

	for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
		c.checkOutside(name, path, true)
	}
}

// checkOutside checks an import against outsideImports.
func (c *checker) checkOutside(name, path string, test bool) {
	for _, rule := range outsideImports {
		if !strings.HasPrefix(path, rule.prefix) {
			continue
		}
		if test && !rule.tests {
			return
		}

		if !slices.Contains(rule.by, name) {
			c.addFault(name, "imports %s; %s", path, rule.why)
		}

		return
	}
}

// checkCalls finds calls that only main may make.
func (c *checker) checkCalls(name string, p pkg) error {
	if isMain(name) || forTests(name) {
		return nil
	}

	for _, file := range slices.Concat(p.GoFiles, p.CgoFiles) {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}

		names := importNames(f)

		if around, has := deterministicParts[name]; has && !slices.Contains(around.files, file) {
			c.checkDeterministic(name+"/"+file, around, set, f, names)
		}

		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}

			at := fmt.Sprintf("%s/%s:%d", name, file, set.Position(sel.Pos()).Line)
			x, isName := sel.X.(*ast.Ident)
			if isName && names[x.Name] != "" {
				call := names[x.Name] + "." + sel.Sel.Name
				if why := bannedCalls[call]; why != "" {
					c.addFault(at, "uses %s; %s", call, why)
				}
				return true
			}

			// A method with such a name, such as a logger's, also ends the process. Tests are not checked.
			if m := sel.Sel.Name; m == "Fatal" || m == "Fatalf" || m == "Fatalln" {
				c.addFault(at, "uses .%s; only main ends the process", m)
			}

			return true
		})
	}

	return nil
}

// checkDeterministic checks a file of the deterministic part of a package.
func (c *checker) checkDeterministic(where string, around shell, set *token.FileSet, f *ast.File, names map[string]string) {
	for _, path := range names {
		for _, prefix := range impureImports {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				c.addFault(where, "imports %s; this file decides, and the shell around it does that", path)
			}
		}
	}

	ast.Inspect(f, func(n ast.Node) bool {
		at := func() string { return fmt.Sprintf("%s:%d", where, set.Position(n.Pos()).Line) }

		switch n := n.(type) {
		case *ast.Ident:
			if slices.Contains(around.types, n.Name) {
				c.addFault(at(), "names %s; this file decides, and gets what it needs by a call or from a port", n.Name)
			}
		case *ast.SelectorExpr:
			x, isName := n.X.(*ast.Ident)
			if !isName {
				return true
			}

			clock := names[x.Name] == "time" && slices.Contains(clockCalls, n.Sel.Name)
			random := strings.HasPrefix(names[x.Name], "math/rand") && n.Sel.Name != "Rand"
			if clock || random {
				c.addFault(at(), "uses %s.%s; this file decides, and gets the time and random numbers by a call or from a port", x.Name, n.Sel.Name)
			}
		}

		return true
	})
}

// clockCalls are the functions of package time that read the clock or wait.
var clockCalls = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// importNames maps the names under which a file imports packages to their paths.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue // cannot happen: the parser has accepted it
		}

		name := path[strings.LastIndex(path, "/")+1:]
		if major := strings.TrimPrefix(name, "v"); major != name && strings.Trim(major, "0123456789") == "" && strings.Contains(path, "/") {
			name = filepath.Base(filepath.Dir(path)) // as in math/rand/v2
		}

		if i.Name != nil {
			name = i.Name.Name
		}

		names[name] = path
	}

	return names
}

// firstElement returns the part of an import path before the first slash.
func firstElement(path string) string {
	head, _, _ := strings.Cut(path, "/")
	return head
}

// orNothing joins a list for a message.
func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing of this module"
	}
	return strings.Join(list, ", ")
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each rule finds its fault, and nothing else.
func TestCheckPackages_FindsWhatBreaksARule(t *testing.T) {
	for _, c := range []struct {
		name    string
		pkg     string
		imports string // those of this module without its path
		tests   string // imports of tests
		source  string // of file.go, without its package clause
		want    string // the fault; "": none
	}{
		// layers
		{name: "a lower layer", pkg: "shard", imports: "pkg/store pkg/store/record pkg/kv pkg/task pkg/wake"},
		{name: "a package by its name", pkg: "executor", imports: "pkg/cgroup executor/process"},
		{name: "a higher layer", pkg: "pkg/store", imports: "shard", want: "imports shard, which is not below it"},
		{name: "a lower layer that is not allowed", pkg: "pkg/scheduler", imports: "pkg/kv", want: "scheduler may import: knowledge store record"},
		{name: "below the executor, etcd", pkg: "executor/process", imports: "pkg/kv", want: "attempts may import"},
		{name: "a part of a node in the command line", pkg: "pkg/cli/task", imports: "pkg/store", want: "cli may import"},
		{name: "a part of a node in the Web UI", pkg: "pkg/internal/ui", imports: "pkg/internal/api/tasks", want: "ui may import"},
		{name: "the own layer", pkg: "pkg/cli/task", imports: "pkg/cli/run"},
		{name: "the own layer, whose packages are independent", pkg: "pkg/internal/api/runs", imports: "pkg/internal/api/tasks", want: "resources may import"},
		{name: "what resources share", pkg: "pkg/internal/api/runs", imports: "pkg/internal/api/ask"},
		{name: "records from transactions", pkg: "pkg/store/record", imports: "pkg/store", want: "is not below it"},
		{name: "the longest pattern", pkg: "pkg/store/events", imports: "pkg/kv", want: "record may import"},
		{name: "a new package in the API", pkg: "pkg/internal/api/new", imports: "pkg/store"},
		{name: "a new public package", pkg: "pkg/new", imports: "pkg/client", want: "is not below it"},
		{name: "a new top-level package", pkg: "new", want: "belongs to no layer"},
		{name: "the judge and what it judges", pkg: "pkg/internal/test/check", imports: "pkg/internal/schedule", want: "judge may import"},
		{name: "the independent clock of the judge", pkg: "pkg/internal/test/check/utccron", imports: "pkg/internal/schedule", want: "utccron may import"},
		{name: "tests import everything", pkg: "pkg/store", tests: "shard pkg/internal/test/sim"},
		{name: "test support imports everything", pkg: "pkg/internal/test/sim", imports: "pkg/daemon pkg/kv/kvmem go.etcd.io/etcd/client/v3"},
		{name: "test support outside of tests", pkg: "pkg/daemon", imports: "pkg/internal/test/sim", want: "imports pkg/internal/test/sim, which is for tests"},
		{name: "test support by its name", pkg: "pkg/daemon", imports: "pkg/kv/kvtest", want: "which is for tests"},

		// stdOnly
		{name: "task and another module", pkg: "pkg/task", imports: "go.uber.org/zap", want: "only the standard library"},
		{name: "task and this module", pkg: "pkg/task", imports: "pkg/clock", want: "only the standard library"},

		// modules
		{name: "etcd's client", pkg: "pkg/store", imports: "go.etcd.io/etcd/client/v3"},
		{name: "etcd's client elsewhere", pkg: "pkg/scheduler", imports: "go.etcd.io/etcd/client/v3", want: "only kv, store, election"},
		{name: "etcd's client below a package that may use it", pkg: "pkg/daemon/systemd", imports: "go.etcd.io/etcd/client/v3", want: "only kv, store, election"},
		{name: "etcd's client in tests", pkg: "pkg/scheduler", tests: "go.etcd.io/etcd/client/v3"},
		{name: "etcd's server", pkg: "pkg/kv", imports: "go.etcd.io/etcd/server/v3/etcdserver", want: "only kv/embedded runs an etcd"},
		{name: "etcd's server with all that the command adds", pkg: "pkg/kv/embedded", imports: "go.etcd.io/etcd/server/v3/embed", want: "tracing, a gateway and listeners"},
		{name: "etcd's server in tests", pkg: "pkg/scheduler", tests: "pkg/kv/embedded/embeddedtest", want: "tests start etcd as a process"},
		{name: "another cron, also in tests", pkg: "pkg/scheduler", tests: "github.com/robfig/cron/v3", want: "only schedule imports robfig/cron"},

		// calls
		{name: "end of the process", pkg: "pkg/kv", source: `import "os"; func f() { os.Exit(1) }`, want: "file.go:2: uses os.Exit; only main"},
		{name: "end of the process in main", pkg: "cmd/carillon", source: `import "os"; func f() { os.Exit(1) }`},
		{name: "end of the process by a logger", pkg: "pkg/kv", source: `func f(l logger) { l.Fatalf("") }`, want: "uses .Fatalf"},
		{name: "a context", pkg: "pkg/kv", source: `import c "context"; var ctx = c.Background()`, want: "uses context.Background"},

		// pure
		{name: "I/O of a pure package", pkg: "pkg/internal/why", source: `import "os"; var _ os.File`, want: "imports os; this file decides"},
		{name: "HTTP of a pure package", pkg: "pkg/internal/access", source: `import "net/http"; var _ http.Client`, want: "imports net/http"},
		{name: "an address of a pure package", pkg: "pkg/internal/access", source: `import "net/netip"; var _ netip.Addr`},
		{name: "the clock of a pure package", pkg: "pkg/scheduler/state", source: `import "time"; var now = time.Now()`, want: "uses time.Now"},
		{name: "a time of a pure package", pkg: "pkg/scheduler/state", source: `import "time"; var now = time.Unix(0, 0)`},
		{name: "chance in a pure package", pkg: "pkg/scheduler/state", source: `import "math/rand/v2"; var n = rand.IntN(3)`, want: "uses rand.IntN"},
		{name: "a type of the shell", pkg: "pkg/scheduler", source: `func f(w *worker) {}`, want: "names worker"},
		{name: "a package with I/O", pkg: "pkg/kv", source: `import ("os"; "time"); var _ os.File; var now = time.Now()`},
		{name: "a file that does not parse", pkg: "pkg/kv", source: `func`, want: "expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pkg{name: c.pkg, dir: t.TempDir(), imports: importPaths(c.imports), testImports: importPaths(c.tests)}

			if c.source != "" {
				p.files = []string{"file.go"}
				if err := os.WriteFile(filepath.Join(p.dir, "file.go"), []byte("package p\n"+c.source), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			faults := checkPackages([]pkg{p})
			if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)) {
				t.Errorf("faults %q, want %q", faults, c.want)
			}
		})
	}
}

func TestCheckPackages_KeepsInstrumentsOutOfTheProduct(t *testing.T) {
	for _, instrument := range []string{"pkg/internal/test/check", "pkg/internal/test/sim", "pkg/bench", "pkg/kv/kvmem", "pkg/kv/kvtest"} {
		faults := checkPackages([]pkg{{name: product, deps: importPaths("pkg/daemon golang.org/x/tools/go/analysis/analysistest " + instrument)}})
		if want := "cmd/carillon: contains " + instrument + ", which is for tests and measurements"; len(faults) != 1 || faults[0] != want {
			t.Errorf("faults %q, want %q", faults, want)
		}
	}
}

// importPaths returns the paths of packages of this module and of others.
func importPaths(words string) []string {
	var paths []string
	for _, w := range strings.Fields(words) {
		if first, _, _ := strings.Cut(w, "/"); !strings.Contains(first, ".") {
			w = module + w
		}
		paths = append(paths, w)
	}

	return paths
}

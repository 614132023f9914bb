// Command layers checks the structure of the code. Imports point down, and only a few packages import certain modules.
// The product contains nothing that is for tests. Packages that decide do no I/O. Nothing below main ends the process or
// creates a context. The command is part of make lint.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/carillonhq/carillon/"

// layers lists the packages of this module from top to bottom. A pattern x/... matches x and everything below it, x/*
// only what is below it. The longest pattern that matches a package applies.
//
// A package may import the layers and the packages in imports, but nothing from a higher layer. Every package may also
// import those in everywhere, and others of its own layer, except for a pattern x/*, whose packages are independent of
// each other. Tests may import everything.
var layers = []layer{
	{"scripts", "scripts/*", "docs pkg/docsite"},
	{"main", "cmd/carillon", "cli daemon"},
	{"bench-main", "cmd/carillon-bench", "bench cli"},
	{"bench", "pkg/bench", anything},

	// The judge of histories and its oracle must not depend on what they judge. The oracle uses schedule only for
	// schedules that it does not support.
	{"judge", "pkg/internal/test/check", "oracle record pkg/internal/access pkg/internal/ledger"},
	{"oracle", "pkg/internal/test/check/oracle", "utccron pkg/internal/schedule"},
	{"utccron", "pkg/internal/test/check/utccron", ""},

	// The command line is a client of the API, and contains no part of a node.
	{"cli", "pkg/cli/...", "client knowledge backup restore pkg/envfile"},

	// daemon wires the parts of a node. What is below it depends neither on the scheduler nor on the executor.
	{"daemon", "pkg/daemon", anything},
	// restore replaces the data of a host whose agent is stopped.
	{"restore", "pkg/internal/backup/restore", "backup knowledge store record kv embedded audit pkg/daemon/datadir pkg/filetrust"},
	{"host", "pkg/daemon/...", "api authority knowledge store record kv executor/proctree pkg/cgroup pkg/filetrust"},

	// ui shows what the API answers, through client. It asks authority only for the session and rights of a request.
	{"ui", "pkg/internal/ui/...", "client knowledge authority docs pkg/docsite"},

	// Resources are independent of each other. The API reads and writes through store, and uses no other part of a node.
	{"api", "pkg/internal/api", "resources handlers client knowledge authority oidclogin store record"},
	{"resources", "pkg/internal/api/*", "handlers client knowledge authority oidclogin audit backup store record"},
	{"handlers", "pkg/internal/api/ask pkg/internal/api/attempts pkg/internal/api/peers pkg/internal/api/views pkg/internal/api/httpapi", "client knowledge authority store record"},
	{"audit", "pkg/internal/audit", "knowledge store record kv"},
	{"backup", "pkg/internal/backup/...", "client knowledge store record kv embedded"},
	{"authority", "pkg/internal/authority", "knowledge store record kv"},
	{"oidclogin", "pkg/internal/oidclogin", "knowledge pkg/filetrust"},

	// The scheduler reads and writes through store.
	{"scheduler", "pkg/scheduler/...", "knowledge store record"},
	{"shard", "shard", "store record kv"},
	{"election", "election", "kv"},

	// executor is the state machine of the inbox. The packages below it depend neither on the inbox nor on etcd.
	{"executor", "executor", "attempts store record kv pkg/cgroup"},
	{"attempts", "executor/...", "pkg/cgroup pkg/envfile pkg/filetrust pkg/policy pkg/spawn"},

	{"store", "pkg/store/...", "record kv"},
	{"record", "pkg/store/record pkg/store/events", ""},
	{"embedded", "pkg/kv/embedded", "kv pkg/internal/certs"},
	{"kvmem", "pkg/kv/kvmem", ""},
	{"kv", "pkg/kv", ""},
	{"policy", "pkg/policy", "pkg/internal/manifest pkg/filetrust"},

	// What clients, the API and the scheduler know, such as schedules, manifests and access rights.
	{"knowledge", "pkg/internal/...", "client"},
	{"client", "pkg/client", ""},
	{"spawn", "pkg/spawn/...", ""},
	{"basics", "pkg/*", ""},
	{"docs", "docs", ""},
}

// layer is a set of packages. packages are patterns, imports are names of layers or packages, each separated by spaces.
type layer struct{ name, packages, imports string }

// anything in imports means everything of a lower layer.
const anything = "*"

// everywhere are packages that every other package may import, except for those in stdOnly.
const everywhere = "pkg/task pkg/callgroup pkg/clock pkg/wake"

// stdOnly are packages that import only the standard library.
const stdOnly = "pkg/task scripts/layers"

// product is the program that contains no instrument, through whatever imports.
const product = "cmd/carillon"

// isInstrument reports whether a package is for tests and measurements.
func isInstrument(name string) bool {
	return name == "pkg/bench" || name == "pkg/kv/kvmem" || strings.HasPrefix(name, "pkg/internal/test/") || strings.HasSuffix(name, "test")
}

// forTests reports whether only tests may import a package. It may do what tests may do. layers names the instruments
// that must be as strict as the product.
func forTests(name string) bool {
	return isInstrument(name) && !slices.ContainsFunc(layers, func(l layer) bool { return l.packages == name })
}

// modules lists imports, by prefix, that only some packages may have, most of them from other modules. The first that matches applies.
var modules = []struct {
	prefix, importers string
	tests             bool // the rule also applies to tests
	why               string
}{
	{"go.etcd.io/etcd/server/v3/embed", "", false, "embed brings tracing, a gateway and listeners that an agent does not use; embedded starts etcdserver"},
	{"go.etcd.io/etcd/server/", "pkg/kv/embedded", false, "only kv/embedded runs an etcd"},
	{"go.etcd.io/", "pkg/kv pkg/kv/embedded pkg/kv/kvmem pkg/store pkg/store/etcdadmin pkg/store/eventlog pkg/store/events pkg/store/record " +
		"election pkg/daemon pkg/daemon/auditlog pkg/daemon/datadir pkg/daemon/etcdhistory pkg/internal/audit pkg/internal/authority pkg/internal/backup pkg/internal/backup/restore pkg/bench",
		false, "only kv, store, election, authority and daemon use the etcd client; audit and bench observe etcd from outside, and backup reads and writes its files"},
	{module + "pkg/kv/embedded", "pkg/kv pkg/kv/embedded pkg/kv/embedded/embeddedtest pkg/store/eventlog election pkg/daemon pkg/internal/api pkg/internal/backup/restore pkg/internal/backup/source pkg/internal/test/etcd pkg/bench",
		true, "tests start etcd as a process, with kvtest, unless they test the in-process client"},
	{"github.com/coreos/go-oidc", "pkg/internal/oidclogin", true, "only oidclogin talks to identity providers"},
	{"golang.org/x/oauth2", "pkg/internal/oidclogin", true, "only oidclogin talks to identity providers"},
	{"code.dny.dev/ssrf", "pkg/policy", true, "only policy judges addresses"},
	{"github.com/modelcontextprotocol/go-sdk", "pkg/cli/mcp", false, "only cli/mcp speaks the Model Context Protocol"},
	{"github.com/yuin/goldmark", "pkg/docsite", true, "only docsite reads Markdown"},
	{"github.com/robfig/cron", "pkg/internal/schedule pkg/internal/importer", true, "only schedule imports robfig/cron, and importer, which reads the schedules of Kubernetes with it"},
}

// Only main ends the process and creates contexts. Clean-up uses context.WithoutCancel and a deadline.
const bannedCalls = "os.Exit syscall.Exit log.Fatal log.Fatalf log.Fatalln context.Background context.TODO"

// pure lists packages that decide. They import nothing in impureImports, read no clock and use no global random numbers.
// A package may have a shell around its pure part: the files that read, wait, lock, log and count. Pure files do not
// name the types of the shell.
var pure = map[string]struct{ files, types string }{
	"pkg/daemon/clockguard":           {},
	"pkg/internal/access":             {},
	"pkg/internal/alert":              {},
	"pkg/internal/depgraph":           {files: "deletion.go", types: "Deletion PlanDeletion"},
	"pkg/internal/ledger":             {},
	"pkg/internal/overview":           {},
	"pkg/internal/runstats":           {},
	"pkg/internal/schema":             {},
	"pkg/internal/test/check/oracle":  {},
	"pkg/internal/test/check/utccron": {},
	"pkg/internal/why":                {},
	"pkg/internal/workflow":           {},
	"pkg/scheduler/rows":              {},
	"pkg/scheduler/state":             {files: "cache.go"},
	"pkg/scheduler/tickpolicy":        {},
	"pkg/store/events":                {},
	"pkg/scheduler": {
		files: "engine.go preload.go read.go round.go task_metrics.go worker.go",
		types: "worker Engine Fleet",
	},
}

const (
	// impureImports are the imports, by prefix, that pure files must not have. addresses are exceptions.
	impureImports = "context sync net os io log runtime weak golang.org/x/sync go.uber.org/zap github.com/prometheus"
	addresses     = "net/netip net/url"

	// clockCalls are the functions of package time that read the clock or wait.
	clockCalls = "After AfterFunc NewTicker NewTimer Now Since Sleep Tick Until"
)

func main() {
	packages, err := listPackages()
	if err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(2)
	}

	if faults := checkPackages(packages); len(faults) > 0 {
		fmt.Printf("%s\nlayers: %d faults; the rules are in scripts/layers/main.go\n", strings.Join(faults, "\n"), len(faults))
		os.Exit(1)
	}
}

// pkg is a package: its name without the module, its directory and files, its imports and those of its tests. deps are
// the direct and indirect imports of the product.
type pkg struct {
	name, dir                         string
	files, imports, testImports, deps []string
}

// listPackages returns all packages of the module.
func listPackages() ([]pkg, error) {
	// With -e, because go vet reports import cycles and broken packages.
	cmd := exec.Command("go", "list", "-e", "-f", "{{.ImportPath}}\t{{.Dir}}\t{{join .GoFiles \" \"}} {{join .CgoFiles \" \"}}\t"+
		"{{join .Imports \" \"}}\t{{join .TestImports \" \"}} {{join .XTestImports \" \"}}\t"+
		"{{if eq .ImportPath \""+module+product+"\"}}{{join .Deps \" \"}}{{end}}", "./...")
	cmd.Stderr = os.Stderr

	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}

	var packages []pkg
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		name := strings.TrimPrefix(f[0], module)
		if !strings.HasPrefix(name, "build/") { // not part of the source tree
			packages = append(packages, pkg{name, f[1], strings.Fields(f[2]), strings.Fields(f[3]), strings.Fields(f[4]), strings.Fields(f[5])})
		}
	}

	return packages, nil
}

// checker collects the faults.
type checker struct{ faults []string }

func (c *checker) addFault(where, format string, args ...any) {
	c.faults = append(c.faults, where+": "+fmt.Sprintf(format, args...))
}

// checkPackages returns all faults in order.
func checkPackages(packages []pkg) []string {
	var c checker

	for _, p := range packages {
		c.checkImports(p)
		c.checkFiles(p)

		for _, dep := range p.deps {
			if inner, ours := strings.CutPrefix(dep, module); ours && isInstrument(inner) {
				c.addFault(p.name, "contains %s, which is for tests and measurements", inner)
			}
		}
	}

	slices.Sort(c.faults)

	return slices.Compact(c.faults)
}

// findLayer returns the index of the layer of a package, or -1, and the pattern.
func findLayer(name string) (int, string) {
	found, pattern := -1, ""
	for i, l := range layers {
		for _, p := range strings.Fields(l.packages) {
			tree, below := strings.CutSuffix(p, "...")
			parent, children := strings.CutSuffix(p, "*")
			if p == name {
				return i, p
			}
			if (below && strings.HasPrefix(name+"/", tree) || children && strings.HasPrefix(name, parent)) && len(p) > len(pattern) {
				found, pattern = i, p
			}
		}
	}

	return found, pattern
}

// lists reports whether a list of words contains a word.
func lists(words, word string) bool { return slices.Contains(strings.Fields(words), word) }

// checkImports checks the imports of a package against layers, stdOnly and modules.
func (c *checker) checkImports(p pkg) {
	own, pattern := findLayer(p.name)
	if own < 0 && !forTests(p.name) {
		c.addFault(p.name, "belongs to no layer")
		return
	}

	for _, imported := range p.imports {
		c.checkModule(p.name, imported, forTests(p.name))

		if first, _, _ := strings.Cut(imported, "/"); lists(stdOnly, p.name) && strings.Contains(first, ".") {
			c.addFault(p.name, "imports %s; it may import only the standard library", imported)
		}

		inner, ours := strings.CutPrefix(imported, module)
		if !ours || forTests(p.name) || lists(everywhere, inner) {
			continue
		}

		other, _ := findLayer(inner)
		may := layers[own].imports
		switch {
		case forTests(inner):
			c.addFault(p.name, "imports %s, which is for tests", inner)
		case other < own:
			c.addFault(p.name, "imports %s, which is not below it", inner)
		case other == own && !strings.HasSuffix(pattern, "*"):
		case other > own && (may == anything || lists(may, layers[other].name)), lists(may, inner):
		default:
			c.addFault(p.name, "imports %s; %s may import: %s", inner, layers[own].name, may)
		}
	}

	for _, imported := range p.testImports {
		c.checkModule(p.name, imported, true)
	}
}

// checkModule checks an import against modules.
func (c *checker) checkModule(name, imported string, test bool) {
	for _, rule := range modules {
		if strings.HasPrefix(imported, rule.prefix) {
			if !lists(rule.importers, name) && (rule.tests || !test) {
				c.addFault(name, "imports %s; %s", imported, rule.why)
			}
			return
		}
	}
}

// checkFiles checks the calls of a package, and its pure part.
func (c *checker) checkFiles(p pkg) {
	if strings.HasPrefix(p.name, "cmd/") || strings.HasPrefix(p.name, "scripts/") || forTests(p.name) {
		return
	}

	shell, hasPure := pure[p.name]
	for _, file := range p.files {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(p.dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			c.addFault(p.name, "%v", err)
			continue
		}

		names, isPure := importNames(f), hasPure && !lists(shell.files, file)
		at := p.name + "/" + file

		for _, imported := range names {
			isImpure := func(prefix string) bool { return strings.HasPrefix(imported+"/", prefix+"/") }
			if isPure && slices.ContainsFunc(strings.Fields(impureImports), isImpure) && !lists(addresses, imported) {
				c.addFault(at, "imports %s; this file decides, and the shell around it does that", imported)
			}
		}

		ast.Inspect(f, func(n ast.Node) bool {
			line := func() string { return fmt.Sprintf("%s:%d", at, set.Position(n.Pos()).Line) }

			switch n := n.(type) {
			case *ast.Ident:
				if isPure && lists(shell.types, n.Name) {
					c.addFault(line(), "names %s; this file decides, and gets what it needs by a call or from a port", n.Name)
				}
			case *ast.SelectorExpr:
				c.checkSelector(line(), n, names, isPure)
			}

			return true
		})
	}
}

// checkSelector checks a call that ends the process or creates a context, and the use of clocks and random numbers in
// a pure file.
func (c *checker) checkSelector(at string, sel *ast.SelectorExpr, names map[string]string, isPure bool) {
	method := sel.Sel.Name
	x, ok := sel.X.(*ast.Ident)
	if !ok || names[x.Name] == "" {
		// A method with such a name, such as a logger's, also ends the process.
		if method == "Fatal" || method == "Fatalf" || method == "Fatalln" {
			c.addFault(at, "uses .%s; only main ends the process", method)
		}
		return
	}

	imported := names[x.Name]
	if lists(bannedCalls, imported+"."+method) {
		c.addFault(at, "uses %s.%s; only main ends the process and creates contexts", imported, method)
	}

	clock := imported == "time" && lists(clockCalls, method)
	random := strings.HasPrefix(imported, "math/rand") && method != "Rand"
	if isPure && (clock || random) {
		c.addFault(at, "uses %s.%s; this file decides, and gets the time and random numbers by a call or from a port", x.Name, method)
	}
}

// importNames maps the names under which a file imports packages to their paths.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, i := range f.Imports {
		imported, _ := strconv.Unquote(i.Path.Value) // the parser has accepted it

		name := path.Base(imported)
		if major := strings.TrimPrefix(name, "v"); major != name && strings.Trim(major, "0123456789") == "" {
			name = path.Base(path.Dir(imported)) // as in math/rand/v2
		}

		if i.Name != nil {
			name = i.Name.Name
		}

		names[name] = imported
	}

	return names
}

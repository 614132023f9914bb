package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/output"
)

// timeCommands print times, in addition to those that print tables. For those that need a real server, such as why and apply, see
// testdata/script/zone.txtar.
var timeCommands = append([]string{
	"task get nightly", "task stats nightly", "run get nightly", "alert get nightly:success_by", "load -o wide", "next -o wide",
	"task list -o wide", "run list -o wide", "audit log -o wide", "events -o wide", "token get xu3km4yoqrefykdw", "cluster status",
	"schedule next @daily --jitter 5m", "schedule explain @daily", "task pause nightly --until 2026-12-24T18:00",
	"task get report", "run get report",
}, tableCommands...)

var (
	// clocks matches a time of day, and the zone behind it, if any.
	clocks = regexp.MustCompile(`\b\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?(?: ([A-Z]{3,4})\b)?`)

	// aboutOne matches a command about one task.
	aboutOne = regexp.MustCompile(`^(task (get|history|next|stats|pause)|run get) `)

	// otherDigits matches what looks like a time, and is none: addresses, schedules in words, and the heat map of carillon load, which names
	// its zone above the hours.
	otherDigits = regexp.MustCompile(`https?://\S+|(?m:^\d\d:00 [^A-Z]*$)|(?m:^(?:HOUR|In words|At) .*$)`)

	// utcColumn matches the column UTC of a table of ticks.
	utcColumn = regexp.MustCompile(`( [A-Z]{3,4}  +)\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(  |\n)`)
)

// TestTimes_NameTheirZone: each time that a command prints names its zone, and all are in the same one: that of the task if the command is
// about one task, otherwise the user's.
func TestTimes_NameTheirZone(t *testing.T) {
	server := answeringServer(t)

	for _, mode := range []string{output.TimeRelative, output.TimeLocal, output.TimeUTC} {
		for _, command := range timeCommands {
			want := "EST EDT"
			switch {
			case mode == output.TimeUTC, mode == output.TimeRelative && strings.HasPrefix(command, "schedule"):
				want = "UTC"
			case mode == output.TimeRelative && aboutOne.MatchString(command):
				want = "CET CEST"
			}

			out, errs := printed(t, server.URL, 0, "America/New_York", append(strings.Fields(command), "--time", mode)...)
			for line := range strings.Lines(otherDigits.ReplaceAllString(out+errs, "")) {
				for _, found := range clocks.FindAllStringSubmatch(utcColumn.ReplaceAllString(line, "$1$2"), -1) {
					if zone := found[1]; zone == "" || !strings.Contains(want, zone) {
						t.Errorf("carillon %s --time %s: %q is not in %s: %s", command, mode, found[0], want, line)
					}
				}
			}
		}
	}
}

// TestSources_LeaveTimesToOutput: a command that formats a time itself could forget to name the zone.
func TestSources_LeaveTimesToOutput(t *testing.T) {
	allowed := map[string]string{
		"view/run.go 2006-01-02 15:04:05": "the heading of the column is UTC",
		"load/heatmap.go 15:00":           "the zone is above the hours",
		"selection/run.go f.layout":       "ticks that a user types are compared with it",
		"logs/merge.go stampLayout":       "it has the offset",
		"cluster/format.go ctx":           "this is another method",
	}

	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "output/") {
			return err
		}

		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}

		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); !ok || method.Sel.Name != "Format" {
				return true
			}

			layout := layoutOf(call.Args[0])
			named := regexp.MustCompile(`MST|Z07|UTC|RFC3339|DateOnly`).MatchString(layout)
			if why := allowed[path+" "+layout]; !named && layout != "MST" && why == "" {
				t.Errorf("%s formats a time as %q, without its zone; use a method of output.Printer", path, layout)
			}

			return true
		})

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// layoutOf returns the layout of a call of Format, or the name of the constant.
func layoutOf(arg ast.Expr) string {
	switch arg := arg.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(arg.Value); err == nil {
			return text
		}
	case *ast.Ident:
		return arg.Name
	case *ast.SelectorExpr:
		if x, ok := arg.X.(*ast.Ident); ok {
			return x.Name + "." + arg.Sel.Name
		}
	}

	return "?T"
}

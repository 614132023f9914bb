//go:build linux

package cli_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/daemon"
)

// timeFlags are all flags with a time: a command line that lacks only the value, and in which direction times without a date are
// read. ask: the command asks a server for the zone before it reads the value. remote: the server reads the value; see
// testdata/script/why.txtar.
var timeFlags = map[string]struct {
	line              string
	past, ask, remote bool
}{
	"access grant --until":          {line: "access grant user:bob viewer --cluster --until"},
	"alert silence --until":         {line: "alert silence a --reason x --until"},
	"audit export --since":          {line: "audit export --since", past: true},
	"audit export --until":          {line: "audit export --until", past: true},
	"audit log --since":             {line: "audit log --since", past: true},
	"audit log --until":             {line: "audit log --until", past: true},
	"backup rehearse --backup-time": {line: "backup rehearse x --config agent.yaml --backup-time", past: true},
	"backup restore --backup-time":  {line: "backup restore x --config agent.yaml --plan --backup-time", past: true},
	"backup restore --lost-until":   {line: "backup restore x --config agent.yaml --plan --lost-until", past: true},
	"events --since":                {line: "events --since", past: true},
	"import compare --since":        {line: "import compare nothing.log --since", past: true},
	"import compare --until":        {line: "import compare nothing.log --until", past: true},
	"load --minute":                 {line: "load --minute"},
	"logs --since":                  {line: "logs a --since", past: true},
	"next --from":                   {line: "next --from"},
	"next --until":                  {line: "next --until"},
	"run list --since":              {line: "run list --since", past: true},
	"run list --until":              {line: "run list --until", past: true},
	"run logs --since":              {line: "run logs a --since", past: true},
	"schedule explain --from":       {line: "schedule explain @daily --from"},
	"schedule explain --start":      {line: "schedule explain @daily --start"},
	"schedule explain --end":        {line: "schedule explain @daily --end"},
	"schedule lint --from":          {line: "schedule lint @daily --from"},
	"schedule lint --start":         {line: "schedule lint @daily --start"},
	"schedule lint --end":           {line: "schedule lint @daily --end"},
	"schedule next --from":          {line: "schedule next @daily --from"},
	"schedule next --start":         {line: "schedule next @daily --start"},
	"schedule next --end":           {line: "schedule next @daily --end"},
	"task history --since":          {line: "task history nightly --since", past: true, ask: true},
	"task history --until":          {line: "task history nightly --until", past: true, ask: true},
	"task next --from":              {line: "task next nightly --from", ask: true},
	"task next --until":             {line: "task next nightly --until", ask: true},
	"task pause --until":            {line: "task pause nightly --until", ask: true},
	"task stats --since":            {line: "task stats nightly --since", past: true, ask: true},
	"task trigger --period":         {line: "task trigger nightly --period", past: true, ask: true},
	"task undelete --deleted-since": {line: "task undelete --deleted-since", past: true},
	"task why --at":                 {line: "task why a --at", remote: true},
	"task why --from":               {line: "task why a --from", remote: true},
	"task why --to":                 {line: "task why a --from 2d --to", remote: true},
	"token create --until":          {line: "token create --for user:bob --until"},
	"why --at":                      {line: "why a --at", remote: true},
	"why --from":                    {line: "why a --from", remote: true},
	"why --to":                      {line: "why a --from 2d --to", remote: true},
}

// Each flag with a time or a duration reads the notation of docs/times.md.
func TestTree_FlagsReadOneNotationOfTime(t *testing.T) {
	asked := cli.AnsweringServer(t).URL
	run := func(line, value string, ask bool) (int, string) {
		server := "http://127.0.0.1:1"
		if ask {
			server = asked
		}

		var out, errs bytes.Buffer
		args := append(strings.Fields("--server "+server+" "+line), value)
		code := cli.Main(t.Context(), args, cli.IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(string) string { return "" }})

		return code, errs.String()
	}

	seen := map[string]bool{}
	walk(cli.Tree(daemon.Commands()...), func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name := strings.TrimPrefix(c.CommandPath()+" --"+f.Name, "carillon ")
			kind, _ := pflag.UnquoteUsage(f)

			switch {
			case kind == "TIME":
				seen[name] = true
			case (kind == "DURATION" || f.Value.Type() == "duration") && f.Value.Type() != "string":
				for _, text := range []string{"90s", "36h", "2d", "1w", "2d12h", "1d 20h"} {
					if err := f.Value.Set(text); err != nil {
						t.Errorf("%s %s: %v", name, text, err)
					}
				}
				for _, text := range []string{"", "soon", "10min", "7"} {
					if f.Value.Set(text) == nil && f.Name != "timeout" { // it is a field, and checked with the others
						t.Errorf("%s %q is taken", name, text)
					}
				}
			}
		})
	})

	for name := range seen {
		c, ok := timeFlags[name]
		if !ok {
			t.Errorf("%s: add it to timeFlags", name)
			continue
		}

		texts := []string{"2d12h", "tomorrow 18:00", "2090-01-02"}
		if c.past {
			texts = []string{"2d12h", "yesterday 18:00", "2020-01-02"}
		}
		for _, text := range texts {
			if code, errs := run(c.line, text, c.ask); code == failure.ExitUsage {
				t.Errorf("%s %s: %s", name, text, errs)
			}
		}

		if code, errs := run(c.line, "soon", c.ask); code != failure.ExitUsage && !c.remote {
			t.Errorf("%s soon: exit %d, %s", name, code, errs)
		}
	}

	for name := range timeFlags {
		if !seen[name] {
			t.Errorf("%s: no such flag, or its value is no TIME", name)
		}
	}
}

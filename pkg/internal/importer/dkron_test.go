package importer_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

// dkronExport is what the API of Dkron returns: a list of jobs, each with its state.
const dkronExport = `[
 {
  "id": "orders", "name": "orders", "displayname": "Orders", "timezone": "Europe/Berlin", "schedule": "0 30 2 * * 1-5",
  "owner": "Ann", "owner_email": "ann@corp.example", "success_count": 26, "error_count": 6,
  "last_success": "2019-11-04T04:37:12.396866367Z", "last_error": null, "disabled": true,
  "tags": {"dc": "dc1", "role": "web:1"}, "metadata": {"team": "data", "odd key!": "x"}, "retries": 2,
  "dependent_jobs": ["after"], "parent_job": "", "processors": {"files": {"forward": "true"}, "log": {}},
  "concurrency": "forbid", "executor": "shell",
  "executor_config": {"shell": "true", "command": "echo $ENV_JOB_NAME | wc", "env": "A=1,B=x=y,,oops", "cwd": "/srv", "timeout": "1h30m", "mem_limit": "512MB", "nice": "5"},
  "status": "success", "next": "2019-12-09T09:00:00Z", "ephemeral": false, "starts_at": null, "expires_at": "2030-01-01T00:00:00Z"
 },
 {
  "id": "hook", "name": "hook", "timezone": "", "schedule": "@every 1h30m10s", "disabled": false, "tags": null, "metadata": null,
  "retries": 0, "dependent_jobs": null, "parent_job": "", "processors": {}, "concurrency": "allow", "executor": "http",
  "executor_config": {
   "method": "POST", "url": "https://api.corp/orders?x=${y}", "headers": "[\"Content-Type: application/json\", \"X-Api-Key: a:b\", \"Host: other\"]",
   "body": "{\"day\": \"${today}\"}", "timeout": "45", "expectCode": "200, 206", "expectBody": "ok|done", "debug": "true"
  }
 },
 {"name": "after", "schedule": "@daily", "parent_job": "orders", "executor": "shell", "executor_config": {"command": "true"}},
 {"name": "mail", "schedule": "@daily", "executor": "kafka", "executor_config": {"topic": "x"}}
]`

func TestDkron_MakesTasksOfAnExport(t *testing.T) {
	r := importer.Dkron("f.json", dkronExport, importer.Options{})
	r.NoteChains()
	if len(r.Jobs) != 3 || len(r.Refusals) != 1 || len(r.Notes) != 0 {
		t.Fatalf("%d jobs, refused %v", len(r.Jobs), r.Refusals)
	}

	want := task.Defaults()
	want.Name, want.Description, want.Paused, want.Overlap = "orders", "Orders\nOwner: Ann <ann@corp.example>", true, task.OverlapSkip
	want.Labels = map[string]string{"team": "data", "imported": "dkron"}
	want.Schedule, want.Timezone, want.DST = task.Schedules{"30 2 * * 1-5"}, "Europe/Berlin", task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}
	want.Target.Selector, want.Timeout, want.Missed.Policy = "dc = dc1, role = web", 5400e9, task.MissedSkip
	want.Retry.Attempts, want.Retry.Backoff = 3, 0
	must(t, want.End.UnmarshalText([]byte("2030-01-01T00:00:00Z")))
	want.Action.Process = &task.Process{Shell: "echo $ENV_JOB_NAME | wc", Dir: "/srv", Env: map[string]string{"A": "1", "B": "x=y", "ENV_JOB_NAME": "orders"}, Limits: task.Limits{Memory: 512 << 20}}
	wantJob(t, r.Jobs[0], want, 2, `metadata "odd key!" is omitted`, "its nodes need the labels dc = dc1, role = web", "a retry prefers another node", `env: "oops" is omitted`,
		"mem_limit: the kernel enforces", "processors are not supported: files, log", "values of executor_config without a counterpart: nice")

	want = task.Defaults()
	want.Name, want.Overlap, want.Missed.Policy = "hook", task.OverlapAllow, task.MissedSkip
	want.Labels = map[string]string{"imported": "dkron"}
	want.Schedule, want.Target.Count, want.Timeout = task.Schedules{"@every 1h30m10s"}, task.All, 45e9
	want.Action.HTTP = &task.HTTP{
		Method: "POST", URL: "https://api.corp/orders?x=$${y}", Headers: map[string]string{"Content-Type": "application/json", "X-Api-Key": "a:b"},
		Body: `{"day": "${today}"}`, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200", "206"}, Body: "ok|done"},
	}
	wantJob(t, r.Jobs[1], want, 12, "runs on all nodes, as in Dkron; to run it on one, use --any-node", `the header "X-Api-Key" is sent in full`, `the header "Host" is omitted`,
		`the header "X-Api-Key" is part of the task`, "@every counts from when the task is imported", "values of executor_config without a counterpart: debug")

	want = task.DefaultsOf(task.Spec{After: task.Sources{{Task: "orders"}}})
	want.Name, want.After, want.Overlap, want.Target.Count = "after", task.Sources{{Task: "orders"}}, task.OverlapAllow, task.All
	want.Labels = map[string]string{"imported": "dkron"}
	want.Action.Process = &task.Process{Command: []string{"true"}}
	wantJob(t, r.Jobs[2], want, 20, `its schedule "@daily" is omitted: Dkron ignores the schedule of a job with a parent_job`, "it has no tags")

	for i, text := range []string{`f.json:21: mail: the executor "kafka" is not supported, only shell and http`} {
		if got := r.Refusals[i].Place.String() + ": " + r.Refusals[i].Why; !strings.HasPrefix(got, text) {
			t.Errorf("refused %s\nwant %s", got, text)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantJob checks a job's task, its line, and that its notes contain these texts and no other notes.
func wantJob(t *testing.T, j importer.Job, want task.Spec, line int, notes ...string) {
	t.Helper()

	if d := task.Differences(want, j.Spec); len(d) > 0 || j.Line != line {
		t.Errorf("%s: line %d, differs: %v", j.Spec.Name, j.Line, d)
	}

	for _, note := range notes {
		if !slices.ContainsFunc(j.Notes, func(n string) bool { return strings.Contains(n, note) }) {
			t.Errorf("%s: %q is missing in %q", j.Spec.Name, note, j.Notes)
		}
	}
	if len(j.Notes) != len(notes) {
		t.Errorf("%s: the notes are %q", j.Spec.Name, j.Notes)
	}
}

// dkronText returns a job with these fields in addition to the usual ones.
func dkronText(t *testing.T, fields, config map[string]any) string {
	t.Helper()
	job := map[string]any{"name": "a", "schedule": "@daily", "timezone": "", "executor": "shell", "tags": map[string]any{"x": "y:1"}}
	maps.Copy(job, fields)
	if config != nil {
		job["executor_config"] = config
	}

	b, err := json.Marshal(job)
	must(t, err)

	return string(b)
}

// A tag can limit the number of nodes; the lowest number counts. Without one, Dkron runs the job on all nodes.
func TestDkron_TagsChooseTheNodes(t *testing.T) {
	for name, c := range map[string]struct {
		tags     any
		options  importer.Options
		selector string
		count    task.Count
		refused  string
	}{
		"none":                 {tags: nil, count: task.All},
		"empty":                {tags: map[string]string{}, count: task.All},
		"without a number":     {tags: map[string]string{"my_role": "web"}, selector: "my_role = web", count: task.All},
		"one node":             {tags: map[string]string{"my_role": "web:1"}, selector: "my_role = web", count: 1},
		"the lowest number":    {tags: map[string]string{"a": "x:3", "b": "y:2", "c": "z"}, selector: "a = x, b = y, c = z", count: 2},
		"two colons":           {tags: map[string]string{"a": "x:1:2"}, selector: "a = x", count: task.All},
		"an empty value":       {tags: map[string]string{"a": ":1"}, selector: "a = ", count: 1},
		"a very large number":  {tags: map[string]string{"a": "x:5000"}, selector: "a = x", count: task.All},
		"none of the nodes":    {tags: map[string]string{"a": "x:0"}, refused: `tags: with "a: x:0", Dkron runs it on no node`},
		"not a number":         {tags: map[string]string{"a": "x:one"}, refused: `Dkron runs it on no node`},
		"no number":            {tags: map[string]string{"a": "x:"}, refused: `Dkron runs it on no node`},
		"not a label":          {tags: map[string]string{"a": "x y"}, refused: "the tags cannot be labels of nodes"},
		"--node":               {tags: map[string]string{"a": "x"}, options: importer.Options{Node: "n1"}, selector: "node = n1", count: 1},
		"--any-node":           {tags: map[string]string{"a": "x"}, options: importer.Options{AnyNode: true}, count: 1},
		"--any-node, no tags":  {options: importer.Options{AnyNode: true}, count: 1},
		"the same on all jobs": {tags: map[string]string{"region": "global:1"}, selector: "region = global", count: 1},
	} {
		r := importer.Dkron("f.json", dkronText(t, map[string]any{"tags": c.tags}, map[string]any{"command": "true"}), c.options)
		switch {
		case c.refused != "":
			if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, c.refused) {
				t.Errorf("%s: %+v", name, r)
			}
		case len(r.Jobs) != 1 || r.Jobs[0].Spec.Target.Selector != c.selector || r.Jobs[0].Spec.Target.Count != c.count:
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestDkron_ConvertsFields(t *testing.T) {
	for name, c := range map[string]struct {
		fields map[string]any
		check  func(task.Spec) bool
		note   string
	}{
		"no retries":           {nil, func(s task.Spec) bool { return s.Retry.Attempts == 1 && s.Retry.Backoff == 10e9 }, ""},
		"retries":              {map[string]any{"retries": 5}, func(s task.Spec) bool { return s.Retry.Attempts == 6 && s.Retry.Backoff == 0 }, "a retry prefers another node"},
		"too many retries":     {map[string]any{"retries": 1000}, func(s task.Spec) bool { return s.Retry.Attempts == task.MaxAttempts }, "1000 is reduced to 99"},
		"allow":                {map[string]any{"concurrency": "allow"}, func(s task.Spec) bool { return s.Overlap == task.OverlapAllow }, ""},
		"by default":           {map[string]any{"concurrency": ""}, func(s task.Spec) bool { return s.Overlap == task.OverlapAllow }, ""},
		"no catch-up":          {nil, func(s task.Spec) bool { return s.Missed.Policy == task.MissedSkip }, ""},
		"a time of its Web UI": {map[string]any{"starts_at": "2029-05-01T12:00"}, func(s task.Spec) bool { return s.Start.UTC().String() == "2029-05-01 12:00:00 +0000 UTC" }, ""},
		"no time":              {map[string]any{"expires_at": "0001-01-01T00:00:00Z"}, func(s task.Spec) bool { return s.End.IsZero() }, ""},
		"once":                 {map[string]any{"schedule": "@at 2029-05-01T12:00:00+02:00", "ephemeral": true}, func(s task.Spec) bool { return s.TTL == 24*3600e9 && s.Schedule[0] == "@at 2029-05-01T12:00:00+02:00" }, "deleted 24h after its run"},
		"ephemeral":            {map[string]any{"ephemeral": true}, func(s task.Spec) bool { return s.TTL == 0 }, "ephemeral is not supported"},
		"manually":             {map[string]any{"schedule": "@manually"}, func(s task.Spec) bool { return s.Schedule[0] == "@manual" }, ""},
		"something new":        {map[string]any{"success_count": 3, "color": "red", "empty": nil}, func(task.Spec) bool { return true }, "fields of the job without a counterpart: color"},
	} {
		r := importer.Dkron("f.json", dkronText(t, c.fields, map[string]any{"command": "true"}), importer.Options{})
		if len(r.Jobs) != 1 {
			t.Errorf("%s: %v", name, r.Refusals)
			continue
		}

		j := r.Jobs[0]
		if notes := strings.Join(j.Notes, "\n"); !c.check(j.Spec) || c.note != "" && !strings.Contains(notes, c.note) || strings.Contains(notes, "success_count") {
			t.Errorf("%s: %+v\n%s", name, j.Spec, notes)
		}
	}
}

func TestDkron_ConvertsTheShellExecutor(t *testing.T) {
	words := func(list ...string) task.Process { return task.Process{Command: list} }
	shell := func(line string, change func(*task.Process)) task.Process {
		p := task.Process{Shell: line}
		if change != nil {
			change(&p)
		}
		return p
	}

	for name, c := range map[string]struct {
		config  map[string]any
		want    task.Process
		refused string
	}{
		"words":                 {config: map[string]any{"command": "echo Hello Dkron"}, want: words("echo", "Hello", "Dkron")},
		"quotes":                {config: map[string]any{"command": `a "b c"'d  e'  '' "x\"y" 'p\q'`}, want: words("a", "b cd  e", "", `x"y`, `p\q`)},
		"backslashes":           {config: map[string]any{"command": `a\ b \t \n \\ "\t"`}, want: words("a b", "\t", "\n", `\`, "\t")},
		"nothing is expanded":   {config: map[string]any{"command": "echo $HOME * ~ $(date +%s \"x\") `a b`"}, want: words("echo", "$HOME", "*", "~", `$(date +%s "x")`, "`a b`")},
		"a line":                {config: map[string]any{"shell": "true", "command": "ps aux | grep nginx | wc -l"}, want: shell("ps aux | grep nginx | wc -l", nil)},
		"a boolean":             {config: map[string]any{"shell": true, "command": "a | b"}, want: shell("a | b", nil)},
		"another form of true":  {config: map[string]any{"shell": "1", "command": "a | b"}, want: shell("a | b", nil)},
		"not true":              {config: map[string]any{"shell": "yes", "command": "a b"}, want: words("a", "b")},
		"several lines":         {config: map[string]any{"shell": "true", "command": "#!/bin/bash\necho a\n"}, want: shell("#!/bin/bash\necho a\n", nil)},
		"a user":                {config: map[string]any{"shell": "true", "command": "id", "su": "app:staff"}, want: shell("id", func(p *task.Process) { p.User, p.Group = "app", "staff" })},
		"an input":              {config: map[string]any{"shell": "true", "command": "cat", "payload": "aGVsbG8K"}, want: shell("cat", func(p *task.Process) { p.Stdin = &task.Stdin{Text: "hello\n"} })},
		"memory":                {config: map[string]any{"shell": "true", "command": "x", "mem_limit": "1.5g"}, want: shell("x", func(p *task.Process) { p.Limits.Memory = 3 << 29 })},
		"memory in bytes":       {config: map[string]any{"shell": "true", "command": "x", "mem_limit": 2097152}, want: shell("x", func(p *task.Process) { p.Limits.Memory = 2 << 20 })},
		"an operator":           {config: map[string]any{"command": "ps aux | wc"}, refused: "without shell, Dkron ignores what follows the |"},
		"a redirection":         {config: map[string]any{"command": "echo a 2>/dev/null"}, refused: "without shell, Dkron ignores what follows the >"},
		"a subshell":            {config: map[string]any{"command": "(echo a)"}, refused: "without shell, Dkron rejects ("},
		"an open quotation":     {config: map[string]any{"command": `echo "a`}, refused: "a quotation is not closed"},
		"a backslash":           {config: map[string]any{"command": `echo \`}, refused: "a quotation is not closed"},
		"no command":            {config: map[string]any{}, refused: "has no command"},
		"an empty command":      {config: map[string]any{"command": " "}, refused: "has no command"},
		"a relative directory":  {config: map[string]any{"command": "x", "cwd": "tmp"}, refused: "action.process.dir"},
		"a timeout":             {config: map[string]any{"command": "x", "timeout": "30"}, refused: `timeout: Dkron rejects "30"`},
		"not an amount":         {config: map[string]any{"command": "x", "mem_limit": "lots"}, refused: `mem_limit: Dkron rejects "lots"`},
		"an odd unit":           {config: map[string]any{"command": "x", "mem_limit": "1PB"}, refused: "mem_limit: Dkron rejects"},
		"two points":            {config: map[string]any{"command": "x", "mem_limit": "1.2.3"}, refused: "mem_limit: Dkron rejects"},
		"no memory":             {config: map[string]any{"command": "x", "mem_limit": "0"}, refused: "mem_limit: "},
		"not base64":            {config: map[string]any{"command": "x", "payload": "?"}, refused: "payload: Dkron rejects it"},
		"not text":              {config: map[string]any{"command": "x", "payload": "/w=="}, refused: "payload: is not text"},
		"a user without a name": {config: map[string]any{"command": "x", "su": ":staff"}, refused: "su: "},
		"a variable of ours":    {config: map[string]any{"command": "x", "env": "CARILLON_TASK=x"}, refused: "CARILLON_TASK"},
	} {
		r := importer.Dkron("f.json", dkronText(t, nil, c.config), importer.Options{})
		if c.refused != "" {
			if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, c.refused) {
				t.Errorf("%s: %+v; want %q", name, r, c.refused)
			}
			continue
		}

		if len(r.Jobs) != 1 {
			t.Errorf("%s: %v", name, r.Refusals)
			continue
		}
		if d := task.Compare(c.want, *r.Jobs[0].Spec.Action.Process); len(d) > 0 {
			t.Errorf("%s: %v", name, d)
		}
	}
}

func TestDkron_ConvertsTheHTTPExecutor(t *testing.T) {
	const url = "http://example.com"
	all := []string{"2xx", "3xx", "4xx", "5xx"}

	for name, c := range map[string]struct {
		config  map[string]any
		want    task.HTTP
		timeout task.Duration
		note    string
		refused string
	}{
		"the least":             {config: map[string]any{"method": "GET", "url": url}, want: task.HTTP{Method: "GET", URL: url, Redirects: 5, Expect: task.HTTPExpect{Status: all}}, timeout: 30e9, note: "any response counts as success"},
		"in lower case":         {config: map[string]any{"method": "get", "url": url, "expectCode": "200", "headers": "[]", "body": "", "expectBody": ""}, want: task.HTTP{Method: "GET", URL: url, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9},
		"a body":                {config: map[string]any{"method": "GET", "url": url, "expectCode": "200,200,", "body": "${x}"}, want: task.HTTP{Method: "GET", URL: url, Body: "${x}", Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9},
		"no timeout":            {config: map[string]any{"method": "PUT", "url": url, "expectCode": "200", "timeout": "0"}, want: task.HTTP{Method: "PUT", URL: url, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 3600e9, note: "at most 1h"},
		"an odd timeout":        {config: map[string]any{"method": "PUT", "url": url, "expectCode": "200", "timeout": "30s"}, want: task.HTTP{Method: "PUT", URL: url, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9, note: `because "30s" is not a number`},
		"not verified, no TLS":  {config: map[string]any{"method": "PUT", "url": url, "expectCode": "200", "tlsNoVerifyPeer": "true"}, want: task.HTTP{Method: "PUT", URL: url, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9},
		"verified":              {config: map[string]any{"method": "PUT", "url": "https://a", "expectCode": "200", "tlsNoVerifyPeer": "false"}, want: task.HTTP{Method: "PUT", URL: "https://a", Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9},
		"a header's template":   {config: map[string]any{"method": "PUT", "url": url, "expectCode": "200", "headers": `["authorization: Bearer ${x}", ""]`}, want: task.HTTP{Method: "PUT", URL: url, Headers: map[string]string{"Authorization": "Bearer $${x}"}, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9, note: "better use a secret"},
		"the last header":       {config: map[string]any{"method": "PUT", "url": url, "expectCode": "200", "headers": `["x-a: 1", "X-A: 2"]`}, want: task.HTTP{Method: "PUT", URL: url, Headers: map[string]string{"X-A": "2"}, Redirects: 5, Expect: task.HTTPExpect{Status: []string{"200"}}}, timeout: 30e9},
		"not verified":          {config: map[string]any{"method": "PUT", "url": "https://a", "tlsNoVerifyPeer": "true"}, refused: "tlsNoVerifyPeer: servers are always verified"},
		"a certificate":         {config: map[string]any{"method": "PUT", "url": "https://a", "tlsCertificateFile": "/x", "tlsCertificateKeyFile": "/y"}, refused: "set action.http.tls.cert"},
		"an authority":          {config: map[string]any{"method": "PUT", "url": "https://a", "tlsRootCAsFile": "/x"}, refused: "set action.http.tls.ca"},
		"no URL":                {config: map[string]any{"method": "GET"}, refused: "has no url"},
		"no method":             {config: map[string]any{"url": url}, refused: "has no method"},
		"another method":        {config: map[string]any{"method": "PURGE", "url": url}, refused: "action.http.method"},
		"credentials":           {config: map[string]any{"method": "GET", "url": "https://user:sesame@a/"}, refused: "contains credentials"},
		"not a URL":             {config: map[string]any{"method": "GET", "url": "xxxxxxxxxxxxx"}, refused: "action.http.url"},
		"a secret":              {config: map[string]any{"method": "POST", "url": url, "body": "secret:a/b"}, refused: "body: a value that begins with secret:"},
		"headers, no list":      {config: map[string]any{"method": "GET", "url": url, "headers": `{"A": "b"}`}, refused: "headers: "},
		"a header, no colon":    {config: map[string]any{"method": "GET", "url": url, "headers": `["sesame"]`}, refused: "headers: an item has no colon"},
		"an odd status":         {config: map[string]any{"method": "GET", "url": url, "expectCode": "2xx"}, refused: `expectCode: "2xx" is not a status code`},
		"an odd pattern":        {config: map[string]any{"method": "GET", "url": url, "expectCode": "200", "expectBody": "("}, refused: "expectBody: Dkron never accepts a response"},
		"a very long body":      {config: map[string]any{"method": "POST", "url": url, "body": strings.Repeat("x", 17<<10)}, refused: "at most 16384"},
		"a line break in value": {config: map[string]any{"method": "GET", "url": url, "headers": `["A: b\nc"]`}, refused: "line break"},
	} {
		r := importer.Dkron("f.json", dkronText(t, map[string]any{"executor": "http"}, c.config), importer.Options{})
		if strings.Contains(strings.Join(refusals(r), ""), "sesame") {
			t.Errorf("%s: a credential is shown: %v", name, r.Refusals)
		}

		if c.refused != "" {
			if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, c.refused) {
				t.Errorf("%s: %+v; want %q", name, r, c.refused)
			}
			continue
		}

		if len(r.Jobs) != 1 {
			t.Errorf("%s: %v", name, r.Refusals)
			continue
		}

		j := r.Jobs[0]
		if d := task.Compare(c.want, *j.Spec.Action.HTTP); len(d) > 0 || j.Spec.Timeout != c.timeout {
			t.Errorf("%s: timeout %s, %v", name, j.Spec.Timeout, d)
		}
		if notes := strings.Join(j.Notes, "\n"); c.note != "" && !strings.Contains(notes, c.note) {
			t.Errorf("%s: %s", name, notes)
		}
	}
}

// refusals returns the reasons.
func refusals(r importer.Result) (list []string) {
	for _, x := range r.Refusals {
		list = append(list, x.Why)
	}
	return list
}

// A shadow task starts nothing, so any action will do. What prevents its ticks is still refused.
func TestDkron_ShadowsNeedNoAction(t *testing.T) {
	r := importer.Dkron("f.json", dkronExport, importer.Options{Shadow: true, Prefix: "Old ", Namespace: "ops"})
	if len(r.Jobs) != 4 || len(r.Refusals) != 0 || r.Jobs[2].Spec.After[0].Task != "old-orders" {
		t.Fatalf("%d jobs, refused %v", len(r.Jobs), r.Refusals)
	}

	j := r.Jobs[3]
	if j.Spec.Name != "old-mail" || j.Spec.Namespace != "ops" || !j.Spec.Shadow || j.Spec.Action.Noop == nil || !strings.Contains(strings.Join(j.Notes, "\n"), "the shadow task has an empty action") {
		t.Errorf("%+v", j)
	}
}

func TestDkron_RefusesWhatIsNoExport(t *testing.T) {
	for text, want := range map[string]string{
		`[{"name": "a"`:            "f:1: ",
		`[1, "x"]`:                 "f:1: is not a Dkron job",
		`{"message": "no leader"}`: "f:1: is not a Dkron job: it has no name",
		"[\n {\"name\": 3}\n]":     "f:2: is not a Dkron job: name: a number is not allowed here",
		`{"name": "a", "executor": "shell", "executor_config": {"command": "x"}}`:     "f:1: a: schedule: \"\": a job without a schedule never runs",
		dkronText(t, map[string]any{"concurrency": "deny"}, nil):                      `a: concurrency: Dkron rejects "deny"`,
		dkronText(t, map[string]any{"retries": -1}, nil):                              "a: retries: ",
		dkronText(t, map[string]any{"starts_at": "soon"}, nil):                        `a: starts_at: "soon" is not a time`,
		dkronText(t, map[string]any{"executor": nil}, nil):                            "a: has no executor",
		dkronText(t, map[string]any{"name": "Größe"}, map[string]any{"command": "x"}): "name: ",
	} {
		r := importer.Dkron("f", text, importer.Options{})
		if !slices.ContainsFunc(r.Refusals, func(x importer.Refusal) bool { return strings.Contains(x.Place.String()+": "+x.Why, want) }) {
			t.Errorf("%.60q: %v; want %q", text, r.Refusals, want)
		}
	}

	if r := importer.Dkron("f", "[]", importer.Options{}); len(r.Jobs)+len(r.Refusals) > 0 {
		t.Errorf("an empty list: %+v", r)
	}

	// Two jobs with the same name.
	var all importer.Result
	all.Join(importer.Dkron("f", "["+dkronText(t, nil, map[string]any{"command": "x"})+","+dkronText(t, nil, map[string]any{"command": "y"})+"]", importer.Options{}))
	if len(all.Jobs) != 1 || len(all.Refusals) != 1 {
		t.Errorf("%+v", all)
	}
}

// A parent may be in another file. What is not imported is named, in both directions.
func TestDkron_LinksJobsToTheirParents(t *testing.T) {
	command := map[string]any{"command": "x"}
	var all importer.Result
	all.Join(importer.Dkron("1.json", dkronText(t, map[string]any{"name": "child", "parent_job": "etl", "schedule": "", "concurrency": "forbid", "expires_at": "2030-01-01T00:00:00Z"}, command), importer.Options{}))
	all.Join(importer.Dkron("2.json", dkronText(t, map[string]any{"name": "etl", "dependent_jobs": []string{"child", "gone"}}, command), importer.Options{}))
	all.Join(importer.Dkron("2.json", dkronText(t, map[string]any{"name": "orphan", "parent_job": "lost", "schedule": "@parent lost"}, command), importer.Options{}))
	all.NoteChains()
	if len(all.Jobs) != 3 {
		t.Fatalf("%+v", all)
	}

	for i, c := range []struct{ note, not string }{
		{"expires_at is omitted: Dkron would no longer run the job after 2030-01-01T00:00:00Z, but the task runs on after etl", "schedule"},
		{"these jobs run after it in Dkron, and do not any more: gone", "child"},
		{"runs after lost, which is not imported: create that task first", "schedule"},
	} {
		notes := strings.Join(all.Jobs[i].Notes, "\n")
		if !strings.Contains(notes, c.note) || strings.Contains(notes, c.not) {
			t.Errorf("%s: %s", all.Jobs[i].Spec.Name, notes)
		}
	}

	s := all.Jobs[0].Spec
	valid(t, s)
	if s.Overlap != task.OverlapSkip || s.Schedule[0] != task.ManualSchedule || !s.After.Equal(task.Sources{{Task: "etl"}}) {
		t.Errorf("%+v", s)
	}
}

// A job with a parent that has expired stays as it is in Dkron: it does not run.
func TestDkron_PausesExpiredChildren(t *testing.T) {
	for now, expired := range map[string]bool{"2029-12-31T00:00:00Z": false, "2030-01-02T00:00:00Z": true} {
		at, err := time.Parse(time.RFC3339, now)
		must(t, err)

		text := dkronText(t, map[string]any{"name": "child", "parent_job": "etl", "schedule": "", "expires_at": "2030-01-01T00:00:00Z"}, map[string]any{"command": "x"})
		r := importer.Dkron("1.json", text, importer.Options{Now: at})
		valid(t, r.Jobs[0].Spec)
		if s, notes := r.Jobs[0].Spec, strings.Join(r.Jobs[0].Notes, "\n"); s.Paused != expired || strings.Contains(notes, "the task is paused, because the job expired on 2030-01-01T00:00:00Z") != expired {
			t.Errorf("at %s: paused %v, %s", now, s.Paused, notes)
		}
	}
}

func FuzzDkron(f *testing.F) {
	f.Add(dkronExport)
	f.Add(`[{"name": "a", "schedule": "0 ~/7 * ? * *", "executor": "shell", "executor_config": {"command": "a 'b"}}, null, 3]`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, j := range importer.Dkron("f", text, importer.Options{}).Jobs {
			valid(t, j.Spec)
		}
	})
}

package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// changesAudited returns the audit records of an operation as a caller sees them, the oldest first, as text: each change of
// each object.
func (w *world) changesAudited(secret, operation string) (lines []string) {
	w.t.Helper()
	var page client.List[task.AuditRecord]
	decode(w.t, w.as(secret, "GET", "/v1/audit-log?oldest_first=true&operation="+operation, "").body, &page)

	for _, r := range page.Items {
		for _, o := range r.Objects {
			line := o.Change + " " + o.Kind + " " + o.Name
			for _, c := range o.Changes {
				line += fmt.Sprintf("; %s: %v -> %v", c.Field, c.From, c.To)
			}
			for _, f := range o.Fields {
				line += "; " + f
			}
			lines = append(lines, line)
		}
	}

	return lines
}

// The audit record of a change of access says what was granted to whom, and what it was before. It has no hash of a token.
func TestAccessAudit_SaysWhatWasGranted(t *testing.T) {
	w := newWorld(t)
	put := func(path, body string) {
		t.Helper()
		w.clock.advance(time.Second)
		if r := w.as(w.secret, "PUT", path, body); r.status/100 != 2 {
			t.Fatalf("%s: %d %s", path, r.status, r.body)
		}
	}
	drop := func(path string) {
		t.Helper()
		w.clock.advance(time.Second)
		if r := w.as(w.secret, "DELETE", path, ""); r.status/100 != 2 {
			t.Fatalf("%s: %d %s", path, r.status, r.body)
		}
	}

	put("/v1/bindings/weekly-report", `{"role":"admin","subjects":["user:mallory"],"cluster":true}`)
	put("/v1/bindings/weekly-report", `{"role":"viewer","subjects":["user:mallory"],"namespaces":["prod"],"until":"2040-01-01T00:00:00Z"}`)
	drop("/v1/bindings/weekly-report")
	put("/v1/namespaces/alpha", `{"run_as":["games"]}`)
	put("/v1/namespaces/alpha", `{"run_as":["games","root"],"shell":true}`)
	drop("/v1/namespaces/alpha")
	put("/v1/roles/deployer", `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`)
	drop("/v1/roles/deployer")
	put("/v1/node-limits/web-1", `{"labels":["zone=*"]}`)
	drop("/v1/node-limits/web-1")

	w.clock.advance(time.Second)
	made := w.as(w.secret, "POST", "/v1/tokens", `{"subject":"service:ci","scope":{"role":"viewer","namespaces":["prod"]},"cidrs":["10.0.0.0/8"],"reason":"CI"}`)
	var token client.NewToken
	decode(t, made.body, &token)
	drop("/v1/tokens/" + token.ID)

	for operation, want := range map[string][]string{
		"set-binding": {
			"put binding weekly-report; cluster: <nil> -> true; role: <nil> -> admin; role_uid: <nil> -> builtin; subjects: <nil> -> [user:mallory]",
			"put binding weekly-report; cluster: true -> <nil>; namespaces: <nil> -> [prod]; role: admin -> viewer; until: <nil> -> 2040-01-01T00:00:00.000Z",
		},
		"delete-binding": {
			"delete binding weekly-report; namespaces: [prod] -> <nil>; role: viewer -> <nil>; role_uid: builtin -> <nil>; subjects: [user:mallory] -> <nil>; until: 2040-01-01T00:00:00.000Z -> <nil>",
		},
		"set-namespace": {
			"put namespace alpha; run_as: <nil> -> [games]",
			"put namespace alpha; run_as: [games] -> [games root]; shell: <nil> -> true",
		},
		"delete-namespace":  {"delete namespace alpha; run_as: [games root] -> <nil>; shell: true -> <nil>"},
		"set-role":          {"put role deployer; rules: <nil> -> [map[objects:[tasks] verbs:[read]]]"},
		"delete-role":       {"delete role deployer; rules: [map[objects:[tasks] verbs:[read]]] -> <nil>"},
		"set-node-limit":    {"put node-limit web-1; labels: <nil> -> [zone=*]"},
		"delete-node-limit": {"delete node-limit web-1; labels: [zone=*] -> <nil>"},
		"create-token": {"put token " + token.ID +
			"; cidrs: <nil> -> [10.0.0.0/8]; reason: <nil> -> CI; scope.namespaces: <nil> -> [prod]; scope.role: <nil> -> viewer; scope.role_uid: <nil> -> builtin; subject: <nil> -> service:ci"},
		"delete-token": {"delete token " + token.ID +
			"; cidrs: [10.0.0.0/8] -> <nil>; reason: CI -> <nil>; scope.namespaces: [prod] -> <nil>; scope.role: viewer -> <nil>; scope.role_uid: builtin -> <nil>; subject: service:ci -> <nil>"},
	} {
		got := w.changesAudited(w.secret, operation)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", operation, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
}

// The hash of a token's secret is in its record only.
func TestAccessAudit_HasNoHashOfAToken(t *testing.T) {
	w := newWorld(t)
	w.clock.advance(time.Second)
	w.as(w.secret, "POST", "/v1/tokens", `{"scope":{"role":"viewer"}}`)
	w.as(w.secret, "POST", "/v1/sessions", "")

	hashes := 0
	for key, value := range w.dump() {
		if strings.HasPrefix(key, w.store.Keys().Tokens()) {
			_, rest, _ := strings.Cut(value, `"hash":"`)
			hash, _, _ := strings.Cut(rest, `"`)
			for other, v := range w.dump() {
				if hash != "" && strings.HasPrefix(other, w.store.Keys().AuditRecords()) && strings.Contains(v, hash) {
					t.Errorf("%s has the hash of %s", other, key)
				}
			}
			hashes++
		}
	}
	if hashes < 3 {
		t.Errorf("only %d tokens", hashes)
	}
}

// An administrator of a namespace sees the changes of bindings and tokens that apply only there, and no others.
func TestAccessAudit_NamespaceAdminsSeeTheirBindings(t *testing.T) {
	w := newWorld(t)
	w.bind("user:nina", "namespace-admin", "prod")
	w.bind("user:pref", "namespace-admin", "pro*")
	nina, pref := w.token("user:nina"), w.token("user:pref")
	put := func(name, body string) {
		t.Helper()
		w.clock.advance(time.Second)
		if r := w.as(w.secret, "PUT", "/v1/bindings/"+name, body); r.status/100 != 2 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
	}

	put("own", `{"role":"viewer","subjects":["user:a"],"namespaces":["prod"]}`)
	put("both", `{"role":"viewer","subjects":["user:a"],"namespaces":["prod","other"]}`)
	put("prefix", `{"role":"viewer","subjects":["user:a"],"namespaces":["prod*"]}`)
	put("elsewhere", `{"role":"viewer","subjects":["user:a"],"namespaces":["other"]}`)
	put("cluster", `{"role":"viewer","subjects":["user:a"],"cluster":true}`)
	put("left", `{"role":"viewer","subjects":["user:a"],"namespaces":["other"]}`)
	put("left", `{"role":"viewer","subjects":["user:a"],"namespaces":["prod"]}`) // it tells what it was before
	put("grown", `{"role":"viewer","subjects":["user:a"],"namespaces":["prod"]}`)
	put("grown", `{"role":"viewer","subjects":["user:a"],"cluster":true}`)

	names := func(secret string) string {
		var names []string
		for _, line := range w.changesAudited(secret, "set-binding") {
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "put binding "), ";")
			names = append(names, name)
		}
		return strings.Join(names, " ")
	}

	if got := names(nina); got != "own grown" {
		t.Errorf("the admin of prod sees %s", got)
	}
	if got := names(pref); got != "own prefix grown" {
		t.Errorf("the admin of pro* sees %s", got)
	}

	var page client.List[task.AuditRecord]
	decode(t, w.as(w.secret, "GET", "/v1/audit-log?operation=set-binding&namespace=prod&oldest_first=true", "").body, &page)
	var inProd []string
	for _, r := range page.Items {
		inProd = append(inProd, r.Objects[0].Name)
	}
	if got := strings.Join(inProd, " "); got != "own both prefix left grown" {
		t.Errorf("the changes in prod: %s", got)
	}
}

// The audit record of a trigger names what the request gave to the run, without values.
func TestAccessAudit_NamesTheInputOfATrigger(t *testing.T) {
	w := newWorld(t)
	s := spec("a", "@daily")
	s.Accept = task.Accept{Args: 4, Env: []string{"B", "LD_PRELOAD"}, Target: true}
	_, err := w.Tasks.Create(t.Context(), "prod", s)
	must(t, err)

	r := w.as(w.secret, "POST", "/v1/namespaces/prod/tasks/a/trigger", `{"args":["x"],"env":{"LD_PRELOAD":"/tmp/evil.so","B":"1"},"target":"node-a"}`)
	if r.status/100 != 2 {
		t.Fatalf("%d %s", r.status, r.body)
	}

	if got := w.changesAudited(w.secret, "trigger-task"); !slices.Equal(got, []string{"put run a; args; env.B; env.LD_PRELOAD; target"}) {
		t.Errorf("%q", got)
	}
	for key, value := range w.dump() {
		if strings.HasPrefix(key, w.store.Keys().AuditRecords()) && strings.Contains(value, "evil.so") {
			t.Errorf("the audit record has a value: %s", value)
		}
	}
}

// The audit record of a freeze names its namespace, and the administrators of the namespace see it.
func TestAccessAudit_NamesTheFrozenNamespace(t *testing.T) {
	w := newWorld(t)
	w.bind("user:nina", "namespace-admin", "prod")
	for _, path := range []string{"/v1/namespaces/prod/freeze", "/v1/namespaces/other/freeze", "/v1/cluster/freeze"} {
		w.clock.advance(time.Second)
		if r := w.as(w.secret, "PUT", path, `{"reason":"test"}`); r.status/100 != 2 {
			t.Fatalf("%s: %d %s", path, r.status, r.body)
		}
	}

	var page client.List[task.AuditRecord]
	decode(t, w.as(w.token("user:nina"), "GET", "/v1/audit-log", "").body, &page)
	if len(page.Items) != 1 || page.Items[0].Objects[0].Kind != "freeze" || !slices.Equal(page.Items[0].Objects[0].Namespaces, []string{"prod"}) {
		t.Errorf("%+v", page.Items)
	}
}

// A list of audit records says where records are missing, in both orders, in pages, and whatever is asked for.
func TestAccessAudit_ShowsGaps(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	begun := w.clock.now()
	for i := range 6 {
		w.clock.advance(time.Minute)
		w.create(fmt.Sprintf("t%02d", i), "@daily")
	}

	at := func(minutes int) task.Time {
		return task.At(begun.Add(time.Duration(minutes)*time.Minute + 30*time.Second))
	}
	for _, g := range []task.AuditGap{
		{Why: task.GapSize, Subject: "user:mallory", From: at(1), To: at(3), Records: 7, FirstRevision: 1, LastRevision: 2},
		{Why: task.GapAge, From: at(-90), To: at(-60), Records: 9, LastRevision: 1},
	} {
		_, err := w.store.RemoveAudit(ctx, store.AuditGap{AuditGap: g}, nil)
		must(t, err)
	}

	list := func(secret, query string) string {
		t.Helper()
		var words []string
		for path := "/v1/audit-log?limit=2&" + query; path != ""; {
			var page client.List[task.AuditRecord]
			decode(t, w.as(secret, "GET", path, "").body, &page)
			for _, r := range page.Items {
				switch {
				case r.Gap == nil:
					words = append(words, r.Objects[0].Name)
				case r.Gap.Records > 0:
					words = append(words, fmt.Sprintf("%s(%s%d)", r.Gap.Why, r.Subject, r.Gap.Records))
				default:
					words = append(words, r.Gap.Why+r.Subject)
				}
			}

			if path = ""; page.Next != "" {
				path = "/v1/audit-log?limit=2&" + query + "&page=" + page.Next
			}
		}
		return strings.Join(words, " ")
	}
	stamp := func(minutes int) string { return at(minutes).UTC().Format(time.RFC3339) }

	w.bind("user:nina", "namespace-admin", "default")
	nina := w.token("user:nina")
	for query, want := range map[string]string{
		"":                                    "t05 t04 t03 size(user:mallory7) t02 t01 t00 age(9)",
		"oldest_first=true":                   "age(9) t00 t01 t02 size(user:mallory7) t03 t04 t05",
		"subject=user:bob":                    "age(9)",
		"subject=user:mallory":                "size(user:mallory7) age(9)",
		"operation=delete-binding":            "size(user:mallory7) age(9)",
		"since=" + stamp(2):                   "t05 t04 t03 size(user:mallory7) t02",
		"until=" + stamp(2):                   "size(user:mallory7) t01 t00 age(9)",
		"since=" + stamp(4):                   "t05 t04",
		"oldest_first=true&until=" + stamp(2): "age(9) t00 t01 size(user:mallory7)",
	} {
		if got := list(w.secret, query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}

	// A caller who sees only a namespace learns that records are missing, and not whose.
	if got := list(nina, ""); got != "t05 t04 t03 size t02 t01 t00 age" {
		t.Errorf("an admin of the namespace sees %s", got)
	}
}

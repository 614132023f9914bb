package access_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// compile makes the table of some records, which must make sense.
func compile(t testing.TB, r access.Records) *access.Table {
	t.Helper()
	if r.Fence == 0 {
		r.Fence = 1
	}

	table, problems := access.Compile(r)
	for _, err := range problems {
		t.Errorf("compile: %v", err)
	}

	return table
}

func bind(name, role string, subjects ...string) task.Binding {
	return task.Binding{Name: name, Role: role, RoleUID: access.BuiltInUID, Subjects: subjects, Cluster: true}
}

func in(b task.Binding, namespaces ...string) task.Binding {
	b.Cluster, b.Namespaces = false, namespaces
	return b
}

func TestTable_AllowsWhatABindingGives(t *testing.T) {
	labelled := in(bind("labelled", "operator", "user:lee"), "team-a")
	labelled.Labels = map[string]string{"env": "dev"}
	ending := in(bind("ending", "editor", "user:eve"), "team-a")
	ending.Until = task.At(now.Add(time.Hour))

	table := compile(t, access.Records{
		Bindings: []task.Binding{
			bind("admins", "admin", "user:root"),
			in(bind("viewers", "viewer", "user:ann", "service:ci"), "team-a", "shared-*"),
			in(bind("admins-of-all-namespaces", "admin", "user:bob"), "*"),
			bind("out", "admin", "user:out"),
			labelled, ending,
		},
		Disabled: []string{"user:out"},
		Tokens: []task.Token{
			{ID: "whole", Subject: "user:root"},
			{ID: "scoped", Subject: "user:root", Scope: &task.TokenScope{Role: "viewer", RoleUID: access.BuiltInUID, Namespaces: []string{"team-a"}}},
			{ID: "expired", Subject: "user:root", Until: task.At(now)},
			{ID: "nonsense", Subject: "user:root"},
		},
	})

	dev, prod := map[string]string{"env": "dev"}, map[string]string{"env": "prod"}

	for _, c := range []struct {
		subject, token string
		verb           access.Verb
		kind           access.Kind
		namespace      string
		labels         map[string]string
		want           bool
	}{
		{"user:root", "", access.Operate, access.Cluster, "", nil, true},
		{"user:root", "", access.Grant, access.Access, "", nil, true},
		{"user:root", "", access.Delete, access.Tasks, "any", nil, true},
		{"user:nobody", "", access.Read, access.Tasks, "team-a", nil, false},
		{"user:out", "", access.Read, access.Tasks, "team-a", nil, false},

		{"user:ann", "", access.Read, access.Tasks, "team-a", nil, true},
		{"service:ci", "", access.Output, access.Runs, "shared-jobs", nil, true},
		{"user:ann", "", access.Read, access.Tasks, "team-a2", nil, false},
		{"user:ann", "", access.Read, access.Tasks, "shared", nil, false},
		{"user:ann", "", access.Trigger, access.Tasks, "team-a", nil, false},
		{"user:ann", "", access.Read, access.Nodes, "", nil, false}, // the role has it, but not in a namespace

		{"user:bob", "", access.Delete, access.Tasks, "any", nil, true},
		{"user:bob", "", access.Operate, access.Cluster, "", nil, false},
		{"user:bob", "", access.Create, access.Namespaces, "", nil, false},

		{"user:lee", "", access.Trigger, access.Tasks, "team-a", dev, true},
		{"user:lee", "", access.Trigger, access.Tasks, "team-a", prod, false},
		{"user:lee", "", access.Trigger, access.Tasks, "team-a", nil, false},
		{"user:lee", "", access.Read, access.Tasks, "team-a", prod, true}, // reads the whole namespace
		{"user:lee", "", access.Output, access.Runs, "team-a", prod, false},
		{"user:lee", "", access.Read, access.Secrets, "team-a", dev, false},

		{"user:eve", "", access.Create, access.Tasks, "team-a", nil, true},

		{"user:root", "whole", access.Delete, access.Tasks, "any", nil, true},
		{"user:root", "scoped", access.Read, access.Tasks, "team-a", nil, true},
		{"user:root", "scoped", access.Read, access.Tasks, "team-b", nil, false},
		{"user:root", "scoped", access.Delete, access.Tasks, "team-a", nil, false},
		{"user:root", "expired", access.Read, access.Tasks, "team-a", nil, false},
		{"user:root", "gone", access.Read, access.Tasks, "team-a", nil, false},
		{"user:ann", "whole", access.Read, access.Tasks, "team-a", nil, false}, // another's token

		{access.RootSubject, "", access.Grant, access.Access, "", nil, true},
	} {
		need := access.Need{Verb: c.verb, Kind: c.kind, Namespace: c.namespace, Labels: c.labels}
		if got := table.Allows(access.Caller{Subject: c.subject, Token: c.token}, need, now); got != c.want {
			t.Errorf("%s (token %q): %v on %v in %q with %v: %v, want %v", c.subject, c.token, c.verb, c.kind, c.namespace, c.labels, got, c.want)
		}
	}

	if table.Allows(access.Caller{Subject: "user:eve"}, access.Need{Verb: access.Create, Kind: access.Tasks, Namespace: "team-a"}, now.Add(time.Hour)) {
		t.Error("a binding allows something after its end")
	}
}

// Verifies: G33
func TestTable_WithoutAFenceAllowsNothing(t *testing.T) {
	table, _ := access.Compile(access.Records{Bindings: []task.Binding{bind("admins", "admin", "user:root")}})
	read := access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: "default"}

	for _, who := range []string{"user:root", access.RootSubject} {
		if table.Allows(access.Caller{Subject: who}, read, now) {
			t.Errorf("%s is allowed to read without a fence", who)
		}
	}

	if (&access.Table{}).Allows(access.Caller{Subject: access.RootSubject}, read, now) {
		t.Error("the zero Table allows something")
	}
}

func TestCompile_IgnoresRecordsThatMakeNoSense(t *testing.T) {
	former := in(bind("former", "deployer", "user:ann"), "team-a")
	former.RoleUID = "gone"

	table, problems := access.Compile(access.Records{
		Fence: 1,
		Roles: []task.Role{
			{Name: "deployer", UID: "u1", Rules: []task.Rule{{Verbs: []string{"trigger"}, Objects: []string{"tasks"}}}},
			{Name: "broken", UID: "u2", Rules: []task.Rule{{Verbs: []string{"fly"}, Objects: []string{"tasks"}}}},
			{Name: "viewer", UID: "u3", Rules: []task.Rule{{Verbs: []string{"*"}, Objects: []string{"*"}}}},
		},
		Bindings: []task.Binding{former, in(bind("unknown", "none", "user:ann"), "team-a"), in(bind("good", "viewer", "user:ann"), "team-a")},
		Tokens:   []task.Token{{ID: "t", Subject: "user:ann", Scope: &task.TokenScope{Role: "none"}}},
	})

	if len(problems) != 5 {
		t.Errorf("%d problems, want 5: %v", len(problems), problems)
	}

	ann := access.Caller{Subject: "user:ann"}
	if !table.Allows(ann, access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: "team-a"}, now) {
		t.Error("a good binding does not count beside broken ones")
	}
	if table.Allows(ann, access.Need{Verb: access.Trigger, Kind: access.Tasks, Namespace: "team-a"}, now) {
		t.Error("a binding to a role that was deleted and created again applies to the new one")
	}
	if table.Allows(ann, access.Need{Verb: access.Delete, Kind: access.Tasks, Namespace: "team-a"}, now) {
		t.Error("a record replaced a built-in role")
	}
	if table.Allows(access.Caller{Subject: "user:ann", Token: "t"}, access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: "team-a"}, now) {
		t.Error("a token whose scope makes no sense is taken for one without a scope")
	}
}

func TestCheck_RefusesWhatGrantsNothingOrTooMuch(t *testing.T) {
	role := func(r task.Rule) error { return access.CheckRole(&task.Role{Name: "r", Rules: []task.Rule{r}}) }
	binding := func(change func(*task.Binding)) error {
		b := in(bind("b", "viewer", "user:ann"), "team-a")
		change(&b)
		return access.CheckBinding(&b)
	}

	for what, c := range map[string]struct {
		err   error
		field string
	}{
		"unknown verb":       {role(task.Rule{Verbs: []string{"reed"}, Objects: []string{"tasks"}}), "rules[0].verbs"},
		"unknown kind":       {role(task.Rule{Verbs: []string{"read"}, Objects: []string{"pods"}}), "rules[0].objects"},
		"no verbs":           {role(task.Rule{Objects: []string{"tasks"}}), "rules[0].verbs"},
		"allows nothing":     {role(task.Rule{Verbs: []string{"trigger"}, Objects: []string{"secrets"}}), "rules[0]"},
		"labels of secrets":  {role(task.Rule{Verbs: []string{"read"}, Objects: []string{"secrets"}, Labels: map[string]string{"a": "b"}}), "rules[0]"},
		"label is a glob":    {role(task.Rule{Verbs: []string{"read"}, Objects: []string{"tasks"}, Labels: map[string]string{"env": "*"}}), "rules[0].labels.env"},
		"label is negated":   {role(task.Rule{Verbs: []string{"read"}, Objects: []string{"tasks"}, Labels: map[string]string{"env!": "prod"}}), "rules[0].labels"},
		"no rules":           {access.CheckRole(&task.Role{Name: "r"}), "rules"},
		"built-in name":      {access.CheckRole(&task.Role{Name: "admin", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}), "name"},
		"no subject":         {binding(func(b *task.Binding) { b.Subjects = nil }), "subjects"},
		"any subject":        {binding(func(b *task.Binding) { b.Subjects = []string{"user:*"} }), "subjects[0]"},
		"unix is not given":  {binding(func(b *task.Binding) { b.Subjects = []string{"unix:root"} }), "subjects[0]"},
		"subject of no kind": {binding(func(b *task.Binding) { b.Subjects = []string{"ann"} }), "subjects[0]"},
		"glob in the middle": {binding(func(b *task.Binding) { b.Namespaces = []string{"team-*-x"} }), "namespaces[0]"},
		"question mark":      {binding(func(b *task.Binding) { b.Namespaces = []string{"team-?"} }), "namespaces[0]"},
		"path":               {binding(func(b *task.Binding) { b.Namespaces = []string{"../x"} }), "namespaces[0]"},
		"nowhere":            {binding(func(b *task.Binding) { b.Namespaces = nil }), "namespaces"},
		"both":               {binding(func(b *task.Binding) { b.Cluster = true }), "namespaces"},
		"too many subjects":  {binding(func(b *task.Binding) { b.Subjects = manySubjects(65) }), "subjects"},
		"subject twice":      {binding(func(b *task.Binding) { b.Subjects = []string{"user:ann", "user:bob", "user:ann"} }), "subjects[2]"},
		"namespace twice":    {binding(func(b *task.Binding) { b.Namespaces = []string{"team-a*", "team-a", "team-a*"} }), "namespaces[2]"},
		"end in the past":    {access.CheckEnd("until", task.At(now), now), "until"},
		"users by prefix":    {access.CheckNamespace(&task.Namespace{Name: "n", RunAs: []string{"app*"}}), "run_as[0]"},
		"relative file":      {access.CheckNamespace(&task.Namespace{Name: "n", EnvFiles: []string{"etc/x"}}), "env_files[0]"},
		"file with ..":       {access.CheckNamespace(&task.Namespace{Name: "n", EnvFiles: []string{"/etc/app/../shadow"}}), "env_files[0]"},
		"selector":           {access.CheckNamespace(&task.Namespace{Name: "n", Nodes: "a ~ b"}), "nodes"},
	} {
		var e *task.Error
		if !errorAs(c.err, &e) || e.Field != c.field {
			t.Errorf("%s: %v, want an error of the field %s", what, c.err, c.field)
		}
	}

	for _, namespaces := range [][]string{{"*"}, {"team-*"}, {"team-a", "b.c"}} {
		if err := binding(func(b *task.Binding) { b.Namespaces = namespaces }); err != nil {
			t.Errorf("namespaces %v: %v", namespaces, err)
		}
	}
}

func manySubjects(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint("user:", i))
	}

	return list
}

// TestCovers_NobodyGrantsMoreThanTheyHold draws grantors and bindings, and holds the verdict
// against the definition: a covered binding allows its subject nothing that its author may
// not do at the same moment.
//
// Verifies: G32
func TestCovers_NobodyGrantsMoreThanTheyHold(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	roles := []string{"viewer", "operator", "editor", "namespace-admin", "auditor", "node-operator", "admin"}
	spaces := []string{"a", "a-1", "a-2", "b", "a*", "a-*", "b*", "*"}
	names := []string{"a", "a-1", "a-2", "a-3", "b", "b-1", "c"}
	covered := 0

	draw := func(name, subject string) task.Binding {
		b := bind(name, roles[rng.IntN(len(roles))], subject)
		if rng.IntN(4) > 0 {
			b = in(b, spaces[rng.IntN(len(spaces))])
		}
		if rng.IntN(3) == 0 {
			b.Labels = map[string]string{"env": []string{"dev", "prod"}[rng.IntN(2)]}
		}
		if rng.IntN(3) == 0 {
			b.Until = task.At(now.Add(time.Duration(1+rng.IntN(3)) * time.Hour))
		}

		return b
	}

	for range 1000 {
		held := []task.Binding{draw("h1", "user:ann"), draw("h2", "user:ann")}
		fresh := draw("new", "user:bob")
		tokens := []task.Token{{ID: "t", Subject: "user:ann"}}
		if rng.IntN(2) == 0 {
			tokens[0].Scope = &task.TokenScope{Role: roles[rng.IntN(len(roles))], RoleUID: access.BuiltInUID, Namespaces: []string{spaces[rng.IntN(len(spaces))]}}
		}

		ann := access.Caller{Subject: "user:ann", Token: "t"}
		excess, err := compile(t, access.Records{Bindings: held, Tokens: tokens}).CoversBinding(ann, fresh, now)
		if err != nil {
			t.Fatal(err)
		}
		if excess != nil {
			continue
		}

		covered++
		table := compile(t, access.Records{Bindings: append(held, fresh), Tokens: tokens})

		for _, at := range []time.Time{now, now.Add(90 * time.Minute), now.Add(150 * time.Minute), now.Add(100 * time.Hour)} {
			for k := access.Tasks; k <= access.Audit; k++ {
				for v := access.Read; v <= access.Operate; v <<= 1 {
					for _, ns := range names {
						for _, labels := range []map[string]string{nil, {"env": "dev"}, {"env": "prod"}} {
							need := access.Need{Verb: v, Kind: k, Namespace: ns, Labels: labels}
							if table.Allows(access.Caller{Subject: "user:bob"}, need, at) && !table.Allows(ann, need, at) {
								t.Fatalf("covered, but bob may do more than ann: %+v at %v\nheld: %+v\nscope: %+v\nnew: %+v", need, at, held, tokens[0].Scope, fresh)
							}
						}
					}
				}
			}
		}
	}

	if covered < 70 {
		t.Errorf("only %d of the bindings were covered: the test shows little", covered)
	}
}

// TestCovers_NobodyCreatesATokenThatCanDoMore draws creators and tokens, and bindings that the token's subject gets later:
// by its token, the subject never may do more than the creator may at the same moment.
func TestCovers_NobodyCreatesATokenThatCanDoMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	roles := []string{"viewer", "operator", "editor", "namespace-admin", "auditor", "node-operator", "admin"}
	spaces := []string{"a", "a-1", "b", "a*", "a-*", "*"}
	names := []string{"a", "a-1", "a-2", "b", "c"}
	labels := func() map[string]string {
		return []map[string]string{nil, nil, {"env": "dev"}, {"env": "prod"}}[rng.IntN(4)]
	}
	end := func() task.Time {
		if hours := rng.IntN(6); hours > 0 && hours < 4 {
			return task.At(now.Add(time.Duration(hours) * time.Hour))
		}
		return task.Time{}
	}
	draw := func(name, subject string) task.Binding {
		b := bind(name, roles[rng.IntN(len(roles))], subject)
		if rng.IntN(4) > 0 {
			b = in(b, spaces[rng.IntN(len(spaces))])
		}
		b.Labels, b.Until = labels(), end()

		return b
	}
	scope := func() *task.TokenScope {
		if rng.IntN(3) == 0 {
			return nil
		}

		s := &task.TokenScope{Role: roles[rng.IntN(len(roles))], RoleUID: access.BuiltInUID, Labels: labels()}
		if rng.IntN(4) > 0 {
			s.Namespaces = []string{spaces[rng.IntN(len(spaces))]}
		}

		return s
	}

	covered := map[string]int{}
	for range 4000 {
		held := []task.Binding{draw("h1", "user:ann"), draw("h2", "user:ann")}
		mine := task.Token{ID: "mine", Subject: "user:ann", Scope: scope()}
		fresh := task.Token{ID: "fresh", Subject: []string{"user:ann", "user:bob"}[rng.IntN(2)], Scope: scope(), Until: end()}
		before, later := []task.Binding{draw("b1", "user:bob")}, []task.Binding{draw("b2", "user:bob"), bind("b3", "admin", "user:bob")}
		if rng.IntN(2) == 0 {
			before = nil
		}

		ann := access.Caller{Subject: "user:ann", Token: "mine"}
		before = append(before, held...)
		excess, err := compile(t, access.Records{Bindings: before, Tokens: []task.Token{mine}}).CoversToken(ann, fresh, now)
		if err != nil {
			t.Fatal(err)
		}
		if excess != nil {
			continue
		}

		covered[fresh.Subject]++
		holder := access.Caller{Subject: fresh.Subject, Token: "fresh"}
		table := compile(t, access.Records{Bindings: append(before, later...), Tokens: []task.Token{mine, fresh}})

		for _, at := range []time.Time{now, now.Add(90 * time.Minute), now.Add(150 * time.Minute), now.Add(100 * time.Hour)} {
			for k := access.Tasks; k <= access.Audit; k++ {
				for v := access.Read; v <= access.Operate; v <<= 1 {
					for _, ns := range names {
						for _, labels := range []map[string]string{nil, {"env": "dev"}, {"env": "prod"}} {
							need := access.Need{Verb: v, Kind: k, Namespace: ns, Labels: labels}
							if table.Allows(holder, need, at) && !table.Allows(ann, need, at) {
								t.Fatalf("covered, but the token may do more than ann: %+v at %v\nheld: %+v\nscope of ann: %+v\nnew: %+v\nscope: %+v", need, at, held, mine.Scope, fresh, fresh.Scope)
							}
						}
					}
				}
			}
		}
	}

	if covered["user:ann"] < 200 || covered["user:bob"] < 100 {
		t.Errorf("few of the tokens were covered: %v", covered)
	}
}

func TestCovers_TokensOfOthersAreJudgedByTheirScope(t *testing.T) {
	ending := in(bind("ending", "namespace-admin", "user:eve"), "team-a")
	ending.Until = task.At(now.Add(time.Hour))
	// A role that only its own token names.
	role := task.Role{Name: "light", UID: "u1", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}
	granter := task.Role{Name: "granter", UID: "u2", Rules: []task.Rule{{Verbs: []string{"read", "grant"}, Objects: []string{"access", "tasks"}}}}
	grants := bind("granters", "granter", "user:gus")
	grants.RoleUID = "u2"
	table := compile(t, access.Records{
		Roles:    []task.Role{role, granter},
		Bindings: []task.Binding{ending, bind("admins", "admin", "user:ann"), grants},
		Tokens:   []task.Token{{ID: "future", Subject: "user:future", Scope: &task.TokenScope{Role: "light", RoleUID: "u1"}}},
	})

	editor := &task.TokenScope{Role: "editor", RoleUID: access.BuiltInUID, Namespaces: []string{"team-a"}}
	for _, c := range []struct {
		what, creator string
		token         task.Token
		covered       bool
	}{
		{"all of a user that has nothing yet", "user:gus", task.Token{Subject: "user:future"}, false},
		{"a scope that the granter does not hold", "user:gus", task.Token{Subject: "user:future", Scope: editor}, false},
		{"its own rights", "user:gus", task.Token{Subject: "user:gus"}, true},
		{"everything, by an admin", "user:ann", task.Token{Subject: "user:future"}, true},
		{"everything, by the host's root", access.RootSubject, task.Token{Subject: "user:future"}, true},
		{"a service, beyond the end of the binding", "user:eve", task.Token{Subject: "service:new", Scope: editor, Until: task.At(now.Add(480 * time.Hour))}, false},
		{"a service, until the end of the binding", "user:eve", task.Token{Subject: "service:new", Scope: editor, Until: task.At(now.Add(time.Hour))}, true},
	} {
		excess, err := table.CoversToken(access.Caller{Subject: c.creator}, c.token, now)
		if err != nil || (excess == nil) != c.covered {
			t.Errorf("%s: excess %+v, %v; want covered: %v", c.what, excess, err, c.covered)
		}
	}

	role.Rules = append(role.Rules, task.Rule{Verbs: []string{"*"}, Objects: []string{"*"}})
	if excess, err := table.CoversRole(access.Caller{Subject: "user:gus"}, role, now); err != nil || excess == nil {
		t.Errorf("a role became wider than its author's, and with it the token of a user that has nothing yet: %+v, %v", excess, err)
	}
}

func TestCovers_NamesWhatIsMissing(t *testing.T) {
	table := compile(t, access.Records{Bindings: []task.Binding{in(bind("a", "namespace-admin", "user:ann"), "team-a")}})
	ann := access.Caller{Subject: "user:ann"}

	for _, c := range []struct {
		b    task.Binding
		want string
	}{
		{in(bind("n", "editor", "user:bob"), "team-a"), ""},
		{in(bind("n", "editor", "user:bob"), "team-b"), "read on tasks in team-b"},
		{in(bind("n", "editor", "user:bob"), "team-a*"), "read on tasks in team-a*"},
		{in(bind("n", "namespace-admin", "user:bob"), "team-a"), ""},
		{bind("n", "viewer", "user:bob"), "read on tasks in "},
	} {
		excess, err := table.CoversBinding(ann, c.b, now)
		got := ""
		if excess != nil {
			got = strings.Join([]string{excess.Verb.String(), "on", excess.Kind.String(), "in", excess.Namespace}, " ")
		}
		if err != nil || got != c.want {
			t.Errorf("%s in %v: %q, %v; want %q", c.b.Role, c.b.Namespaces, got, err, c.want)
		}
	}
}

func TestLastAdmin(t *testing.T) {
	records := access.Records{
		Bindings: []task.Binding{bind("first", "admin", "service:bootstrap"), bind("people", "admin", "user:ann")},
		Tokens:   []task.Token{{ID: "boot", Subject: "service:bootstrap"}, {ID: "ann", Subject: "user:ann", Until: task.At(now.Add(time.Hour))}},
	}
	table := compile(t, records)
	none := func(string, string) bool { return false }

	if table.LastAdmin(now, none) {
		t.Error("service:bootstrap is an admin")
	}
	for _, gone := range [][2]string{{"token", "boot"}, {"binding", "first"}, {"subject", "service:bootstrap"}} {
		without := func(what, name string) bool { return what == gone[0] && name == gone[1] }
		if table.LastAdmin(now, without) {
			t.Errorf("without %s %s ann is an admin until her token ends", gone[0], gone[1])
		}
		if !table.LastAdmin(now.Add(time.Hour), without) {
			t.Errorf("without %s %s nobody is an admin when ann's token has ended", gone[0], gone[1])
		}
	}
	if table.LastAdmin(now, func(what, name string) bool { return name == "ann" }) {
		t.Error("ann's token is not the last")
	}
}

func TestDecision_AllocatesNothing(t *testing.T) {
	table, caller, need := benchmarkTable(t)
	if n := testing.AllocsPerRun(100, func() { table.Allows(caller, need, now) }); n != 0 {
		t.Errorf("a decision makes %v allocations", n)
	}
}

func BenchmarkDecision(b *testing.B) {
	table, caller, need := benchmarkTable(b)
	b.ReportAllocs()

	for b.Loop() {
		if !table.Allows(caller, need, now) {
			b.Fatal("not allowed")
		}
	}
}

// benchmarkTable is the table of a company: 1,000 subjects with three bindings each, of which
// the last applies, and a token with a scope.
func benchmarkTable(t testing.TB) (*access.Table, access.Caller, access.Need) {
	var r access.Records
	for i := range 1000 {
		who := fmt.Sprintf("user:person-%04d", i)
		labelled := in(bind("c", "operator", who), "team-c")
		labelled.Labels = map[string]string{"env": "prod", "team": "data"}
		a, b := in(bind("a", "viewer", who), "team-a", "team-b"), in(bind("b", "editor", who), "shared-*")
		r.Bindings = append(r.Bindings, a, b, labelled)
	}

	who := r.Bindings[len(r.Bindings)-1].Subjects[0]
	r.Tokens = []task.Token{{ID: "t", Subject: who, Scope: &task.TokenScope{Role: "operator", RoleUID: access.BuiltInUID, Namespaces: []string{"team-c"}}}}

	return compile(t, r), access.Caller{Subject: who, Token: "t"},
		access.Need{Verb: access.Trigger, Kind: access.Tasks, Namespace: "team-c", Labels: map[string]string{"env": "prod", "team": "data", "app": "x"}}
}

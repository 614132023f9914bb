package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// governed is a cluster with access records: user:ann is an editor of the namespace default by token t1 until an hour from
// now, and user:bob a viewer by token t2.
func governed(t testing.TB) *sim {
	s := newSim(t, 2, "a")
	s.txn(op{s.keys.Fence(), record.Fence{}})
	s.grant("editors", "editor", "user:ann", func(b *task.Binding) { b.Until = task.At(time.UnixMilli(s.now).Add(time.Hour)) })
	s.grant("viewers", access.RoleViewer, "user:bob", nil)
	s.issue("t1", "user:ann", nil)
	s.issue("t2", "user:bob", nil)

	return s
}

// audited writes ops with the audit record that the API would write. change may alter it.
func (s *sim) audited(operation, subject, token string, change func(*task.AuditRecord), ops ...op) int64 {
	a := task.AuditRecord{ID: record.NewAuditID(time.UnixMilli(s.now)), Time: s.time(), Subject: subject, Token: token, Operation: operation}
	j := accessJudge{judge: judge{keys: s.keys}}

	for _, o := range ops {
		c, ok := j.objectAt(o.key)
		if !ok {
			continue
		}

		what := task.AuditObject{Kind: c.kind, Namespace: c.namespace, Name: c.name, Run: c.run, Change: "put"}
		if o.value == nil {
			what.Change = "delete"
		}

		if !slices.ContainsFunc(a.Objects, func(o task.AuditObject) bool { return objectOf(o) == c.object }) {
			a.Objects = append(a.Objects, what)
		}
	}

	if change != nil {
		change(&a)
	}

	return s.txn(append(ops, op{s.keys.AuditRecord(a.ID), a})...)
}

const root = "unix:root"

// fenced writes an access record on behalf of root, with the fence.
func (s *sim) fenced(key string, value any) {
	s.audited("test", root, "", nil, op{key, value}, op{s.keys.Fence(), record.Fence{}})
}

func (s *sim) grant(name, role, subject string, change func(*task.Binding)) {
	b := task.Binding{Name: name, Role: role, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Namespaces: []string{"default"}}
	if change != nil {
		change(&b)
	}
	s.fenced(s.keys.Binding(name), b)
}

func (s *sim) issue(id, subject string, change func(*task.Token)) {
	t := record.Token{Token: task.Token{ID: id, Subject: subject}}
	if change != nil {
		change(&t.Token)
	}
	s.audited("test", root, "", nil, op{s.keys.Token(id), t})
}

// noop is the spec of a task that nobody fires.
func noop(ns, name string, labels map[string]string) task.Task {
	t := task.Task{Spec: task.Defaults(), UID: "u-" + name, Generation: 1}
	t.Name, t.Namespace, t.Labels, t.Action.Noop = name, ns, labels, &task.Noop{}

	return t
}

// spec returns the put of a task's spec.
func (s *sim) spec(ns, name string, labels map[string]string) op {
	return op{s.keys.Spec(record.Ref{Namespace: ns, Name: name}), noop(ns, name, labels)}
}

// triggered returns the put of a manual run in the queue.
func (s *sim) triggered(id string) op {
	r := record.Ref{Namespace: "default", Name: "x", Shard: 0}
	w := task.Waiting{Run: task.Run{ID: id, UID: "u-x", Namespace: r.Namespace, Task: r.Name, ScheduledTime: s.time(), State: task.Queued, Trigger: task.TriggerManual, Attempt: 1, CreatedAt: s.time()}}

	return op{s.keys.Queued(r, id), w}
}

// Verifies: G27, G28
func TestCheck_Access(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"an editor creates a task", "", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"an editor deletes a task", "", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			s.audited("delete-task", "user:ann", "t1", nil, op{s.spec("default", "x", nil).key, nil})
		}},
		{"root on the host needs no records", "", func(s *sim) {
			s.audited("freeze", "unix:ann", "", nil, op{s.keys.Freezes(), task.Freezes{Holding: []task.Freeze{{Since: s.time()}}}})
		}},
		{"two writes share a request", "", func(s *sim) {
			a := task.AuditRecord{Time: s.time(), Subject: "user:ann", Token: "t1", Operation: "create-task", Objects: []task.AuditObject{{Kind: "task", Namespace: "default", Name: "x", Change: "put"}}}
			b := a
			b.Objects = []task.AuditObject{{Kind: "task", Namespace: "default", Name: "y", Change: "put"}}
			s.txn(s.spec("default", "x", nil), op{s.keys.AuditRecord("1"), a}, s.spec("default", "y", nil), op{s.keys.AuditRecord("2"), b})
		}},
		{"a task is over, and its owner deletes it", "", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			s.txn(op{s.spec("default", "x", nil).key, nil}, op{s.keys.Tombstone(record.Ref{Namespace: "default", Name: "x"}), record.Tombstone{UID: "u-x", Why: "its ttl was over"}})
		}},
		{"a refused login is on record", "", func(s *sim) {
			s.txn(op{s.keys.AuditRecord("1"), task.AuditRecord{Time: s.time(), Subject: "user:eve", Operation: "create-task", Outcome: task.AuditRefused}})
		}},
		{"an intent is on record, and its outcome after the token was deleted", "", func(s *sim) {
			s.grant("admins", access.RoleAdmin, "user:ann", func(b *task.Binding) { b.Namespaces, b.Cluster = nil, true })
			member := []task.AuditObject{{Kind: "member", Name: "m", Change: "put"}}
			s.audited("add-member", "user:ann", "t1", func(a *task.AuditRecord) { a.Outcome, a.Objects = task.AuditIntended, member })
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
			s.audited("add-member", "user:ann", "t1", func(a *task.AuditRecord) { a.Outcome, a.Objects = task.AuditDone, member })
		}},
		{"old audit records are deleted", "", func(s *sim) {
			s.txn(op{s.keys.AuditRecord("1"), task.AuditRecord{Time: s.time(), Subject: "user:eve", Outcome: task.AuditRefused}})
			g := task.AuditGap{Why: task.GapAge, Removed: 1}
			s.txn(op{s.keys.AuditRecord("1"), nil}, op{s.keys.AuditGap(&g), g})
		}},
		{"a full etcd deletes a task, and its record follows", "", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			rev := s.txn(op{s.spec("default", "x", nil).key, nil})
			s.fenced(s.keys.Binding("editors"), nil) // later than the deletion
			s.late(rev, "user:ann")
		}},
		{"a full etcd deletes a dead run, and its record follows", "", func(s *sim) { s.dismissedLate("r1") }},
		{"an end by time is not judged by the time of the next write", "", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", func(a *task.AuditRecord) { a.Time = task.At(time.UnixMilli(s.now).Add(time.Hour + authorizationLag/2)) }, s.spec("default", "x", nil))
		}},

		{"a record of its own is written twice", "", func(s *sim) {
			for range 2 {
				s.txn(op{s.keys.AuditRecord("1"), task.AuditRecord{Time: s.time(), Subject: "user:eve", Outcome: task.AuditRefused}})
			}
		}},

		{"a viewer creates a task", "G27", func(s *sim) {
			s.audited("create-task", "user:bob", "t2", nil, s.spec("default", "x", nil))
		}},
		{"in another namespace", "G27", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("other", "x", nil))
		}},
		{"after the token was deleted", "G27", func(s *sim) {
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"in the revision that deletes the token's binding, of a token that never existed", "G27", func(s *sim) {
			s.audited("create-task", "user:ann", "t9", nil, s.spec("default", "x", nil))
		}},
		{"after the token was deleted and created again for another", "G27", func(s *sim) {
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
			s.issue("t1", "user:bob", nil)
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"by a token whose scope is narrower", "G27", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Scope = &task.TokenScope{Role: access.RoleViewer, RoleUID: access.BuiltInUID} })
			s.audited("create-task", "user:ann", "t3", nil, s.spec("default", "x", nil))
		}},
		{"after the token expired", "G27", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Until = s.time() })
			s.pass(1)
			s.audited("create-task", "user:ann", "t3", nil, s.spec("default", "x", nil))
		}},
		{"after the binding was deleted", "G27", func(s *sim) {
			s.fenced(s.keys.Binding("editors"), nil)
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"after the binding was narrowed", "G27", func(s *sim) {
			s.grant("editors", access.RoleViewer, "user:ann", nil)
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"after the binding ended", "G27", func(s *sim) {
			s.pass(3601)
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"after the subject was disabled", "G27", func(s *sim) {
			s.fenced(s.keys.DisabledSubject("user:ann"), struct{}{})
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
		}},
		{"an operator changes more than the pause", "G27", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			s.grant("editors", "operator", "user:ann", nil)
			s.audited("pause-task", "user:ann", "t1", nil, s.spec("default", "x", map[string]string{"a": "b"}))
		}},
		{"a viewer triggers", "G27", func(s *sim) {
			s.audited("trigger-task", "user:bob", "t2", nil, s.triggered("r1"))
		}},
		{"an editor freezes the cluster", "G27", func(s *sim) {
			s.audited("freeze-namespace", "user:ann", "t1", nil, op{s.keys.Freezes(), task.Freezes{Holding: []task.Freeze{{Since: s.time()}}}})
		}},
		{"an editor grants", "G27", func(s *sim) {
			s.audited("test", "user:ann", "t1", nil, op{s.keys.Binding("mine"), task.Binding{Name: "mine", Role: "viewer", RoleUID: access.BuiltInUID, Subjects: []string{"user:ann"}, Namespaces: []string{"default"}}}, op{s.keys.Fence(), record.Fence{}})
		}},
		{"a labelled binding reaches another task", "G27", func(s *sim) {
			s.grant("editors", "editor", "user:ann", func(b *task.Binding) { b.Labels = map[string]string{"team": "a"} })
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", map[string]string{"team": "b"}))
		}},
		{"a binding changes without the fence", "G27", func(s *sim) {
			s.audited("test", root, "", nil, op{s.keys.Binding("editors"), nil})
		}},
		{"tokens come and go, and the key of their changes is put, or deleted by a full etcd", "", func(s *sim) {
			token := record.Token{Token: task.Token{ID: "t9", Subject: "user:ann"}}
			s.audited("test", root, "", nil, op{s.keys.Token("t9"), token}, op{s.keys.TokenChanges(), struct{}{}})
			s.audited("test", root, "", nil, op{s.keys.Token("t9"), nil}, op{s.keys.TokenChanges(), nil})
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
		}},
		{"a token is deleted, and the key of changes of tokens stays", "G27", func(s *sim) {
			s.txn(op{s.keys.TokenChanges(), struct{}{}})
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
		}},
		{"a token is replaced without the fence", "G27", func(s *sim) {
			s.issue("t1", "user:bob", nil)
		}},
		{"a full etcd deletes a task for somebody who was not allowed to", "G27", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			s.grant("editors", access.RoleViewer, "user:ann", nil)
			s.late(s.txn(op{s.spec("default", "x", nil).key, nil}), "user:ann")
		}},

		{"a task without a record", "G28", func(s *sim) { s.txn(s.spec("default", "x", nil)) }},
		{"a manual run without a record", "G28", func(s *sim) { s.txn(s.triggered("r1")) }},
		{"a freeze without a record", "G28", func(s *sim) { s.txn(op{s.keys.Freezes(), task.Freezes{}}) }},
		{"a secret without a record", "G28", func(s *sim) { s.txn(op{s.keys.Secret("default", "x"), struct{}{}}) }},
		{"a token without a record", "G28", func(s *sim) { s.txn(op{s.keys.Token("t1"), nil}) }},
		{"a binding without a record", "G28", func(s *sim) {
			s.txn(op{s.keys.Binding("editors"), nil}, op{s.keys.Fence(), record.Fence{}})
		}},
		{"a task with two records", "G28", func(s *sim) {
			a := task.AuditRecord{Time: s.time(), Subject: root, Operation: "create-task", Objects: []task.AuditObject{{Kind: "task", Namespace: "default", Name: "x", Change: "put"}}}
			s.txn(s.spec("default", "x", nil), op{s.keys.AuditRecord("1"), a}, op{s.keys.AuditRecord("2"), a})
		}},
		{"a record lists what is not written", "G28", func(s *sim) {
			s.audited("create-task", root, "", func(a *task.AuditRecord) {
				a.Objects = append(a.Objects, task.AuditObject{Kind: "task", Namespace: "default", Name: "y", Change: "put"})
			}, s.spec("default", "x", nil))
		}},
		{"a record is changed", "G28", func(s *sim) {
			for _, subject := range []string{"user:eve", "user:ann"} {
				s.txn(op{s.keys.AuditRecord("1"), task.AuditRecord{Time: s.time(), Subject: subject, Outcome: task.AuditRefused}})
			}
		}},
		{"a late record of nothing", "G28", func(s *sim) { s.late(s.rev, "user:ann") }},
		{"a late record of another dead run", "G28", func(s *sim) { s.dismissedLate("r2") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			c.happen(s)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

// checkAccess returns the violations of the guarantees of access. The tasks of these histories have no entries, which
// breaks others.
func (s *sim) checkAccess(o Options) []Violation {
	return slices.DeleteFunc(s.check(o).Violations, func(v Violation) bool { return v.Promise == "G7" || v.Promise == "G23" || v.Promise == "G25" })
}

// late writes the audit record of a deletion of the task x, which a full etcd accepted without it.
func (s *sim) late(revision int64, subject string) {
	s.audited("delete-task", subject, "t1", func(a *task.AuditRecord) {
		a.Late, a.Revision, a.Objects = true, revision, []task.AuditObject{{Kind: "task", Namespace: "default", Name: "x", Change: "delete"}}
	})
}

// dismissedLate deletes the dead run r1 as a full etcd accepts it, and writes the late record of a dismissal of a run.
func (s *sim) dismissedLate(run string) {
	ref := record.Ref{Namespace: "default", Name: "x"}
	key := s.keys.DeadRun(ref, "r1")
	s.audited("dismiss-run", "user:ann", "t1", nil, op{key, task.Run{UID: "u-x", State: task.Failed}})
	rev := s.txn(op{key, nil})

	s.audited("dismiss-run", "user:ann", "t1", func(a *task.AuditRecord) {
		a.Late, a.Revision, a.Objects = true, rev, []task.AuditObject{{Kind: "run", Namespace: "default", Name: "x", Run: run, Change: "delete"}}
	})
}

// Without Options.Audited, tests may write as nodes do.
func TestCheck_AccessDemandsRecordsOnlyIfTold(t *testing.T) {
	s := governed(t)
	s.txn(s.spec("default", "x", nil), s.triggered("r1"))
	only(t, s.checkAccess(Options{}), "")

	s.txn(op{s.spec("default", "x", nil).key, nil})
	for _, v := range s.check(Options{Audited: true, Full: true}).Violations {
		if strings.Contains(v.Message, "deleted without") {
			t.Errorf("after etcd was full: %v", v)
		}
	}
}

// A history that begins in the middle knows the access records by its first list.
func TestCheck_AccessFromTheFirstList(t *testing.T) {
	s := governed(t)
	listed := s.listed()
	from := len(s.events)
	s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
	s.audited("create-task", "user:bob", "t2", nil, s.spec("default", "y", nil))

	r := Check(s.keys, append(listed, s.events[from:]...), Options{Audited: true})
	if len(r.Violations) != 1 || r.Violations[0].Revision != s.rev {
		t.Errorf("want one violation at revision %d: %s", s.rev, r)
	}
}

// routesThatWriteNothing are routes whose method is not GET, and which write nothing to etcd: one answers a question, one is
// only for nodes, and two begin a login.
var routesThatWriteNothing = []string{"POST /v1/schedule/next", "POST /v1/attempts/cancel", "POST /v1/login/web", "POST /v1/login/device"}

// TestOperations_AreThoseOfTheAPI requires that the checker knows each operation of the API that can write.
func TestOperations_AreThoseOfTheAPI(t *testing.T) {
	b, err := os.ReadFile("../../api/testdata/routes.txt")
	if err != nil {
		t.Fatal(err)
	}

	known := map[string]bool{}
	for _, o := range operations {
		known[o.Route] = true
	}

	routes := strings.Fields(strings.ReplaceAll(string(b), " ", "+"))
	for _, r := range routes {
		r = strings.ReplaceAll(r, "+", " ")
		if strings.HasPrefix(r, "GET ") || slices.Contains(routesThatWriteNothing, r) {
			continue
		}

		if !known[r] {
			t.Errorf("operations lacks %s, by the name that its audit records have", r)
		}
		delete(known, r)
	}

	for r := range known {
		t.Errorf("operations has %s, which is not a route of the API", r)
	}

	var declared strings.Builder
	for _, dir := range []string{"../../api", "../../api/tasks", "../../api/runs", "../../api/nodes", "../../api/cluster", "../../api/secrets", "../../api/alerts", "../../api/accesscontrol", "../../api/logins"} {
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			if strings.HasSuffix(f.Name(), ".go") && !strings.HasSuffix(f.Name(), "_test.go") {
				text, err := os.ReadFile(dir + "/" + f.Name())
				if err != nil {
					t.Fatal(err)
				}
				declared.Write(text)
			}
		}
	}

	for id := range operations {
		if !regexp.MustCompile(`ID:\s+"` + id + `"`).MatchString(declared.String()) {
			t.Errorf("no route of the API has the id %s", id)
		}
	}
}

// Verifies: G27
func TestCheck_ARecordedReadNeedsTheRight(t *testing.T) {
	for _, c := range []struct{ name, subject, namespace, promise string }{
		{"a viewer", "user:bob", "default", ""},
		{"an auditor, who reads everything but output", "user:aud", "default", "G27"},
		{"a viewer of another namespace", "user:bob", "other", "G27"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			s.grant("auditors", "auditor", "user:aud", func(b *task.Binding) { b.Namespaces, b.Cluster = nil, true })
			s.issue("t3", "user:aud", nil)
			token := map[string]string{"user:bob": "t2", "user:aud": "t3"}[c.subject]
			s.audited("get-run-logs", c.subject, token, func(a *task.AuditRecord) {
				a.Outcome = task.AuditRead
				a.Objects = []task.AuditObject{{Kind: "run", Namespace: c.namespace, Name: "x", Run: "r", Change: "read"}}
			})
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

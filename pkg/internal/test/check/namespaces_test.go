package check

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// limit writes the record of the namespace default: its tasks may name these OS users.
func (s *sim) limit(users ...string) {
	n := task.Namespace{Name: "default", RunAs: users, UpdatedAt: s.time()}
	s.txn(op{s.keys.Namespace("default"), n}, op{s.keys.Fence(), record.Fence{}})
}

// runsAs is an action that names an OS user.
func runsAs(user string) task.Action {
	return task.Action{Process: &task.Process{Command: []string{"true"}, User: user}}
}

// refuse ends the due ticks of a task without a start, as its owner does if the namespace does not allow it.
func (s *sim) refuse(t *simTask) {
	w := s.marks[t.ref.Shard]
	w.Time, w.Seen = s.time(), max(w.Seen, t.create)

	var ops []op
	for _, tick := range s.due(t) {
		r := s.tickRun(t, tick, task.TriggerSchedule, task.Failed)
		r.Reason, r.Attempt, r.EndedAt = task.ReasonNamespace, 0, s.time()
		ops = append(append(ops, s.ended(t, r)), s.deadOf(t, r)...)
	}

	s.commit(t.ref.Shard, w, ops...)
}

// refuseFor refuses the ticks of some seconds.
func (s *sim) refuseFor(t *simTask, seconds int) {
	for range seconds {
		s.pass(1)
		s.refuse(t)
	}
}

// Verifies: G29
func TestCheck_Namespaces(t *testing.T) {
	const lag = 30 // seconds, see namespaceLag
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim, one *simTask)
	}{
		{"the namespace allows it", "", func(s *sim, _ *simTask) { s.work(3) }},
		{"the owner learns of a change late", "", func(s *sim, _ *simTask) {
			s.limit("web")
			s.work(lag)
		}},
		{"the owner never learns of a change", "G29", func(s *sim, _ *simTask) {
			s.limit("web")
			s.work(lag + 2)
		}},
		{"the owner goes by the record", "", func(s *sim, one *simTask) {
			s.limit("web")
			s.refuseFor(one, lag+5)
		}},
		{"the record is replaced, and says the same", "G29", func(s *sim, _ *simTask) {
			s.limit("web")
			s.work(lag - 1)
			s.limit("web", "db")
			s.work(3)
		}},
		{"the record is deleted", "G29", func(s *sim, _ *simTask) {
			s.txn(op{s.keys.Namespace("default"), nil}, op{s.keys.Fence(), record.Fence{}}, op{s.keys.AuditRecord("1"), task.AuditRecord{Time: s.time(), Subject: root, Operation: "delete-namespace"}})
			s.work(lag + 2)
		}},
		{"the owner refuses what is allowed", "G29", func(s *sim, one *simTask) { s.refuseFor(one, 1) }},
		{"the owner learns late that it is allowed again", "", func(s *sim, one *simTask) {
			s.limit("web")
			s.refuseFor(one, 3)
			s.limit("app")
			s.refuseFor(one, 3)
			s.work(3)
		}},
		{"the owner never learns that it is allowed again", "G29", func(s *sim, one *simTask) {
			s.limit("web")
			s.refuseFor(one, 3)
			s.limit("app")
			s.refuseFor(one, lag+2)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			s.limit("app")
			one := s.create("one", 0, 1, func(e *task.Entry) { e.Action = runsAs("app") })
			s.work(2)
			c.happen(s, one)

			r := s.check(Options{})
			only(t, slices.DeleteFunc(r.Violations, func(v Violation) bool { return v.Promise == "G27" && c.promise == "G29" }), c.promise)
		})
	}
}

// announce has the node a announce a label.
func (s *sim) announce(key, value string) {
	s.txn(op{s.keys.Node("a"), task.Node{Name: "a", Instance: s.sessions["a"], State: task.NodeReady, Labels: map[string]string{key: value},
		Roles: []string{task.RoleScheduler, task.RoleExecutor}, Weight: 1, Clock: s.time()}})
}

// restrict has the tasks of the namespace default run on nodes of the pool a only.
func (s *sim) restrict() {
	n := task.Namespace{Name: "default", RunAs: []string{"*"}, Nodes: "pool = a", UpdatedAt: s.time()}
	s.txn(op{s.keys.Namespace("default"), n}, op{s.keys.Fence(), record.Fence{}})
}

// limitNodes writes a limit of nodes, or deletes it if there are no labels.
func (s *sim) limitNodes(name string, labels ...string) {
	a := task.AuditRecord{Time: s.time(), Subject: root, Operation: "set-node-limit"}
	put := op{s.keys.NodeLimit(name), task.NodeLimit{Name: name, Labels: labels}}
	if len(labels) == 0 {
		put.value = nil
	}
	s.txn(put, op{s.keys.Fence(), record.Fence{}}, op{s.keys.AuditRecord(record.NewAuditID(a.Time.Time)), a})
}

// Verifies: G29
func TestCheck_NamespacesOfNodes(t *testing.T) {
	const lag = 30
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"the selector accepts the node", "", func(s *sim) { s.restrict() }},
		{"the selector does not accept the node", "G29", func(s *sim) {
			s.restrict()
			s.announce("pool", "b")
		}},
		{"the node may have its label", "", func(s *sim) {
			s.restrict()
			s.limitNodes("*", "zone=*")
			s.limitNodes("a", "pool=a")
		}},
		{"the node may not have its label", "G29", func(s *sim) {
			s.restrict()
			s.limitNodes("*", "zone=*")
		}},
		{"the node may not have its label, as the owner knows late", "", func(s *sim) {
			s.restrict()
			s.work(lag + 2)
			s.limitNodes("*", "zone=*")
			s.work(lag - 1)
			s.limitNodes("*")
		}},
		{"the selector compares facts", "", func(s *sim) {
			n := task.Namespace{Name: "default", RunAs: []string{"*"}, Nodes: "load1 < 4", UpdatedAt: s.time()}
			s.txn(op{s.keys.Namespace("default"), n}, op{s.keys.Fence(), record.Fence{}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, "a")
			s.announce("pool", "a")
			s.limit("app")
			s.create("one", 0, 1, func(e *task.Entry) { e.Action = runsAs("app") })
			s.work(2)
			c.happen(s)
			s.work(lag + 2)

			r := s.check(Options{})
			only(t, slices.DeleteFunc(r.Violations, func(v Violation) bool { return v.Promise == "G27" }), c.promise)
		})
	}
}

// The API compares the fence of access, so it never writes what the record in force forbids.
//
// Verifies: G29
func TestCheck_NamespacesOfSpecs(t *testing.T) {
	write := func(s *sim, user, description string) {
		spec := noop("default", "x", nil)
		spec.Action, spec.Description = runsAs(user), description
		s.audited("apply-task", "user:ann", "t1", nil, op{s.spec("default", "x", nil).key, spec})
	}
	limit := func(s *sim, users ...string) {
		s.fenced(s.keys.Namespace("default"), task.Namespace{Name: "default", RunAs: users, UpdatedAt: s.time()})
	}

	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"an action that is allowed", "", func(s *sim) { write(s, "app", "") }},
		{"an action that is not", "G29", func(s *sim) { write(s, "root", "") }},
		{"a task that does not fit any more is paused", "", func(s *sim) {
			write(s, "app", "")
			limit(s, "web")
			write(s, "app", "changed")
		}},
		{"a task that does not fit any more gets another action", "G29", func(s *sim) {
			write(s, "app", "")
			limit(s, "web")
			write(s, "db", "")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			limit(s, "app")
			c.happen(s)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

package api_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// attemptsOf stands for the attempts of a node. It notes which it was asked to end.
type attemptsOf struct {
	mu        sync.Mutex
	cancelled []task.LateCancel
	answer    func(task.LateCancel) (task.LateCancelled, error) // nil: it runs, and is ended
}

func (*attemptsOf) AttemptStatus(_, _, _ string) (task.AttemptStatus, bool) {
	return task.AttemptStatus{}, false
}
func (*attemptsOf) AttemptStatuses() []task.AttemptStatus { return nil }

func (a *attemptsOf) CancelAttempt(_ context.Context, c task.LateCancel) (task.LateCancelled, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.cancelled = append(a.cancelled, c)
	if a.answer != nil {
		return a.answer(c)
	}

	return task.LateCancelled{State: task.Running}, nil
}

// taken returns the runs that the node was asked to end, with their tokens and who asked, and forgets them.
func (a *attemptsOf) taken() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	for _, c := range a.cancelled {
		list = append(list, fmt.Sprintf("%s/%s/%s %d by %s", c.Namespace, c.Task, c.Run, c.Token, c.By))
	}
	a.cancelled = nil

	return list
}

// fullWorld is a cluster of node-a, which serves the callers, and node-b. Both run attempts. etcd can be made full.
type fullWorld struct {
	*world
	memory *kvmem.Store
	nodes  map[string]*attemptsOf
	urls   map[string]string

	mu   sync.Mutex
	late []task.AuditRecord
}

func newFullWorld(t *testing.T) *fullWorld {
	t.Helper()
	memory := kvmem.New(kvmem.Config{MinTTL: 1})
	t.Cleanup(memory.Close)
	w := &fullWorld{world: newWorldOn(t, kvtest.ClientOf(t, memory)), memory: memory, nodes: map[string]*attemptsOf{}, urls: map[string]string{}}

	for _, node := range []string{"node-a", "node-b"} {
		w.nodes[node] = &attemptsOf{}
		h, err := api.New(api.Config{
			Store: w.store, Access: w.keeper, Cluster: w.cluster, Node: node, Ref: ref, Now: w.clock.now, Logger: w.logger,
			Instance: "i-" + node, Key: keyOf(node), Peer: w.peerOrExecutor, Attempts: w.nodes[node], ForwardedOnly: node == "node-b",
			LateAudit: func(a task.AuditRecord) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.late = append(w.late, a)
			},
		})
		must(t, err)
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		w.urls[node] = s.URL
		w.present(node, s.URL)
	}

	w.url = w.urls["node-a"]
	w.Client = w.client(w.url)
	w.create("a", "@daily")

	return w
}

// peerOrExecutor is peer, with a node that does not have the role api.
func (w *fullWorld) peerOrExecutor(name string) (task.Node, bool) {
	n, known := w.peer(name)
	if name == "node-y" {
		n.Roles = []string{task.RoleExecutor}
	}

	return n, known
}

// lateRecords returns the audit records that etcd has not stored, and forgets them.
func (w *fullWorld) lateRecords() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, a := range w.late {
		if !a.Late || a.Revision != 0 || a.Node != "node-a" || a.Token == "" || len(a.Objects) != 1 {
			w.t.Errorf("late record %+v", a)
		}
		list = append(list, fmt.Sprintf("%s %s %s of %s", a.Operation, a.Outcome, a.Objects[0].Run, a.Subject))
	}
	w.late = nil

	return list
}

// cancel cancels a run of the task a.
func (w *fullWorld) cancel(run string) (client.Cancelled, error) {
	return w.Runs.Cancel(w.t.Context(), "default", "a", run)
}

// Verifies: G38
func TestFullEtcd_CancelsAnActiveRunOnItsNode(t *testing.T) {
	w := newFullWorld(t)
	for i, node := range []string{"node-a", "node-b"} {
		w.active(node, "a", id(i, "aaaa"))
	}
	held, err := w.store.ActiveOf(t.Context(), ref("default", "a"))
	must(t, err)

	w.memory.SetFull(true)
	before := w.dump()

	for i, node := range []string{"node-a", "node-b"} {
		got, err := w.cancel(id(i, "aaaa"))
		must(t, err)
		if !got.Unrecorded || got.State != task.Running || got.CancelledBy.String() != w.actor() || got.Node != node {
			t.Errorf("%s: %+v", node, got)
		}

		want := fmt.Sprintf("[default/a/%s %d by %s]", id(i, "aaaa"), held[i].Create, w.actor())
		if asked := fmt.Sprint(w.nodes[node].taken()); asked != want {
			t.Errorf("%s was asked to end %s, want %s", node, asked, want)
		}
		if late := fmt.Sprint(w.lateRecords()); late != "[cancel-run done "+id(i, "aaaa")+" of user:ann]" {
			t.Errorf("late audit records: %s", late)
		}
	}

	// A repeated request changes nothing, and leaves no record.
	w.nodes["node-b"].answer = func(task.LateCancel) (task.LateCancelled, error) {
		return task.LateCancelled{State: task.Running, Repeated: true}, nil
	}
	if got, err := w.cancel(id(1, "aaaa")); err != nil || !got.Unrecorded || w.lateRecords() != nil {
		t.Errorf("again: %+v, %v", got, err)
	}

	if after := w.dump(); !maps.Equal(before, after) {
		t.Errorf("something was written:\n%q\n%q", before, after)
	}

	// etcd has space again when the node looks, so the cancel goes into the record after all.
	w.nodes["node-b"].answer = func(task.LateCancel) (task.LateCancelled, error) {
		w.memory.SetFull(false)
		return task.LateCancelled{}, fmt.Errorf("%w: etcd accepts writes", task.ErrConflict)
	}
	got, err := w.cancel(id(1, "aaaa"))
	must(t, err)
	held, err = w.store.ActiveOf(t.Context(), ref("default", "a"))
	must(t, err)
	if got.Unrecorded || !held[1].CancelRequested || w.lateRecords() != nil {
		t.Errorf("with space: %+v, its record: %+v", got, held[1])
	}
}

// Verifies: G38
func TestFullEtcd_SaysWhyARunCannotBeCancelled(t *testing.T) {
	w := newFullWorld(t)
	parent, part := id(4, "aaaa"), task.PartID(id(4, "aaaa"), 0)
	w.active("node-b", "a", id(1, "aaaa"))
	w.active("node-z", "a", id(2, "aaaa")) // which is not present
	w.waiting("a", id(3, "aaaa"), nil)
	w.waiting("a", parent, func(r *task.Run) {
		r.State, r.Reason, r.Fan = task.Running, "", &task.Fan{Count: 3, Need: 3, Left: []int{2}}
	})
	w.active("node-b", "a", part)
	w.active("node-z", "a", task.PartID(parent, 1))
	w.memory.SetFull(true)

	for name, c := range map[string]struct {
		run          string
		answer       func(task.LateCancel) (task.LateCancelled, error)
		status       int
		code, detail string
		late         string // the audit records
	}{
		"it waits":                {run: id(3, "aaaa"), status: 507, code: client.CodeNoSpace, detail: "cannot start either until etcd has space"},
		"its node is not present": {run: id(2, "aaaa"), status: 507, code: client.CodeNoSpace, detail: "node node-z does not end the run: the node is not present"},
		"its node cannot keep it": {
			run: id(1, "aaaa"), status: 507, code: client.CodeNoSpace, detail: "node node-b does not end the run: no space left on device",
			answer: func(task.LateCancel) (task.LateCancelled, error) {
				return task.LateCancelled{}, errors.New("no space left on device")
			},
		},
		"its node may have ended it": {
			run: id(1, "aaaa"), status: 504, code: client.CodeUnknown, detail: "may still end it", late: "cancel-run intended " + id(1, "aaaa") + " of user:ann",
			answer: func(task.LateCancel) (task.LateCancelled, error) { return task.LateCancelled{}, task.ErrUnknown },
		},
		"it has ended": {
			run: id(1, "aaaa"), status: 409, code: client.CodeAlreadyEnded, detail: "has ended (failed), and its record follows",
			answer: func(task.LateCancel) (task.LateCancelled, error) { return task.LateCancelled{State: task.Failed}, nil },
		},
		"it is on the move": {
			run: id(1, "aaaa"), status: 409, code: client.CodeConflict, detail: "changed by someone else",
			answer: func(task.LateCancel) (task.LateCancelled, error) { return task.LateCancelled{}, task.ErrConflict },
		},
		"it has parts": {
			run: parent, status: 507, code: client.CodeNoSpace, detail: "Its nodes end 1 of its 2 active parts; parts that have not started cannot start until etcd has space; etcd is full, so it cannot store the cancel, and node node-z does not",
			late: "cancel-run done " + part + " of user:ann",
		},
	} {
		w.nodes["node-b"].answer = c.answer
		_, err := w.cancel(c.run)

		var e *client.Error
		if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || !strings.Contains(e.Message, c.detail) || e.Hint == "" {
			t.Errorf("%s: %+v", name, err)
		}
		if late := strings.Join(w.lateRecords(), ", "); late != c.late {
			t.Errorf("%s: late audit records: %s", name, late)
		}
	}
}

// What a caller may do is decided before a node is asked, by what etcd has.
//
// Verifies: G38
func TestFullEtcd_CancelsOnlyForThoseWhoMay(t *testing.T) {
	w := newFullWorld(t)
	w.active("node-b", "a", id(1, "aaaa"))
	viewer, former := w.token("user:eve"), w.token("user:ann")
	w.bind("user:eve", access.RoleViewer, "default")
	w.memory.SetFull(true)

	path := "/v1/namespaces/default/tasks/a/runs/" + id(1, "aaaa") + "/cancel"
	ask := func(secret string) int {
		return w.do(request{method: http.MethodPost, path: path, header: map[string]string{"Authorization": "Bearer " + secret}}).status
	}

	if got := ask(viewer); got != http.StatusForbidden {
		t.Errorf("a viewer: %d", got)
	}

	// The token is deleted when the request has been authenticated, and this node's copy still has it.
	w.writes.set(func(kv.Txn) {
		_, err := w.etcd.Delete(t.Context(), w.store.Keys().Token(tokenID(former)))
		must(t, err)
	}, nil)
	if got := ask(former); got != http.StatusUnauthorized {
		t.Errorf("a token that was deleted: %d", got)
	}

	if asked := w.nodes["node-b"].taken(); asked != nil || w.lateRecords() != nil {
		t.Errorf("the node was asked to end %s", asked)
	}
}

// A node ends attempts only for nodes with the role api, only as they have signed it, and once.
//
// Verifies: G37
func TestCancelAttempt_NeedsAStatementOfItsOwn(t *testing.T) {
	w := newFullWorld(t)
	w.memory.SetFull(true)
	const path = "/v1/attempts/cancel?run=default%2Fa%2Fr1&token=7"

	sign := func(edit func(*statement.Statement), q statement.Request) string {
		s := statement.Statement{From: "node-a", FromInstance: "i-node-a", To: "node-b", ToInstance: "i-node-b", Caller: statement.Caller{Who: "user:ann", Token: "t1"}}
		if edit != nil {
			edit(&s)
		}

		return s.Sign(keyOf(s.From), q, w.clock.now())
	}
	ask := func(header map[string]string, path, body string) int {
		w.url = w.urls["node-b"]
		return w.do(request{method: http.MethodPost, path: path, body: body, header: header, noToken: true}).status
	}
	as := func(s string) map[string]string { return map[string]string{statement.Header: s} }
	good := statement.Request{Method: http.MethodPost, Path: path}

	w.strangers = map[string]bool{"node-x": true}
	for name, c := range map[string]struct {
		header     map[string]string
		path, body string
		want       int
	}{
		"nobody":                         {want: 404}, // the node serves no callers
		"another node's":                 {header: as(sign(func(s *statement.Statement) { s.To, s.ToInstance = "node-c", "i-node-c" }, good)), want: 401},
		"of an unknown node":             {header: as(sign(func(s *statement.Statement) { s.From, s.FromInstance = "node-x", "i-node-x" }, good)), want: 401},
		"of a node without the role api": {header: as(sign(func(s *statement.Statement) { s.From, s.FromInstance = "node-y", "i-node-y" }, good)), want: 401},
		"for another attempt":            {header: as(sign(nil, good)), path: "/v1/attempts/cancel?run=default%2Fa%2Fr1&token=8", want: 401},
		"for a read":                     {header: as(sign(nil, statement.Request{Method: http.MethodGet, Path: path})), want: 401},
		"with a body":                    {header: as(sign(nil, good)), body: "{}", want: 401},
		"for a cancel of the API":        {header: as(sign(nil, statement.Request{Method: http.MethodPost, Path: "/v1/namespaces/default/tasks/a/runs/r1/cancel"})), path: "/v1/namespaces/default/tasks/a/runs/r1/cancel", want: 401},
		"without an attempt":             {header: as(sign(nil, statement.Request{Method: http.MethodPost, Path: "/v1/attempts/cancel?token=7"})), path: "/v1/attempts/cancel?token=7", want: 422},
	} {
		if c.path == "" {
			c.path = path
		}
		if got := ask(c.header, c.path, c.body); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if asked := w.nodes["node-b"].taken(); asked != nil {
		t.Errorf("the node was asked to end %s", asked)
	}

	once := as(sign(nil, good))
	for _, want := range []int{http.StatusOK, http.StatusUnauthorized} {
		if got := ask(once, path, ""); got != want {
			t.Errorf("the same statement: %d, want %d", got, want)
		}
	}
	if asked := fmt.Sprint(w.nodes["node-b"].taken()); asked != "[default/a/r1 7 by user:ann (token t1)]" {
		t.Errorf("the node was asked to end %s", asked)
	}

	// The audit record is on the other node, and a node whose key is stolen writes none.
	lines := w.log.FilterMessage("another node cancels an attempt, because etcd is full").All()
	if len(lines) != 1 || lines[0].ContextMap()["from"] != "node-a" || lines[0].ContextMap()["run"] != "r1" {
		t.Errorf("logged: %v", lines)
	}

	// A user of the API cannot request it, whatever their rights.
	w.url = w.urls["node-a"]
	if got := w.do(request{method: http.MethodPost, path: path}).status; got != http.StatusForbidden || w.nodes["node-a"].taken() != nil {
		t.Errorf("an administrator: %d", got)
	}
}

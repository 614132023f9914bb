package sim

import (
	"encoding/json"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// acks records the answers of the API. What the API acknowledged must be in the history (G13), and what it refused
// must not. A call of unknown outcome may be either.
type acks struct {
	mu      sync.Mutex
	marks   int // how many marks were given out
	all     []ack
	refused map[string]string // by mark: the call that was refused

	cancelled map[attemptID]bool // attempts that were cancelled while etcd was full
}

// attemptID identifies an attempt by its key in the queue and its token.
type attemptID struct {
	ref   record.Ref
	run   string
	token int64
}

// ack is an acknowledged write of a key at a revision.
type ack struct {
	what, key string
	revision  int64
}

// newMark returns a description for a task that no other call uses, to identify what a call has written.
func (a *acks) newMark() string {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.marks++
	return fmt.Sprintf("call %d", a.marks)
}

// addWrite records an acknowledged write.
func (a *acks) addWrite(what, key string, revision int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, ack{what, key, revision})
}

// addRefusal records a refused call.
func (a *acks) addRefusal(mark, call string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.refused == nil {
		a.refused = map[string]string{}
	}

	a.refused[mark] = call
}

// addLateCancel records that an attempt was cancelled while etcd was full.
func (a *acks) addLateCancel(ref record.Ref, r task.Run) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.cancelled == nil {
		a.cancelled = map[attemptID]bool{}
	}
	a.cancelled[attemptID{ref, r.ID, r.Token}] = true
}

// findRetry returns a violation if an event queues the retry of an attempt that was cancelled. A retry may follow only if
// the attempt was declared lost, because its node was gone before etcd had space for the cancel.
func (a *acks) findRetry(keys record.Keys, e check.Event) (v check.Violation, found bool) {
	k, inShard := keys.ParseShard(e.Key)
	if !inShard || k.Kind != record.KindQueued || len(a.cancelled) == 0 {
		return v, false
	}

	w, err := record.DecodeWaiting(k, e.Value)
	if err != nil || len(w.Attempts) == 0 {
		return v, false
	}

	last := w.Attempts[len(w.Attempts)-1]
	found = last.State != task.Lost && a.cancelled[attemptID{k.Ref, k.Run, last.Token}]

	return check.Violation{Promise: "G13", Revision: e.Revision, Key: e.Key,
		Message: fmt.Sprintf("the cancel of attempt %d, while etcd was full, was acknowledged, and a retry follows it", last.Attempt)}, found
}

// findViolations compares the answers with the history.
func (a *acks) findViolations(keys record.Keys, events []check.Event) (violations []check.Violation) {
	a.mu.Lock()
	defer a.mu.Unlock()

	type at struct {
		key      string
		revision int64
	}

	// Each call marks the task's description, so that a spec shows which call has written it.
	puts, described := map[at]bool{}, map[string]bool{}
	for _, e := range events {
		if e.Deleted {
			continue
		}

		puts[at{e.Key, e.ModRevision}] = true
		if v, found := a.findRetry(keys, e); found {
			violations = append(violations, v)
		}

		var t task.Task
		if _, _, spec := keys.ParseSpec(e.Key); spec && json.Unmarshal(e.Value, &t) == nil && !described[t.Description] {
			described[t.Description] = true
			if what, yes := a.refused[t.Description]; yes {
				violations = append(violations, check.Violation{Promise: "G13", Revision: e.Revision, Key: e.Key,
					Message: what + ": refused, and written all the same"})
			}
		}
	}

	for _, one := range a.all {
		if !puts[at{one.key, one.revision}] {
			violations = append(violations, check.Violation{Promise: "G13", Revision: one.revision, Key: one.key,
				Message: one.what + " was acknowledged, and nothing was written at that revision"})
		}
	}

	return violations
}

// edits records which edits of tasks do not compare the watermark of their shard because two that did have failed. Only for these
// edits, ticks after their time stamp may have been decided before them.
type edits struct {
	mu         sync.Mutex
	failed     map[record.Ref]int // writes with a comparison that have failed in a row
	uncompared map[int64]bool     // by the revision of the write
}

// neededFailures is how many writes of an edit must fail before one may omit the comparison.
const neededFailures = 2

// wereUncompared reports whether edits were written at a revision without the comparison, and had a reason.
func (e *edits) wereUncompared(rev int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.uncompared[rev]
}

// noteAnswer notes the edits in a request that etcd has answered.
func (e *edits) noteAnswer(keys record.Keys, op clientv3.Op, r clientv3.OpResponse) {
	if !op.IsTxn() || r.Txn() == nil {
		return
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.noteTransaction(keys, op, (*pb.TxnResponse)(r.Txn()), r.Txn().Header.Revision)
}

// noteTransaction notes the edits in a transaction and in those that are nested in it.
func (e *edits) noteTransaction(keys record.Keys, op clientv3.Op, r *pb.TxnResponse, rev int64) {
	cmps, then, els := op.Txn()
	for _, ref := range editsIn(keys, cmps, then) {
		compares := false
		for _, c := range cmps {
			compares = compares || string(c.KeyBytes()) == keys.Watermark(ref.Shard)
		}

		switch {
		case !r.Succeeded && compares:
			e.failed[ref]++
		case r.Succeeded:
			if !compares && e.failed[ref] >= neededFailures {
				e.uncompared[rev] = true
			}
			delete(e.failed, ref)
		}
	}

	ops := then
	if !r.Succeeded {
		ops = els
	}

	for i, o := range ops {
		if nested := r.Responses[i].GetResponseTxn(); nested != nil {
			e.noteTransaction(keys, o, nested, rev)
		}
	}
}

// editsIn returns the tasks whose entries a transaction compares and whose specs it writes.
func editsIn(keys record.Keys, cmps []clientv3.Cmp, then []clientv3.Op) (refs []record.Ref) {
	puts := map[string]bool{}
	for _, o := range then {
		if o.IsPut() {
			puts[string(o.KeyBytes())] = true
		}
	}

	for _, c := range cmps {
		k, ok := keys.ParseShard(string(c.KeyBytes()))
		if ok && k.Kind == record.KindEntry && c.GetCompare().GetModRevision() > 0 && puts[keys.Spec(k.Ref)] {
			refs = append(refs, k.Ref)
		}
	}

	return refs
}

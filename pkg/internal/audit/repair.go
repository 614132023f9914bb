package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Repair mends a finding, if it still is as it was found: it reads all anew,
// decides again, and writes in transactions that compare all that it read. If
// anything changes meanwhile, what compares it writes nothing. It only deletes,
// and only what nobody looks after any more; all else is not_repairable. The
// error is task.ErrUnavailable or, if nobody knows what became of a write,
// task.ErrUnknown: to do it again does no harm.
func (au Auditor) Repair(ctx context.Context, r task.RepairRequest) (task.RepairResult, error) {
	res := task.RepairResult{RepairRequest: r, Result: task.NotRepairable, Message: "a person has to: see what the finding says"}
	au.Page = cmp.Or(au.Page, 1000)
	a := &audit{Auditor: au, ctx: ctx, keys: au.Store.Keys(), at: au.Now(), counts: map[string]int{}}
	mend := map[string]func(task.RepairRequest) (int64, error){
		kindQueueOrphan.name: a.mendQueue, kindHistoryOrphan.name: a.mendHistory,
		kindMoveStands.name: a.mendMove, kindCleared.name: a.mendCleared,
		kindDeadOrphan.name: a.mendDead, kindVersionOrphan.name: a.mendVersion, kindGrave.name: a.mendGrave,
	}[r.Kind]
	if mend == nil {
		return res, nil
	}
	var err error
	res.Deleted, err = mend(r)
	switch {
	case err == nil:
		res.Result, res.Message = task.Repaired, ""
	case errors.Is(err, task.ErrConflict):
		res.Result, res.Message, err = task.NotAsFound, err.Error(), nil
	default:
		err = fmt.Errorf("repair %s: %w", r.Key, err)
	}
	return res, err
}

func changed(what string, args ...any) error {
	return fmt.Errorf("%w: %s", task.ErrConflict, fmt.Sprintf(what, args...))
}

// as reads a record, and refuses one that has changed since the audit saw it.
func (a *audit) as(r task.RepairRequest) (*mvccpb.KeyValue, error) {
	found, err := a.get([]string{r.Key})
	if err != nil {
		return nil, err
	}
	if e := found[r.Key]; e != nil && e.ModRevision == r.Revision {
		return e, nil
	}
	return nil, changed("%s is not as it was found", r.Key)
}

// drop deletes one record, and returns how many are gone.
func (a *audit) drop(rec *mvccpb.KeyValue, beside ...store.Seen) (int64, error) {
	if err := a.Store.DeleteSeen(a.ctx, []store.Seen{seen(rec)}, beside...); err != nil {
		return 0, err
	}
	return 1, nil
}

// owning is what says whether a task is there: its spec and its entry, either
// of which keeps its records.
type owning struct {
	entry, spec *mvccpb.KeyValue
	seen        []store.Seen
}

// owning reads them, before the records: what a transaction compares of them
// is then as it was at the records' reading, too.
func (a *audit) owning(ref record.Ref) (owning, error) {
	keys := []string{a.keys.Entry(ref), a.keys.Spec(ref)}
	found, err := a.get(keys)
	o := owning{entry: found[keys[0]], spec: found[keys[1]]}
	for _, key := range keys {
		s := store.Seen{Key: key}
		if e := found[key]; e != nil {
			s = seen(e)
		}
		o.seen = append(o.seen, s)
	}
	return o, err
}

// has reports whether a record of a task with this uid belongs to it. To what
// cannot be read all records do.
func (o owning) has(uid string) bool {
	for _, e := range []*mvccpb.KeyValue{o.entry, o.spec} {
		if e != nil && (uidOf(e.Value) == uid || uidOf(e.Value) == "") {
			return true
		}
	}
	return false
}

func (a *audit) mendQueue(r task.RepairRequest) (int64, error) {
	k, ok := a.keys.ParseShard(r.Key)
	if !ok || k.Kind != record.KindQueued {
		return 0, changed("%s is no waiting run", r.Key)
	}
	return a.mendOf(k.Ref, r, func(e *mvccpb.KeyValue) (string, error) {
		w, err := record.DecodeWaiting(k, e.Value)
		return w.UID, err
	})
}

// mendHistory deletes the history of a task that is gone, as many records in a
// transaction as it takes, each of which compares that the task has not come back.
func (a *audit) mendHistory(r task.RepairRequest) (deleted int64, err error) {
	k, ok := a.keys.ParseShard(r.Key + "run")
	if !ok || k.Kind != record.KindEnded || a.keys.HistoryOf(k.Ref) != r.Key {
		return 0, changed("%s is no task's history", r.Key)
	}
	of, err := a.owning(k.Ref)
	if err != nil {
		return 0, err
	}
	var page []store.Seen
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		err := a.Store.DeleteSeen(a.ctx, page, of.seen...)
		if err == nil {
			deleted += int64(len(page))
		}
		page = page[:0]
		return err
	}
	err = a.each(r.Key, func(e *mvccpb.KeyValue) error {
		k, ok := a.keys.ParseShard(string(e.Key))
		if !ok {
			return nil
		}
		if rec, err := record.DecodeEnded(k, e.Value); err != nil || of.has(rec.UID) {
			return nil
		}
		if page = append(page, seen(e)); len(page) < store.MostMended-len(of.seen) {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err == nil && deleted == 0 {
		err = changed("no record of a task that is gone is left below %s", r.Key)
	}
	return deleted, err
}

func (a *audit) mendMove(r task.RepairRequest) (int64, error) {
	if !strings.HasPrefix(r.Key, a.moves()) {
		return 0, changed("%s is no hand-over", r.Key)
	}
	rec, err := a.as(r)
	if err != nil {
		return 0, err
	}
	var m struct {
		Since task.Time `json:"since"`
	}
	if json.Unmarshal(rec.Value, &m) != nil || a.at.Sub(m.Since.Time) <= movesFor {
		return 0, changed("the hand-over %s is under way", r.Key)
	}
	return a.drop(rec)
}

func (a *audit) mendCleared(r task.RepairRequest) (int64, error) {
	if !strings.HasPrefix(r.Key, a.keys.Cleared("")) {
		return 0, changed("%s does not say that an instance is cleared", r.Key)
	}
	rec, err := a.as(r)
	if err != nil {
		return 0, err
	}
	var c struct {
		At task.Time `json:"at"`
	}
	if err := json.Unmarshal(rec.Value, &c); err != nil || rec.Lease != 0 || a.at.Sub(c.At.Time) < clearedFor {
		return 0, changed("%s is younger than %s, and may be waited for", r.Key, clearedFor.Round(time.Hour))
	}
	return a.drop(rec)
}

package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Auditor checks a live cluster against the promises. It looks twice: what is
// wrong at the first look, of all records at one revision, is a finding only if
// a second look, Pause later, sees the same records at the same revisions. So
// what merely changes hands is none, however busy the cluster is.
//
//	first look ──▶ suspects ──Pause──▶ second look ──▶ findings
//
// It holds a page of records, what it must know of the entries of one shard,
// and 17 bytes of each task. It reads only; Repair writes.
type Auditor struct {
	Store *store.Store
	// Ref says where a task lives.
	Ref func(namespace, name string) record.Ref
	// Now is the wall clock of Node.
	Now  func() time.Time
	Node string
	// Pause is the time between the two looks; default 6 s, a little longer than
	// nodes take to announce themselves again.
	Pause time.Duration
	// Tell hears now and then how far the audit is; nil: nobody does.
	Tell func(task.AuditProgress)
	// Page is how many records are read at once; default 1000.
	Page int
}

// DefaultPause is Auditor.Pause where it is not set.
const DefaultPause = 6 * time.Second

const (
	// slack is how much later than it should be a thing may be, before it is a finding.
	slack = 30 * time.Second
	// skew is by how much a node's clock may differ, before it is one. Between the
	// reading of a clock and the commit of what it said lies a while.
	skew = 5 * time.Second
	// mostOfAKind bounds the findings of a kind; more are counted.
	mostOfAKind = 200
	mostKeys    = 10
)

// audit is one audit while it runs.
type audit struct {
	Auditor
	ctx  context.Context
	keys record.Keys
	rev  int64     // at which it reads
	at   time.Time // when that was the present

	read     int64
	told     time.Time
	stage    string
	suspects []suspect
	counts   map[string]int
	notes    []string

	shards int // of the cluster
	fleet
	specs  specSet
	active map[uint64]bool // tasks with attempts in inboxes
}

// suspect is a finding that a second look has to confirm.
type suspect struct {
	task.Finding
	// facts are keys as they must still be at the second look.
	facts []store.Seen
	// still, if set, has the last word then.
	still func(context.Context) (bool, error)
}

// Run audits. The error is task.ErrUnavailable if etcd could not be read.
func (au Auditor) Run(ctx context.Context) (task.Audit, error) {
	if au.Now == nil {
		au.Now = time.Now
	}
	au.Pause, au.Page = cmp.Or(au.Pause, DefaultPause), cmp.Or(au.Page, 1000)
	a := &audit{Auditor: au, ctx: ctx, keys: au.Store.Keys(), counts: map[string]int{}, active: map[uint64]bool{}}
	found, err := a.run()
	if err != nil {
		return task.Audit{}, fmt.Errorf("audit: %w", err)
	}
	return task.Audit{Findings: found, Notes: append([]string{}, a.notes...), Keys: a.read, Revision: a.rev, At: task.At(a.at), Node: a.Node}, nil
}

func (a *audit) run() ([]task.Finding, error) {
	if err := a.pin(); err != nil {
		return nil, err
	}
	for _, look := range []struct {
		stage string
		at    func() error
	}{
		{"nodes", a.lookAtFleet}, {"tasks", a.lookAtSpecs}, {"attempts", a.lookAtRuns}, {"shards", a.lookAtShards}, {"etcd", a.lookAtEtcd},
	} {
		a.stage = look.stage
		a.progress(0)
		if err := look.at(); err != nil {
			return nil, err
		}
		if a.shards == 0 {
			break // without a cluster there is nothing to compare with
		}
	}
	a.stage = "second look"
	a.told = time.Time{}
	a.progress(0)
	if err := a.wait(); err != nil {
		return nil, err
	}
	return a.confirm()
}

func (a *audit) wait() error {
	t := time.NewTimer(a.Pause)
	defer t.Stop()
	select {
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	case <-t.C:
		return nil
	}
}

// suspect notes what a second look is to confirm: that facts are as they were,
// the first of them the finding's own key unless that is a prefix.
func (a *audit) suspect(f task.Finding, facts ...store.Seen) *suspect {
	a.counts[f.Kind]++
	s := suspect{Finding: f, facts: facts}
	if len(facts) > 0 && len(f.Keys) > 0 && facts[0].Key == f.Keys[0] {
		s.Revision = facts[0].Mod
	}
	if a.counts[f.Kind] > mostOfAKind {
		return &s // counted; not kept
	}
	a.suspects = append(a.suspects, s)
	return &a.suspects[len(a.suspects)-1]
}

// confirm looks at the suspects again, all at one revision.
func (a *audit) confirm() ([]task.Finding, error) {
	var keys []string
	for _, s := range a.suspects {
		for _, f := range s.facts {
			keys = append(keys, f.Key)
		}
	}
	now, err := a.mods(keys)
	if err != nil {
		return nil, err
	}
	found := []task.Finding{}
	for _, s := range a.suspects {
		if slices.ContainsFunc(s.facts, func(f store.Seen) bool { return now[f.Key] != f.Mod }) {
			continue
		}
		if s.still != nil {
			switch yes, err := s.still(a.ctx); {
			case err != nil:
				return nil, err
			case !yes:
				continue
			}
		}
		found = append(found, s.Finding)
	}
	clocks, err := a.confirmClocks()
	if err != nil {
		return nil, err
	}
	found = append(found, clocks...)
	for _, k := range slices.Sorted(maps.Keys(a.counts)) {
		if more := a.counts[k] - mostOfAKind; more > 0 {
			a.note("%d more of kind %s were seen once, and not looked at again", more, k)
		}
	}
	order := []string{groupEtcd, groupNodes, groupShards, groupTasks, groupRuns}
	slices.SortStableFunc(found, func(x, y task.Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(order, x.Group), slices.Index(order, y.Group)), cmp.Compare(x.Severity, y.Severity), cmp.Compare(x.Kind, y.Kind))
	})
	return found, nil
}

func (a *audit) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(a.notes, n) && len(a.notes) < mostOfAKind {
		a.notes = append(a.notes, n)
	}
}

// progress counts records, and tells of them about once a second.
func (a *audit) progress(records int) {
	a.read += int64(records)
	if a.Tell == nil || time.Since(a.told) < time.Second {
		return
	}
	a.told = time.Now()
	a.Tell(task.AuditProgress{Stage: a.stage, Keys: a.read})
}

func unavailable(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, task.ErrUnavailable, err)
}

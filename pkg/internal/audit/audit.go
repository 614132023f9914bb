package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Auditor checks a live cluster against the guarantees (docs/guarantees.md). It reads the cluster twice. Something
// wrong in the first read, which reads all records at one revision, is a finding only if a second read, Pause
// later, finds the same records at the same revisions. A record that only changes hands is therefore never a
// finding, however busy the cluster is.
//
//	first read ──judges──▶ suspects ──Pause──▶ second read ──▶ findings
//
// Memory: a page of records, some facts about the entries and the history of one shard, up to 25 bytes for each task, and some 200 bytes
// for each task that runs after others. Run only reads.
// Repair writes.
type Auditor struct {
	// Store is the connection to the cluster's etcd.
	Store *store.Store
	// Ref returns the shard of a task.
	Ref func(namespace, name string) record.Ref
	// Now is the wall clock of Node, by which the audit judges what is late. The default is time.Now.
	Now func() time.Time
	// Node is the name of the node that makes the audit. Findings about clocks compare with it.
	Node string
	// Pause is the time between the two reads; default 6 s, a little longer than
	// nodes take to announce themselves again.
	Pause time.Duration
	// OnProgress, if set, is called about once a second with the progress of the audit.
	OnProgress func(task.AuditProgress)
	// Page is how many records one read returns; default 1000.
	Page int
	// Offline says that nothing runs in the cluster, as in a rehearsed restore. Then there is no pause, and no finding about nodes, owners
	// and etcd, or about what nobody decides.
	Offline bool
}

// DefaultPause is the default of Auditor.Pause.
const DefaultPause = 6 * time.Second

const (
	// timeTolerance is how much later than expected something may happen before it is a finding.
	timeTolerance = 30 * time.Second
	// maxClockSkew is how far a node's clock may be off before it is a finding. Some time passes between the
	// reading of a clock and the commit that announces it.
	maxClockSkew = 5 * time.Second
	// maxPerKind limits the findings of a kind. Further ones are only counted.
	maxPerKind = 200
	// maxKeys limits the keys of a finding.
	maxKeys = 10
)

// withDefaults returns the auditor with defaults for the fields that are not set.
func (au Auditor) withDefaults() Auditor {
	if au.Now == nil {
		au.Now = time.Now
	}
	au.Pause, au.Page = cmp.Or(au.Pause, DefaultPause), cmp.Or(au.Page, 1000)
	if au.Offline {
		au.Pause = 0
	}

	return au
}

// Run makes an audit. The error is task.ErrUnavailable if etcd could not be read.
func (au Auditor) Run(ctx context.Context) (task.Audit, error) {
	a := newAudit(au.withDefaults())
	found, err := a.runStages(ctx)
	if err != nil {
		return task.Audit{}, fmt.Errorf("audit: %w", err)
	}

	if au.Offline {
		found = slices.DeleteFunc(found, func(f task.Finding) bool { return liveKinds[f.Kind] })
	}

	return task.Audit{
		Findings: found, Notes: append([]string{}, a.notes.texts...), Keys: a.progress.records,
		Revision: a.reader.revision, At: task.At(a.reader.at), Node: au.Node,
	}, nil
}

// audit is one audit in progress. It lets the judges read and judge the cluster stage by stage, and then confirms
// what they suspect.
type audit struct {
	pause    time.Duration
	notes    *notes
	progress *progress
	reader   *reader
	suspects *suspects
	cluster  *snapshot

	// The judges, each for one group of records.
	records     *clusterJudge
	nodes       *nodeJudge
	leader      *leaderJudge
	owners      *ownerJudge
	credentials *credentialJudge
	specs       *specJudge
	attempts    *attemptJudge
	shards      *shardJudge
	kept        *keptJudge
	members     *memberJudge
	auditLog    *auditLogJudge
}

// newAudit wires an audit. Judges that depend on other judges receive them here.
func newAudit(au Auditor) *audit {
	notes, progress, cluster := &notes{}, &progress{report: au.OnProgress}, newSnapshot()
	reader := newReader(au, progress, notes)
	suspects := newSuspects(notes)
	base := judge{suspects: suspects, reader: reader, cluster: cluster, keys: reader.keys, ref: au.Ref}

	leases := &leaseJudge{judge: base, pause: au.Pause}
	owners := &ownerJudge{base}
	links := &linkJudge{judge: base, dependents: map[string]*dependentState{}}
	data := &runDataJudge{judge: base}

	return &audit{
		pause: au.Pause, notes: notes, progress: progress, reader: reader, suspects: suspects, cluster: cluster,

		records:     &clusterJudge{base},
		nodes:       &nodeJudge{judge: base, leases: leases, localNode: au.Node},
		leader:      &leaderJudge{judge: base, leases: leases},
		owners:      owners,
		credentials: &credentialJudge{base},
		specs:       &specJudge{judge: base, links: links},
		attempts:    &attemptJudge{judge: base, owners: owners},
		shards: &shardJudge{
			judge: base, entries: &entryJudge{judge: base, ticks: &tickJudge{judge: base}, links: links}, links: links, data: data,
			queue: &queueJudge{judge: base, data: data}, history: &historyJudge{judge: base, owners: owners, data: data}, ledgers: &ledgerJudge{judge: base},
		},
		kept:    &keptJudge{base},
		members: &memberJudge{base}, auditLog: &auditLogJudge{base},
	}
}

// runStages reads the cluster stage by stage. Each stage is compared with what the earlier ones have read. After a pause
// it confirms the suspects.
func (a *audit) runStages(ctx context.Context) ([]task.Finding, error) {
	// All reads of the first pass use this revision.
	if err := a.reader.pinRevision(ctx); err != nil {
		return nil, err
	}

	for _, stage := range []struct {
		name  string
		check func(context.Context) error
	}{
		{"nodes", a.checkFleet},
		{"tasks", a.specs.readSpecs},
		{"attempts", a.attempts.checkAttempts},
		{"shards", a.checkShards},
		{"audit log", a.auditLog.checkAuditLog},
		{"etcd", a.members.checkMembers},
	} {
		a.progress.beginStage(stage.name)

		if err := stage.check(ctx); err != nil {
			return nil, err
		}
		if a.cluster.shards == 0 {
			break // without a cluster record there is nothing to compare with
		}
	}

	// The second pass must see facts at a later time, when records in transition have moved on.
	a.progress.beginAndReport("second check")

	if err := a.waitForQuiet(ctx); err != nil {
		return nil, err
	}

	return a.confirmSuspects(ctx)
}

// checkFleet reads the small directories, which hold everything that does not belong to a task.
func (a *audit) checkFleet(ctx context.Context) error {
	if err := a.records.readCluster(ctx); err != nil || a.cluster.shards == 0 {
		return err
	}

	// Nodes come first, because leader and owners are compared with them.
	keys := a.reader.keys
	for _, directory := range []struct {
		prefix string
		check  checkFunc
	}{
		{keys.Nodes(), a.nodes.checkNode},
		{keys.Owners(), a.owners.checkOwner},
		{clearedPrefix(keys), a.nodes.checkCleared},
		{movesPrefix(keys), a.owners.checkMove},
		{keys.Access(), a.credentials.checkAccess},
		{keys.Secrets(), a.credentials.checkSecret},
	} {
		if err := a.reader.eachRecord(ctx, directory.prefix, directory.check); err != nil {
			return err
		}
	}

	if err := a.leader.checkLeader(ctx); err != nil {
		return err
	}

	a.owners.checkAllOwned()

	return a.records.readFreezes(ctx)
}

// checkShards reads the shards, and then what must be compared with their entries.
func (a *audit) checkShards(ctx context.Context) error {
	if err := a.shards.checkShards(ctx); err != nil {
		return err
	}
	if err := a.specs.checkAllHaveEntries(ctx); err != nil {
		return err
	}
	if err := a.kept.checkKept(ctx); err != nil {
		return err
	}

	return a.shards.checkStray(ctx)
}

// waitForQuiet waits between the two reads.
func (a *audit) waitForQuiet(ctx context.Context) error {
	if !clock.Sleep(ctx, a.pause) {
		return context.Cause(ctx)
	}

	return nil
}

// confirmSuspects reads again what the suspects depend on. It returns the confirmed findings in the order in which
// they are shown.
func (a *audit) confirmSuspects(ctx context.Context) ([]task.Finding, error) {
	found, err := a.suspects.confirmAll(ctx, a.reader)
	if err != nil {
		return nil, err
	}

	clocks, err := a.nodes.confirmClocks(ctx)
	if err != nil {
		return nil, err
	}

	found = append(found, clocks...)
	a.suspects.noteDropped()

	slices.SortStableFunc(found, func(x, y task.Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(groupOrder, x.Group), slices.Index(groupOrder, y.Group)),
			cmp.Compare(x.Severity, y.Severity),
			cmp.Compare(x.Kind, y.Kind))
	})

	return found, nil
}

// unavailableError wraps an error of etcd as task.ErrUnavailable, unless the caller has canceled.
func unavailableError(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, task.ErrUnavailable, err)
}

// progress counts the records that were read, and reports it about once a second.
type progress struct {
	report   func(task.AuditProgress) // nil: no reports
	stage    string
	records  int64     // read so far
	reported time.Time // when the last report was made
}

// beginStage begins a stage.
func (p *progress) beginStage(stage string) {
	p.stage = stage
	p.addRecords(0)
}

// beginAndReport begins a stage and reports it at once.
func (p *progress) beginAndReport(stage string) {
	p.reported = time.Time{}
	p.beginStage(stage)
}

// addRecords counts records.
func (p *progress) addRecords(records int) {
	p.records += int64(records)
	if p.report == nil || time.Since(p.reported) < time.Second {
		return
	}

	p.reported = time.Now()
	p.report(task.AuditProgress{Stage: p.stage, Keys: p.records})
}

// suspect is a finding that the second read must confirm.
type suspect struct {
	task.Finding
	// facts are keys whose mod revisions must not have changed; 0 means absent.
	facts []store.Seen
	// recheck, if set, decides after all facts have been confirmed.
	recheck recheck
}

// recheck decides in the second read whether a suspect is still true, where this does not follow from the revisions
// of keys.
type recheck interface {
	stillHolds(ctx context.Context) (bool, error)
}

// suspects collects what the judges suspect in the first read.
type suspects struct {
	*notes
	list   []suspect      // at most maxPerKind of each kind
	counts map[string]int // by kind, including those that are not in the list
}

func newSuspects(notes *notes) *suspects { return &suspects{notes: notes, counts: map[string]int{}} }

// addSuspect adds a finding that is true as long as the facts have not changed. The first fact is the finding's own
// key, unless that is a prefix.
func (s *suspects) addSuspect(f task.Finding, facts ...store.Seen) { s.suspectWith(f, nil, facts...) }

// suspectWith adds a finding that is true as long as the facts have not changed and recheck confirms it.
func (s *suspects) suspectWith(f task.Finding, recheck recheck, facts ...store.Seen) {
	if len(facts) > 0 && len(f.Keys) > 0 && facts[0].Key == f.Keys[0] {
		f.Revision = facts[0].Mod
	}

	s.counts[f.Kind]++
	if s.counts[f.Kind] <= maxPerKind {
		s.list = append(s.list, suspect{Finding: f, facts: facts, recheck: recheck})
	}
}

// confirmAll reads the facts of all suspects again, at one revision, and returns the suspects that are confirmed.
func (s *suspects) confirmAll(ctx context.Context, r *reader) ([]task.Finding, error) {
	var keys []string
	for _, suspect := range s.list {
		for _, fact := range suspect.facts {
			keys = append(keys, fact.Key)
		}
	}

	now, err := r.modRevisions(ctx, keys)
	if err != nil {
		return nil, err
	}

	// A suspect is confirmed only if none of its facts has changed and its recheck agrees.
	found := []task.Finding{}
	for _, suspect := range s.list {
		if slices.ContainsFunc(suspect.facts, func(fact store.Seen) bool { return now[fact.Key] != fact.Mod }) {
			continue
		}

		if suspect.recheck != nil {
			holds, err := suspect.recheck.stillHolds(ctx)
			if err != nil {
				return nil, err
			}
			if !holds {
				continue
			}
		}

		found = append(found, suspect.Finding)
	}

	return found, nil
}

// noteDropped adds a note for each kind with more suspects than the list holds.
func (s *suspects) noteDropped() {
	for _, kind := range slices.Sorted(maps.Keys(s.counts)) {
		if more := s.counts[kind] - maxPerKind; more > 0 {
			s.addNote("%d more suspected problems of kind %s were not checked a second time", more, kind)
		}
	}
}

// notes holds remarks about the audit itself, each once.
type notes struct{ texts []string }

func (n *notes) addNote(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(n.texts, text) && len(n.texts) < maxPerKind {
		n.texts = append(n.texts, text)
	}
}

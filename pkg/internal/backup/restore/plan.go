package restore

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// planFile is the plan in the work directory.
const planFile = "plan.json"

// maxListed is how many names a list of the plan has at most.
const maxListed = 20

// Plan says what a restore will do. It counts what the owners of the shards will decide from the same records.
type Plan struct {
	BackupTime task.Time `json:"backup_time"`
	SHA256     string    `json:"sha256,omitempty"`
	Cluster    string    `json:"cluster"`
	Epoch      int       `json:"epoch"`    // of the backup
	Revision   int64     `json:"revision"` // of the backup
	Tasks      int64     `json:"tasks"`
	Until      task.Time `json:"lost_until"`
	At         task.Time `json:"at"` // when the plan was made

	// Gap are the ticks that are due up to Until and not decided in the backup: they will not run. Late are those since then: the missed
	// policy of each task decides them, and ByPolicy counts their tasks.
	Gap      Ticks            `json:"gap"`
	Late     Ticks            `json:"late"`
	ByPolicy map[string]int64 `json:"late_tasks_by_policy,omitempty"`
	// OneShots are tasks whose last tick is in the gap: they will never run.
	OneShots Names `json:"one_shots"`

	// LastSign is the last sign of life of the lost cluster on this host.
	LastSign *Sign `json:"last_sign,omitempty"`

	// What was under way in the backup. If something may be lost, it ends as lost or missed.
	Attempts  int64 `json:"attempts"`
	Waiting   int64 `json:"waiting"`  // runs in queues, except for parents
	Parents   int64 `json:"parents"`  // runs with parts, and workflows
	Triggers  int64 `json:"triggers"` // ends of sources without an outcome
	KeepsRuns bool  `json:"keeps_runs"`

	Freezes []task.Freeze `json:"freezes,omitempty"`
	Paused  int64         `json:"paused"`
	// Admins may do everything after the restore, and AdminTokens are their tokens.
	Admins      []string `json:"admins"`
	AdminTokens []string `json:"admin_tokens"`
	// Audit is nil if the agent of this host writes no audit file.
	Audit *AuditReview `json:"audit,omitempty"`
	// MissingKeys are the IDs of keys that encrypt secrets of the backup and that this host does not have.
	MissingKeys []string `json:"missing_secret_keys,omitempty"`
	Secrets     int64    `json:"secrets"`
	// Unreadable are entries that cannot be read. Their tasks have no ticks.
	Unreadable Names    `json:"unreadable"`
	Dropped    []string `json:"dropped,omitempty"` // kinds of keys that are deleted
	EtcdUsers  []string `json:"etcd_users,omitempty"`
}

// Ticks counts ticks.
type Ticks struct {
	Ticks int64 `json:"ticks"`
	Tasks int64 `json:"tasks"` // that have such ticks
}

// add counts the ticks of a task.
func (t *Ticks) add(n int64) {
	if n > 0 {
		t.Ticks += n
		t.Tasks++
	}
}

// Names counts names, and has the first ones in alphabetical order.
type Names struct {
	Count int64    `json:"count"`
	First []string `json:"first,omitempty"`
}

// add adds a name.
func (n *Names) add(name string) {
	n.Count++
	i, _ := slices.BinarySearch(n.First, name)
	if i < maxListed {
		n.First = slices.Insert(n.First, i, name)
		n.First = n.First[:min(len(n.First), maxListed)]
	}
}

// Sign is a sign of life.
type Sign struct {
	Node string    `json:"node"`
	At   task.Time `json:"at"`
	From string    `json:"from"` // the file whose time it is
}

// planner makes a plan.
type planner struct {
	*Options
	keys       record.Keys
	plan       *Plan
	watermarks map[int]record.Watermark
	bindings   []task.Binding
	tokens     []task.Token
	secretKeys map[string]bool
	access     map[[2]string]bool // backupAccess.valid
}

// MakePlan makes the plan of a restore from the unpacked backup. held are the IDs of the secret keys of this host.
func MakePlan(ctx context.Context, source Source, c *Content, o *Options, held []string) (*Plan, error) {
	keys, err := record.NewKeys(o.Prefix)
	if err != nil {
		return nil, err
	}

	db, err := backup.OpenDatabase(source.Path)
	if err != nil {
		return nil, err
	}
	defer db.Close()

	p := &planner{Options: o, keys: keys, watermarks: map[int]record.Watermark{}, secretKeys: map[string]bool{}, access: map[[2]string]bool{}, plan: &Plan{
		BackupTime: task.At(source.Time), SHA256: source.SHA256, Cluster: c.Cluster.ID, Epoch: c.Cluster.Epoch, Revision: c.Revision,
		Tasks: c.Counts["tasks"], Until: task.At(o.Until), At: task.At(o.Now), ByPolicy: map[string]int64{}, KeepsRuns: !o.Until.After(source.Time),
		Attempts: c.Counts["runs"], Triggers: c.Counts["shards/triggers"], Admins: []string{}, AdminTokens: []string{},
		EtcdUsers: c.facts.userCommands(), LastSign: lastSign(o.Node, o.DataDir),
	}}
	if c.other.count > 0 {
		p.plan.Dropped = append(p.plan.Dropped, fmt.Sprintf("%d keys outside of %s", c.other.count, o.Prefix))
	}
	p.plan.Dropped = append(p.plan.Dropped, c.kinds...)

	// The ticks of an entry depend on the watermark of its shard, so the entries come in a second pass.
	if err := db.Each(ctx, keys.Root(), p.readRecord); err != nil {
		return nil, err
	}
	if err := db.Each(ctx, keys.Shards(), p.readEntry); err != nil {
		return nil, err
	}

	p.findAdmins()
	for id := range p.secretKeys {
		if !slices.Contains(held, id) {
			p.plan.MissingKeys = append(p.plan.MissingKeys, id)
		}
	}
	slices.Sort(p.plan.MissingKeys)

	if o.AuditFile != "" {
		p.plan.Audit = reviewAuditFile(o.AuditFile, backupAccess{revision: c.Revision, at: source.Time, sha256: source.SHA256, valid: p.access})
	}

	return p.plan, nil
}

// readRecord reads a record that is no entry.
func (p *planner) readRecord(e *mvccpb.KeyValue) error {
	key := string(e.Key)
	switch kind, _ := p.keys.KeyKind(key); kind {
	case "shards/watermark":
		k, _ := p.keys.ParseShard(key)
		if w, err := record.DecodeWatermark(e.Value); err == nil {
			p.watermarks[k.Ref.Shard] = w
		}
	case "shards/queue":
		k, ok := p.keys.ParseShard(key)
		if w, err := record.DecodeWaiting(k, e.Value); ok && err == nil && w.Fan != nil {
			p.plan.Parents++
		} else {
			p.plan.Waiting++
		}
	case "freezes":
		if f, err := record.Decode[task.Freezes](e.Value); err == nil {
			p.plan.Freezes = f.Holding
		}
	case "access/bindings":
		if b, err := record.Decode[task.Binding](e.Value); err == nil && p.isValid(b.Until) {
			p.bindings = append(p.bindings, b)
			p.addAccess(kind, key)
		}
	case "access/tokens":
		if t, err := record.Decode[record.Token](e.Value); err == nil && t.Kind == task.TokenKindToken && p.isValid(t.Until) && !p.NoTokens {
			t.ID = strings.TrimPrefix(key, p.keys.Tokens())
			p.tokens = append(p.tokens, t.Token)
			p.addAccess(kind, key)
		}
	case "access/roles", "access/namespaces", "access/nodes", "access/disabled":
		p.addAccess(kind, key)
	case "secrets":
		if s, err := p.keys.DecodeSecret(e); err == nil && !s.Deleted() {
			p.plan.Secrets++
			if s.KeyID != "" {
				p.secretKeys[s.KeyID] = true
			}
		}
	}

	return nil
}

// isValid reports whether something that ends at a time, or never, is valid when the cluster is restored.
func (p *planner) isValid(until task.Time) bool { return until.IsZero() || until.After(p.Now) }

// addAccess adds an access record that is valid after the restore.
func (p *planner) addAccess(kind, key string) {
	name, err := url.PathUnescape(strings.TrimPrefix(key, p.keys.Root()+kind+"/")) // only the names of subjects are escaped
	if err == nil {
		p.access[[2]string{accessKinds[kind], name}] = true
	}
}

// readEntry counts the ticks of an entry that are not decided in the backup.
func (p *planner) readEntry(e *mvccpb.KeyValue) error {
	k, ok := p.keys.ParseShard(string(e.Key))
	if !ok || k.Kind != record.KindEntry {
		return nil
	}

	entry, err := record.DecodeEntry(e.Value)
	if err != nil {
		p.plan.Unreadable.add(k.Ref.String())
		return nil
	}
	if entry.Paused {
		p.plan.Paused++
	}
	if !entry.Ticks() {
		return nil
	}

	s, err := schedule.Parse(entry.Timing(), entry.Anchor.Time)
	if err != nil {
		p.plan.Unreadable.add(k.Ref.String())
		return nil
	}

	// after is the time up to which the ticks of the task are decided, or do not exist.
	after := entry.From.Time
	if w, ok := p.watermarks[k.Ref.Shard]; ok && e.CreateRevision <= w.Seen {
		if last, any := s.LastDue(decidedUpTo(w, k.Ref), entry.UID); any && last.After(after) {
			after = last
		}
	}
	if until, paused := entry.Silence(); paused && until.After(after) {
		after = until.Time
	}

	// A tick is in the gap if it is due by then, so jitter may move it beyond.
	inGap := int64(0)
	if last, any := s.LastDue(p.Until, entry.UID); any && last.After(after) && !p.plan.KeepsRuns {
		_, _, inGap, _ = s.Missed(after, last, 0)
		p.plan.Gap.add(inGap)
		after = last
	}
	if _, more := s.Next(after); inGap > 0 && !more {
		p.plan.OneShots.add(k.Ref.String())
	}

	if last, any := s.LastDue(p.Now, entry.UID); any && last.After(after) {
		_, _, late, _ := s.Missed(after, last, 0)
		p.plan.Late.add(late)
		p.plan.ByPolicy[string(entry.Missed.Policy)]++
	}

	return nil
}

// decidedUpTo returns the time up to which a watermark decides the ticks of a task. Tasks that sort after its last task are decided only
// up to the millisecond before.
func decidedUpTo(w record.Watermark, ref record.Ref) time.Time {
	if w.Last != "" && ref.String() > w.Last {
		return w.Time.Add(-time.Millisecond)
	}
	return w.Time.Time
}

// findAdmins finds who may do everything: the subjects with the role admin in the whole cluster, and their tokens.
func (p *planner) findAdmins() {
	for _, b := range p.bindings {
		if b.Role == "admin" && b.Cluster && len(b.Labels) == 0 {
			p.plan.Admins = append(p.plan.Admins, b.Subjects...)
		}
	}

	slices.Sort(p.plan.Admins)
	p.plan.Admins = slices.Compact(p.plan.Admins)

	slices.SortFunc(p.tokens, func(a, b task.Token) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt.Time), cmp.Compare(a.ID, b.ID))
	})
	for _, t := range p.tokens {
		if slices.Contains(p.plan.Admins, t.Subject) && t.Scope == nil {
			p.plan.AdminTokens = append(p.plan.AdminTokens, fmt.Sprintf("%s of %s, created %s", t.ID, t.Subject, formatTime(t.CreatedAt.Time)))
		}
	}
}

// lastSign returns the last sign of life that the data directory of this host has: when the agent last saw a new revision of etcd, or
// when an attempt last wrote output. It returns nil if there is none. The time is rounded up to a second, because an operator may use it
// for --lost-until. The clock of the file system is some milliseconds behind, so a file may be older than the tick that it is of.
func lastSign(node, dir string) *Sign {
	var last *Sign
	see := func(path string, info fs.FileInfo) {
		if last == nil || info.ModTime().After(last.At.Time) {
			last = &Sign{Node: node, At: task.At(info.ModTime()), From: path}
		}
	}

	state := filepath.Join(dir, "state.json")
	if info, err := os.Stat(state); err == nil {
		see(state, info)
	}

	// What cannot be read is no sign.
	_ = filepath.WalkDir(filepath.Join(dir, "spool"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			see(path, info)
		}
		return nil
	})

	if last != nil {
		last.At = task.At(last.At.Add(time.Second - 1).Truncate(time.Second))
	}

	return last
}

package store

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/task"
)

// The formats of records. A cluster has one in force, in its record: no node
// writes what takes a newer one to understand, and no node joins that does not
// understand it. All formats are read, at any time.
const (
	// FormatExplicit: records of runs say all that is not in their key.
	FormatExplicit = 1
	// FormatCompact: what is so in nearly all of them is left out (see record); a
	// leader may have a shard loaded before it moves it, and nodes may be unfit.
	FormatCompact = 2

	// FormatPolicies: specs and entries may have the fields and values for which
	// FormatOf says so; there may be freezes.
	FormatPolicies = 3
	// FormatShadow: specs and entries may say shadow.
	FormatShadow = 4
	// FormatProcesses: specs, entries and runs may have the fields and values for which
	// features say so: processes that are confined, paused, talk back, run in parts.
	FormatProcesses = 5

	// NewestFormat is the newest that this version understands.
	NewestFormat = FormatProcesses
)

// feature is a part of a task that a version of an older format would pass by, or
// not read: it would fire the task otherwise than its user said, or not at all.
type feature struct {
	field  string
	format int
	in     func(*task.Spec) bool
}

var features = []feature{
	{"success", FormatProcesses, func(s *task.Spec) bool { return s.Success.Any() }},
	{"kill_signal", FormatProcesses, func(s *task.Spec) bool { return s.KillSignal != "" && s.KillSignal != task.DefaultKillSignal }},
	{"target.strategy", FormatProcesses, func(s *task.Spec) bool { return s.Target.Strategy != task.StrategyAuto && s.Target.Strategy != "" }},
	{"target.selector", FormatProcesses, func(s *task.Spec) bool { return task.ComparesInSelector(s.Target.Selector) }},
	{"output", FormatProcesses, func(s *task.Spec) bool { return s.Output != (task.Output{}) }},

	{"action.process.env_from", FormatProcesses, func(s *task.Spec) bool { return s.Action.Process != nil && len(s.Action.Process.EnvFrom) > 0 }},
	{"target.count", FormatProcesses, func(s *task.Spec) bool { return s.Target.Count == task.All || s.Target.Count > 1 }},
	{"target.parts", FormatProcesses, func(s *task.Spec) bool { return s.Target.Parts > 0 }},

	{"shadow", FormatShadow, func(s *task.Spec) bool { return s.Shadow }},

	{"action.process.group", FormatProcesses, process(func(p *task.Process) bool { return p.Group != "" })},
	{"action.process.groups", FormatProcesses, process(func(p *task.Process) bool { return p.Groups != nil })},
	{"action.process.umask", FormatProcesses, process(func(p *task.Process) bool { return p.Umask != "" })},
	{"action.process.nice", FormatProcesses, process(func(p *task.Process) bool { return p.Nice != 0 })},
	{"action.process.ionice", FormatProcesses, process(func(p *task.Process) bool { return p.IONice != "" })},
	{"action.process.no_new_privs", FormatProcesses, process(func(p *task.Process) bool { return p.NoNewPrivs })},
	{"action.process.private_tmp", FormatProcesses, process(func(p *task.Process) bool { return p.PrivateTmp })},
	{"action.process.scratch", FormatProcesses, process(func(p *task.Process) bool { return p.Scratch })},
	{"action.process.limits", FormatProcesses, process(func(p *task.Process) bool { return p.Limits != (task.Limits{}) })},

	{"schedule", FormatPolicies, func(s *task.Spec) bool { return slices.ContainsFunc(s.Schedule, grown) }},
	{"overlap", FormatPolicies, func(s *task.Spec) bool { return s.Overlap != task.OverlapSkip && s.Overlap != task.OverlapAllow }},
	{"max_active", FormatPolicies, func(s *task.Spec) bool { return s.MaxActive != 0 }},
	{"start", FormatPolicies, func(s *task.Spec) bool { return !s.Start.IsZero() }},
	{"end", FormatPolicies, func(s *task.Spec) bool { return !s.End.IsZero() }},
	{"jitter", FormatPolicies, func(s *task.Spec) bool { return s.Jitter != 0 }},
	{"max_runs", FormatPolicies, func(s *task.Spec) bool { return s.MaxRuns != 0 }},
	{"ttl", FormatPolicies, func(s *task.Spec) bool { return s.TTL != 0 }},
	{"start_deadline", FormatPolicies, func(s *task.Spec) bool { return s.Deadline != 0 }},
	{"pause_after_failures", FormatPolicies, func(s *task.Spec) bool { return s.PauseAfter != 0 }},
	{"paused_until", FormatPolicies, func(s *task.Spec) bool { return !s.PausedUntil.IsZero() }},
	{"retry.exit_codes", FormatPolicies, func(s *task.Spec) bool { return len(s.Retry.ExitCodes) > 0 }},
}

// process is a claim of a task's process, if it has one.
func process(in func(*task.Process) bool) func(*task.Spec) bool {
	return func(s *task.Spec) bool { return s.Action.Process != nil && in(s.Action.Process) }
}

// FormatOf is the format that a task takes, and the field for which; "" if any
// version would do.
func FormatOf(s *task.Spec) (format int, field string) {
	format = FormatExplicit
	for _, f := range features {
		if f.format > format && f.in(s) {
			format, field = f.format, f.field
		}
	}
	return format, field
}

// placed are the words of cron that FormatPolicies brought: L, LW, 15W, 5L, 5#3, H.
var placed = regexp.MustCompile(`(?i)(^|[\s,])(L|LW|\d+W|(\d+|sun|mon|tue|wed|thu|fri|sat)L|\w+#\d|H(\(\d+-\d+\))?(/\d+)?)($|[\s,])`)

// grown reports whether a former version would not know an expression: its task
// would not fire.
func grown(expr string) bool {
	if strings.HasPrefix(expr, "@") {
		return strings.HasSuffix(strings.Join(strings.Fields(expr), " "), " after completion")
	}
	return placed.MatchString(expr)
}

// ErrFormat means that the cluster's records have a format that this version, or
// another one in the cluster, does not understand.
var ErrFormat = errors.New("format of records")

// formats are what a store understands, and what it writes.
type formats struct {
	understood int
	writes     atomic.Int32
	cluster    atomic.Int64 // mod revision of the cluster's record by which it does; 0: not known
}

// Understanding is the same Store, but as a version that understands formats up
// to newest. Its Batching and it share what they write.
func (s *Store) Understanding(newest int) *Store {
	u := *s
	u.format = &formats{understood: newest}
	u.format.writes.Store(int32(newest))
	return &u
}

// Understands is the newest format that the store reads.
func (s *Store) Understands() int { return s.format.understood }

// Format is the format that the store writes, and by which its node may act: a
// leader has a shard loaded by its next owner first only from FormatCompact on.
// Without a cluster's record (Bootstrap, Obey) it is the newest.
func (s *Store) Format() int { return int(s.format.writes.Load()) }

// explicit reports whether records of runs are to say all.
func (s *Store) explicit() bool { return s.Format() < FormatCompact }

// Obey writes by what the cluster's record says from now on, unless a later one
// is known. ErrFormat if it takes a newer version to read what others may write.
func (s *Store) Obey(c ClusterRecord) error {
	if c.Mod < s.format.cluster.Load() {
		return nil
	}
	return s.obey(c)
}

func (s *Store) obey(c ClusterRecord) error {
	if f := c.InForce(); f > s.format.understood {
		return fmt.Errorf("%w: the cluster's records have format %d, and this version understands no newer one than %d: "+
			"run a newer version, or `carillon cluster downgrade --to-format %d` by one", ErrFormat, f, s.format.understood, s.format.understood)
	}
	s.format.writes.Store(int32(c.Written()))
	s.format.cluster.Store(c.Mod)
	return nil
}

// compact reports whether a record of an inbox leaves out what FormatExplicit says.
func compact(value []byte) bool {
	said := 0
	err := object(value, func(r *reader, name []byte) {
		switch string(name) {
		case "dispatched_at", "kill_grace", "retry":
			said++
		}
		r.skip()
	})
	return err == nil && said < 3
}

// understood refuses what a store of an older format would misread.
func (s *Store) understood(value []byte) error {
	if s.format.understood < FormatCompact && compact(value) {
		return fmt.Errorf("%w: unreadable record: %w %d", task.ErrInvalid, ErrFormat, FormatCompact)
	}
	return nil
}

package wording

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// ClusterFacts returns the settings of a cluster, and how many tasks fit into it if that is known.
func ClusterFacts(s client.ClusterStatus) []Field {
	facts := []Field{
		{Name: "Format", Value: FormatText(s.Format)}, {Name: "Catching up", Value: CatchUpText(s.CatchUpRate)},
		{Name: "Lost after", Value: LostAfterText(s.LostAfter)}, {Name: "Ledgers", Value: LedgerSettingText(s.Ledger)},
	}
	if s.PublicURL != "" {
		facts = append(facts, Field{Name: "Public URL", Value: OneLine(s.PublicURL)})
	}
	if len(s.AlertReceivers) > 0 {
		facts = append(facts, Field{Name: "Alerts to", Value: OneLine(strings.Join(s.AlertReceivers, ", "))})
	}
	if capacity := CapacityText(s.Room); capacity != "" {
		facts = append(facts, Field{Name: "Capacity", Value: capacity})
	}

	return facts
}

// RestoredText describes what the last restore of a cluster has lost. The ends of the gap are in UTC, so that they can be compared with logs.
func RestoredText(r *task.Restored) string {
	at := func(t task.Time) string { return t.UTC().Format(time.RFC3339) }

	text := "by hand"
	switch {
	case r.BackupRevision == 0:
	case r.HasGap():
		text = fmt.Sprintf("from a backup of %s; gap until %s", at(r.BackupTime), at(r.Until))
	default:
		text = fmt.Sprintf("from a backup of %s, without a gap", at(r.BackupTime))
	}
	if r.By != nil {
		text += fmt.Sprintf(", by %s", r.By)
	}

	return text
}

// FormatText describes the format of records.
func FormatText(f client.FormatStatus) string {
	words := strconv.Itoa(f.Format)

	switch {
	case f.Wanted > 0 && f.Wanted < f.Format:
		words += fmt.Sprintf(", downgrading to %d", f.Wanted)
	case f.Wanted > 0:
		words += ", until you run `carillon cluster upgrade`"
	case f.Possible > f.Format:
		words += fmt.Sprintf("; all nodes support %d: `carillon cluster upgrade`", f.Possible)
	case f.Because != "":
		words += "; " + f.Because + " does not support a newer format"
	}

	return words
}

// CatchUpText describes the catch-up rate.
func CatchUpText(rate int) string { return Plural(int64(rate), "late run") + " per second" }

// LostAfterText describes lost_after.
func LostAfterText(d task.Duration) string {
	return fmt.Sprintf("%s without contact with the node", d)
}

// CapacityText describes how many tasks fit into etcd. It returns "" while that is not known.
func CapacityText(r *client.Room) string {
	if r == nil {
		return ""
	}

	history := ""
	if r.HistoryPerTask >= 0.05 {
		history = fmt.Sprintf(" with %.1f history records", r.HistoryPerTask)
	}

	return fmt.Sprintf("about %s tasks, at %s per task%s", TwoDigits(r.Tasks), Bytes(r.BytesPerTask), history)
}

// TwoDigits rounds an estimate to two significant digits: "120,000", "1.2 million".
func TwoDigits(n int64) string {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}

	n = (n + unit/2) / unit * unit
	switch {
	case n >= 1_000_000:
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + " million"
	case n >= 10_000:
		return strconv.FormatInt(n/1000, 10) + ",000"
	}

	return strconv.FormatInt(n, 10)
}

// RevisionsText describes which revisions etcd keeps. It returns "" if that is not known.
func RevisionsText(r client.Revisions) string {
	if r.Oldest == 0 {
		return ""
	}
	return fmt.Sprintf("%d, from %d to %d", r.Newest-r.Oldest+1, r.Oldest, r.Newest)
}

// MemberSize describes the size of the database of a member. It returns "" if that is not known.
func MemberSize(m client.EtcdMember) string {
	switch {
	case m.DBSize == 0:
		return ""
	case m.DBQuota == 0:
		return Bytes(m.DBSize)
	}
	return fmt.Sprintf("%s of %s (%d%%)", Bytes(m.DBSize), Bytes(m.DBQuota), m.DBSize*100/m.DBQuota)
}

// NodeState describes the state of a node: "ready, blocked: load1".
func NodeState(n task.Node) string {
	words := n.State
	if n.Ineligible != "" {
		words += ", " + n.Ineligible
	}

	return OneLine(words + blockedText(n) + IgnoredText(n))
}

// blockedText names the limits that a node exceeds.
func blockedText(n task.Node) string {
	if len(n.Blocked) == 0 {
		return ""
	}
	return ", blocked: " + strings.Join(n.Blocked, " ")
}

// IgnoredText names the labels that a node announces although its limit does not allow them.
func IgnoredText(n task.Node) string {
	if len(n.IgnoredLabels) == 0 {
		return ""
	}
	return ", ignored: " + Labels(n.IgnoredLabels)
}

// IneligibleText explains why a node owns no shards, from the reason in its record. It returns "" without a reason.
func IneligibleText(reason string) string {
	switch reason {
	case "":
		return ""
	case task.IneligibleClock:
		return "owns no shards, because its clock jumped or differs from the clocks of other nodes"
	case task.IneligibleStalled:
		return "owns no shards for now, because it did not decide ticks that were due"
	case task.IneligibleRestored:
		return "owns no shards, because etcd was restored from an older snapshot"
	}

	return "owns no shards: " + reason
}

// FactText formats a fact for people. It returns "" if the fact is unknown.
func FactText(f *task.Facts, name string) string {
	v, known := f.Fact(name)

	switch name {
	case task.FactMemory, task.FactMemoryFree, task.FactDisk, task.FactDiskFree:
		if known {
			return Bytes(int64(v))
		}
	case task.FactCPUs:
		if known {
			return fmt.Sprint(v)
		}
	default:
		if known {
			return fmt.Sprintf("%.2f", v)
		}
	}

	return ""
}

// RunNumber formats a number of runs with commas. A part of a run is "<1".
func RunNumber(n float64) string {
	if n > 0 && n < 0.5 {
		return "<1"
	}
	return Grouped(int(math.Round(n)))
}

// RunCount returns a number of runs, or of tasks, with its noun.
func RunCount(n float64, noun string) string {
	text := RunNumber(n) + " " + noun
	if n < 0.5 || n >= 1.5 {
		text += "s"
	}

	return text
}

// InexactLoad says what a load spreads or leaves out, each on a line.
func InexactLoad(l client.TaskLoad) []string {
	var lines []string
	if l.Jittered > 0 {
		lines = append(lines, fmt.Sprintf("%s with jitter: runs are spread over the time in which they may fall due", RunCount(float64(l.Jittered), "task")))
	}
	if l.Inexact > 0 {
		lines = append(lines, fmt.Sprintf("%s with @every and other expressions: runs of @every are spread over the whole time", RunCount(float64(l.Inexact), "task")))
	}
	if l.AfterCompletion > 0 {
		verb := "count"
		if l.AfterCompletion == 1 {
			verb = "counts"
		}
		lines = append(lines, fmt.Sprintf("%s that %s from the end of a run: not predictable, not included", RunCount(float64(l.AfterCompletion), "task"), verb))
	}

	return lines
}

// LoadMakerText returns the schedule of tasks that make load, with its zone and jitter.
func LoadMakerText(m client.LoadMaker) string {
	text := OneLine(m.Schedule)
	if m.Timezone != "UTC" {
		text += " " + OneLine(m.Timezone)
	}
	if m.Jitter > 0 {
		text += fmt.Sprintf(" (jitter %s)", m.Jitter)
	}

	return text
}

// shownSeconds is how many busy seconds of a minute are named.
const shownSeconds = 3

// HotSeconds names the seconds of a minute in which most runs fall due: ":00 1,200, :30 40". It returns "" if no second
// has many more than the others.
func HotSeconds(p client.LoadPeak) string {
	const seconds, much = 60, 3

	var parts []string
	for _, s := range p.Seconds[:min(len(p.Seconds), shownSeconds)] {
		if s.Runs*seconds >= much*p.Runs {
			parts = append(parts, fmt.Sprintf(":%02d %s", s.Second, RunNumber(s.Runs)))
		}
	}

	return strings.Join(parts, ", ")
}

const (
	// currentFor is the age from which a list is said to be old. A watch without events gives a sign of life about every two seconds.
	currentFor = 3 * time.Second
	// maxNamed is the maximum number of missing shards that are named.
	maxNamed = 10
)

// MissingText says what a reader must know of a list that the owners of shards have answered: which shards are missing, how
// old the list is, and whether owners still collect how runs ended. It returns "" if there is nothing to say.
func MissingText(info client.ListInfo) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }

	if n := len(info.Missing); n > 0 {
		add("%d of %d shards", info.Shards-n, info.Shards)
		add("missing %s", NamedShards(info.Missing))
	}

	if age := time.Duration(info.AgeMS) * time.Millisecond; age > currentFor {
		add("as of %s ago", task.Duration(age).Approximate())
	}

	if info.Collecting != nil {
		add("collecting %d%%", *info.Collecting)
	}

	return strings.Join(parts, "; ")
}

// NamedShards names shards: "17, 18, 40".
func NamedShards(shards []int) string {
	names := make([]string, min(len(shards), maxNamed))
	for i := range names {
		names[i] = strconv.Itoa(shards[i])
	}

	text := strings.Join(names, ", ")
	if n := len(shards) - maxNamed; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}

	return text
}

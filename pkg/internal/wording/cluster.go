package wording

import (
	"fmt"
	"strconv"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// ClusterFacts returns the settings of a cluster, and how many tasks fit into it if that is known.
func ClusterFacts(s client.ClusterStatus) []Field {
	facts := []Field{
		{Name: "Format", Value: FormatText(s.Format)}, {Name: "Catching up", Value: CatchUpText(s.CatchUpRate)},
		{Name: "Lost after", Value: LostAfterText(s.LostAfter)}, {Name: "Ledgers", Value: LedgerSettingText(s.Ledger)},
	}
	if capacity := CapacityText(s.Room); capacity != "" {
		facts = append(facts, Field{Name: "Capacity", Value: capacity})
	}

	return facts
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
func CatchUpText(rate int) string { return fmt.Sprintf("%d late runs per second", rate) }

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

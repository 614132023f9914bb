package check

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sweepTokens is the operation of the audit records of tokens that a node deletes by itself.
const sweepTokens = "sweep-tokens"

// checkSweep judges the audit record of a node that deletes tokens by itself: it deletes nothing but tokens that had
// expired, by the time of the record (G27).
func (j *accessJudge) checkSweep(a *task.AuditRecord, key string, changes []objectChange) {
	for _, o := range a.Objects {
		i := slices.IndexFunc(changes, func(c objectChange) bool { return c.object == objectOf(o) })
		if o.Kind != "token" || i < 0 || !changes[i].deleted {
			j.addViolation("G27", key, "%s by %s lists %s, which is no deleted token", a.Operation, a.Subject, objectOf(o))
			continue
		}

		t, err := record.Decode[record.Token](changes[i].before)
		if err != nil || t.Until.IsZero() || t.Until.After(a.Time.Time) {
			j.addViolation("G27", key, "%s by %s deletes %s, which had not expired", a.Operation, a.Subject, objectOf(o))
		}
	}
}

// checkRemovals checks that audit records are deleted only together with a record that says how many (G28).
func (j *accessJudge) checkRemovals(events []Event) {
	var deleted, announced int64
	key := ""
	for _, ev := range events {
		switch {
		case strings.HasPrefix(ev.Key, j.keys.AuditRecords()) && ev.Deleted:
			deleted++
			key = ev.Key
		case strings.HasPrefix(ev.Key, j.keys.AuditGaps()) && !ev.Deleted:
			g, err := record.Decode[task.AuditGap](ev.Value)
			if err != nil {
				j.addViolation("form", ev.Key, "unreadable record: %v", err)
			}
			announced += g.Removed
		}
	}

	if deleted != announced && deleted > 0 {
		j.addViolation("G28", key, "%d audit records are deleted, and the gaps of this revision say %d", deleted, announced)
	}
}

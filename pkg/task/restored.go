package task

import "time"

// Restored describes one restore of the cluster: etcd's content was replaced by that of a backup, or a user has accepted an older
// content (carillon cluster recover). The cluster's record lists them, the oldest first.
type Restored struct {
	Epoch     int    `json:"epoch" doc:"The epoch that began with the restore."`
	FromEpoch int    `json:"from_epoch" doc:"The epoch of the backup, or the one that ended."`
	ID        string `json:"id" doc:"Identifies the restore. Two restores of one backup differ."`
	At        Time   `json:"at" doc:"When it was restored."`
	By        *Actor `json:"by,omitempty" doc:"Who restored it."`
	// Revision is etcd's revision before the record with this restore was written. All records of the backup have a mod revision
	// up to it, and everything that is written afterwards has a higher one.
	Revision int64 `json:"revision" doc:"etcd's revision before the first write after the restore."`

	// A restore from a backup has these fields. Those of a cluster that was recovered by hand are empty, because Carillon does not know
	// the backup.
	SHA256         string `json:"sha256,omitempty" doc:"The SHA-256 of the backup."`
	BackupTime     Time   `json:"backup_time,omitzero" doc:"When the backup was made."`
	BackupRevision int64  `json:"backup_revision,omitempty" doc:"etcd's revision in the backup."`
	// Until is the last moment at which the lost history may have decided ticks. A tick of the backup that is due up to it does not
	// run. Unless Until is after BackupTime, nothing was lost.
	Until Time `json:"until,omitzero" doc:"Until when ticks may have been decided that are lost. Such ticks do not run."`
	// Nodes are the addresses of the nodes of the backup, which may still run. Only the latest restore has them.
	Nodes []string `json:"nodes,omitempty" doc:"The addresses of the nodes of the backup."`
}

// HasGap reports whether the lost history may have decided ticks after the backup was made.
func (r *Restored) HasGap() bool { return r.Until.After(r.BackupTime.Time) }

// NextEpoch returns the number of the epoch that begins at a time after an older one. It is a Unix time in seconds, so that it is higher
// than the epochs of a history that was lost, of which nobody knows how many there were.
func NextEpoch(old int, now time.Time) int { return max(old+1, int(now.Unix())) }

// WithRestore returns the record of the cluster after a restore: its epoch begins, and the restore is added to the others. Only the
// latest restore keeps the addresses of nodes.
func (c Cluster) WithRestore(r Restored) Cluster {
	list := make([]Restored, 0, len(c.Restored)+1)
	for _, former := range c.Restored {
		former.Nodes = nil
		list = append(list, former)
	}

	c.Epoch, c.Restored = r.Epoch, append(list, r)

	return c
}

// Gap is what lost histories of a cluster may have decided, of which etcd has no trace: all restores after which something was lost,
// taken together. A later restore or recovery does not end the gap of an earlier one, because its backup may contain what is not
// decided yet.
type Gap struct {
	// Until is the last moment at which a lost history may have decided ticks. What is due up to it and not decided does not run.
	Until Time
	// Revision is the revision of etcd before the first write after the last of these restores. A run whose record was created up
	// to it is one of a backup, which may have gone on and ended in the lost history.
	Revision int64
	// Restored is the last of these restores.
	Restored Restored
}

// Gap returns the gap of the cluster. It returns nil if no restore has lost anything, as in a cluster that was never restored.
func (c *Cluster) Gap() *Gap {
	var g *Gap
	for i := range c.Restored {
		r := &c.Restored[i]
		if !r.HasGap() {
			continue
		}

		if g == nil {
			g = &Gap{}
		}
		g.Restored, g.Revision = *r, max(g.Revision, r.Revision)
		if r.Until.After(g.Until.Time) {
			g.Until = r.Until
		}
	}

	return g
}

// Covers reports whether a lost history may have decided a tick that is due at a time.
func (g *Gap) Covers(due time.Time) bool { return g != nil && !due.After(g.Until.Time) }

// HasRecord reports whether a record with a create revision was in a backup, so that its run may have gone on in a lost history. 0 is not
// known yet, which is possible only for a record that was just written.
func (g *Gap) HasRecord(create int64) bool { return g != nil && create > 0 && create <= g.Revision }

// String returns what the restore means for a run or a tick, for people.
func (g *Gap) String() string {
	if g == nil {
		return ""
	}

	r := &g.Restored
	return "restored on " + formatInstant(r.At) + " from a backup of " + formatInstant(r.BackupTime) + "; what was decided from then until " + formatInstant(g.Until) + " is lost"
}

// IsFailure reports whether the run has ended in a way that counts as a failure of its task. How a run ended that a restore has lost says
// nothing about the task.
func (r *Run) IsFailure() bool {
	return (r.State == Failed || r.State == TimedOut || r.State == Lost) && r.Reason != ReasonRestored
}

// formatInstant formats a time for people, without fractions of a second.
func formatInstant(t Time) string { return t.UTC().Format(time.RFC3339) }

// LastRestored returns the latest restore, or nil if there was none.
func (c *Cluster) LastRestored() *Restored {
	if len(c.Restored) == 0 {
		return nil
	}
	return &c.Restored[len(c.Restored)-1]
}

package restore

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxAuditLine is the maximum length of a line of an audit file.
const maxAuditLine = 16 << 20

// AuditReview is what the audit file of this host says about a backup. The host has written the file, so it does not depend on where the
// backup was stored.
type AuditReview struct {
	File string `json:"file"`
	// Problem says what could not be read.
	Problem string `json:"problem,omitempty"`
	// From is the time of the first record. If it is later than the backup, an older file has what was revoked in between.
	From task.Time `json:"from,omitzero"`
	// Recorded says that a record of the backup has the same SHA-256.
	Recorded bool `json:"recorded"`
	// Revoked are the access records of the backup that were deleted or changed later, and subjects that were disabled later.
	Revoked []Revoked `json:"revoked,omitempty"`
}

// Revoked is an access record that was revoked or changed after the backup was made. The restore brings back what it was.
type Revoked struct {
	Kind   string    `json:"kind"` // as in task.AuditObject
	Name   string    `json:"name"`
	Change string    `json:"change"` // deleted, changed, or of a subject: disabled
	At     task.Time `json:"at"`
	By     string    `json:"by"`
}

func (r Revoked) String() string {
	return fmt.Sprintf("%s %s: %s on %s by %s", r.Kind, r.Name, r.Change, formatTime(r.At.Time), r.By)
}

// accessKinds are the kinds of objects in audit records, by the kinds of their keys.
var accessKinds = map[string]string{
	"access/roles": "role", "access/bindings": "binding", "access/namespaces": "namespace", "access/nodes": "node-limit",
	"access/tokens": "token", "access/disabled": "subject",
}

// backupAccess is what a review compares audit records with.
type backupAccess struct {
	revision int64
	at       time.Time
	sha256   string
	// valid are the access records of the backup that are valid after the restore, as kind and name of their audit object.
	valid map[[2]string]bool
}

// reviewAuditFile reviews the audit file at a path.
func reviewAuditFile(path string, b backupAccess) *AuditReview {
	v := &AuditReview{File: path}
	file, err := os.Open(path)
	if err != nil {
		v.Problem = err.Error()
		return v
	}
	defer file.Close()

	v.review(file, b)

	return v
}

// review reads audit records, one a line. Of each access record, the last change after the backup counts. Late records may come after
// newer ones.
func (v *AuditReview) review(r io.Reader, b backupAccess) {
	last := map[[2]string]task.AuditRecord{}
	changes := map[[2]string]string{}

	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAuditLine)
	for n := 1; lines.Scan(); n++ {
		var a task.AuditRecord
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			// A crash may have cut the line. Others follow.
			v.Problem = fmt.Sprintf("line %d cannot be read: %v", n, err)
			continue
		}
		if v.From.IsZero() {
			v.From = a.Time
		}

		isLater := a.Revision > b.revision || a.Revision == 0 && a.Time.After(b.at)
		for _, o := range a.Objects {
			id := [2]string{o.Kind, o.Name}
			switch {
			case o.Kind == "backup" && o.Name == b.sha256 && b.sha256 != "":
				v.Recorded = true
			case isLater && record.IsAccessKind(o.Kind) && !a.Time.Before(last[id].Time.Time):
				last[id], changes[id] = a, o.Change
			}
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		v.Problem = err.Error()
	case v.From.IsZero() && v.Problem == "":
		v.Problem = "it has no records, so an older file has what was revoked after the backup"
	}

	for id, a := range last {
		r := Revoked{Kind: id[0], Name: id[1], Change: "changed", At: a.Time, By: a.Subject}
		isDeleted, isSubject := changes[id] == "delete", r.Kind == "subject"
		switch {
		case isSubject && !isDeleted && !b.valid[id]: // the record of a subject disables it
			r.Change = "disabled"
		case isSubject || !b.valid[id]:
			continue
		case isDeleted:
			r.Change = "deleted"
		}
		v.Revoked = append(v.Revoked, r)
	}
	slices.SortFunc(v.Revoked, func(a, b Revoked) int { return a.At.Compare(b.At.Time) })
}

package restore

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// made is when the backup of these tests was made, at revision 100.
var made = time.Date(2026, 11, 28, 2, 0, 0, 0, time.UTC)

// audited returns a line of an audit file: a change of an access record, some minutes after the backup.
func audited(minutes int, revision int64, kind, name, change string) string {
	line, err := json.Marshal(task.AuditRecord{
		Time: task.At(made.Add(time.Duration(minutes) * time.Minute)), Subject: "user:ann", Revision: revision, Operation: "test",
		Objects: []task.AuditObject{{Kind: "task", Namespace: "default", Name: name, Change: "put"}, {Kind: kind, Name: name, Change: change}},
	})
	if err != nil {
		panic(err)
	}

	return string(line)
}

func TestAuditReview(t *testing.T) {
	valid := map[[2]string]bool{}
	for _, id := range [][2]string{{"token", "t1"}, {"token", "t2"}, {"binding", "ops"}, {"role", "deployer"}, {"subject", "user:eve"}} {
		valid[id] = true
	}

	for _, c := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"nothing", []string{audited(1, 101, "task", "a", "delete")}, nil},
		{"a deleted token", []string{audited(1, 101, "token", "t1", "delete")}, []string{"token t1: deleted on 2026-11-28T02:01:00Z by user:ann"}},
		{"before the backup, by the revision and not by the clock", []string{audited(1, 100, "token", "t1", "delete")}, nil},
		{"without a revision", []string{audited(-1, 0, "token", "t1", "delete"), audited(1, 0, "token", "t2", "delete")}, []string{"token t2: deleted on 2026-11-28T02:01:00Z by user:ann"}},
		{"created and deleted since", []string{audited(1, 101, "token", "t9", "put"), audited(2, 102, "token", "t9", "delete")}, nil},
		{"a binding that was changed", []string{audited(1, 101, "binding", "ops", "put")}, []string{"binding ops: changed on 2026-11-28T02:01:00Z by user:ann"}},
		{"deleted and created again", []string{audited(1, 101, "role", "deployer", "delete"), audited(3, 103, "role", "deployer", "put")}, []string{"role deployer: changed on 2026-11-28T02:03:00Z by user:ann"}},
		{"a late record", []string{audited(3, 103, "role", "deployer", "delete"), audited(1, 101, "role", "deployer", "put")}, []string{"role deployer: deleted on 2026-11-28T02:03:00Z by user:ann"}},
		{"disabled", []string{audited(1, 101, "subject", "user:bob", "put")}, []string{"subject user:bob: disabled on 2026-11-28T02:01:00Z by user:ann"}},
		{"disabled and enabled", []string{audited(1, 101, "subject", "user:bob", "put"), audited(2, 102, "subject", "user:bob", "delete")}, nil},
		{"disabled in the backup", []string{audited(1, 101, "subject", "user:eve", "delete")}, nil},
		{"in the order of time", []string{audited(2, 102, "token", "t1", "delete"), audited(1, 101, "token", "t2", "delete")}, []string{
			"token t2: deleted on 2026-11-28T02:01:00Z by user:ann", "token t1: deleted on 2026-11-28T02:02:00Z by user:ann",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v AuditReview
			v.review(strings.NewReader(strings.Join(c.lines, "\n")), backupAccess{revision: 100, at: made, sha256: "5ca1ab1e", valid: valid})

			var got []string
			for _, r := range v.Revoked {
				got = append(got, r.String())
			}
			if !slices.Equal(got, c.want) || v.Problem != "" || v.Recorded {
				t.Errorf("got %q, want %q; %+v", got, c.want, v)
			}
		})
	}
}

// Who can write where backups are stored can replace one, with its manifest. The audit file has the SHA-256 of the one that was made.
func TestAuditReview_FindsTheBackup(t *testing.T) {
	lines := audited(-60, 50, "token", "t1", "put") + "\n" + audited(2, 102, "backup", "5ca1ab1e", "read") + "\n"
	for sum, want := range map[string]bool{"5ca1ab1e": true, "0ddba11": false, "": false} {
		var v AuditReview
		v.review(strings.NewReader(lines), backupAccess{revision: 100, at: made, sha256: sum})
		if v.Recorded != want || !v.From.Equal(made.Add(-time.Hour)) {
			t.Errorf("%q: %+v", sum, v)
		}
	}
}

// A damaged line hides neither itself nor the others.
func TestAuditReview_OfADamagedFile(t *testing.T) {
	lines := `{"time":"2026-` + "\n" + audited(1, 101, "token", "t1", "delete") + "\n"
	var v AuditReview
	v.review(strings.NewReader(lines), backupAccess{revision: 100, at: made, valid: map[[2]string]bool{{"token", "t1"}: true}})
	if len(v.Revoked) != 1 || !strings.HasPrefix(v.Problem, "line 1 cannot be read") {
		t.Errorf("%+v", v)
	}

	// A file that was just rotated says nothing about what was revoked.
	v = AuditReview{}
	v.review(strings.NewReader(""), backupAccess{revision: 100, at: made})
	if !strings.Contains(v.Problem, "has no records") {
		t.Errorf("%+v", v)
	}

	if v := reviewAuditFile(filepath.Join(t.TempDir(), "none"), backupAccess{}); !strings.Contains(v.Problem, "no such file") {
		t.Errorf("%+v", v)
	}
}

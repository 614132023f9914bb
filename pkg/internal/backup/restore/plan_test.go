package restore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// create creates a task whose ticks begin at a time.
func (s *site) create(name string, from time.Time, change func(*task.Task)) record.Ref {
	s.Helper()
	ref := record.Ref{Namespace: "default", Name: name, Shard: record.ShardOf("default", name, 4)}
	t := task.Task{Spec: task.Defaults(), UID: "k3f9" + strings.Repeat("a", 12), Generation: 1}
	t.Name, t.Namespace, t.Schedule, t.Action.Noop = name, "default", task.Schedules{"* * * * *"}, &task.Noop{}
	if change != nil {
		change(&t)
	}
	if _, err := s.CreateTask(s.Context(), ref, t, task.NewEntry(t, task.At(from), task.At(from))); err != nil {
		s.Fatal(err)
	}

	return ref
}

// plan makes the plan of a restore of the present content.
func (s *site) plan(o *Options, host *Host) *Plan {
	s.Helper()
	host.DataDir, host.Asker = filepath.Join(s.TempDir(), "new"), peerhistory.NewAsker(peerhistory.Dial, nil)
	plan, p, err := Restore(s.Context(), s.backup(), host, o, nil, true)
	if err != nil || p != nil {
		s.Fatal(p, err)
	}
	if _, err := os.Stat(o.Work); !os.IsNotExist(err) {
		s.Errorf("a plan leaves its work directory: %v", err)
	}

	return plan
}

func TestPlan_CountsTicksThatWillNotRun(t *testing.T) {
	s := newSite(t)
	made := time.Now().Add(-time.Hour).Truncate(time.Minute)
	until := made.Add(30 * time.Minute)

	a := s.create("a", made, nil)                 // thirty ticks are lost, and thirty are late
	s.create("b", made.Add(-10*time.Minute), nil) // ten ticks were late already
	s.create("never", made, func(t *task.Task) {
		t.Schedule = task.Schedules{"@at " + made.Add(time.Minute).UTC().Format(time.RFC3339)}
	})
	s.create("later", made, func(t *task.Task) {
		t.Schedule = task.Schedules{"@at " + until.Add(time.Minute).UTC().Format(time.RFC3339)}
	})
	s.create("manual", made, func(t *task.Task) { t.Schedule = task.Schedules{"@manual"} })

	// The owner of a has decided its ticks of the first ten minutes.
	s.put(s.keys.Watermark(a.Shard), record.Encode(record.Watermark{Time: task.At(made.Add(10 * time.Minute)), Seen: s.present().Revision, Nonce: "n"}))
	covered := map[string]int64{"a": 20, "b": 40, "never": 1}
	for _, name := range []string{"b", "never"} {
		if record.ShardOf("default", name, 4) == a.Shard {
			covered[name] = map[string]int64{"b": 20, "never": 0}[name]
		}
	}

	s.put(s.keys.Token("t1"), `{"subject":"user:ann","created_at":"2026-11-20T12:00:00.000Z"}`)
	s.put(s.keys.Token("t2"), `{"subject":"user:bob","created_at":"2026-11-20T12:00:00.000Z"}`)
	s.put(s.keys.Binding("admins"), `{"role":"admin","subjects":["user:ann"],"cluster":true}`)
	s.put(s.keys.Secret("default", "db"), `{"generation":1,"key_id":"k1","sealed":"AAAA"}`)
	s.put(s.keys.Secret("default", "web"), `{"generation":1,"key_id":"k2","sealed":"AAAA"}`)

	o := s.options()
	o.BackupTime, o.Until = made, until
	p := s.plan(o, &Host{Node: "n1", SecretKeys: []string{"k2"}})

	want := covered["a"] + covered["b"] + covered["never"]
	if p.Gap.Ticks != want {
		t.Errorf("%+v ticks are lost, want %d", p.Gap, want)
	}
	if late := int64(o.Now.Sub(until) / time.Minute); p.Late.Tasks != 3 || p.Late.Ticks < 2*late || p.Late.Ticks > 2*late+3 {
		t.Errorf("%+v ticks are late, want about %d of 3 tasks", p.Late, 2*late+1)
	}
	if never := covered["never"]; p.OneShots.Count != never {
		t.Errorf("one-shots %+v", p.OneShots)
	}
	if p.Tasks != 5 || !slices.Equal(p.Admins, []string{"user:ann"}) || len(p.AdminTokens) != 1 || !strings.HasPrefix(p.AdminTokens[0], "t1 of user:ann") {
		t.Errorf("tasks %d, admins %v, tokens %v", p.Tasks, p.Admins, p.AdminTokens)
	}
	if p.Secrets != 2 || !slices.Equal(p.MissingKeys, []string{"k1"}) {
		t.Errorf("%d secrets, missing keys %v", p.Secrets, p.MissingKeys)
	}
}

// What was revoked after the backup is valid again, if the backup has it and it has not expired.
func TestPlan_ListsWhatWasRevoked(t *testing.T) {
	s := newSite(t)
	s.put(s.keys.Token("t1"), `{"subject":"user:ann","created_at":"2026-11-20T12:00:00.000Z"}`)
	s.put(s.keys.Token("t2"), `{"subject":"user:ann","created_at":"2026-11-20T12:00:00.000Z","until":"2026-11-21T12:00:00.000Z"}`)
	s.put(s.keys.Token("t3"), `{"kind":"session","subject":"user:ann","created_at":"2026-11-20T12:00:00.000Z"}`)
	s.put(s.keys.Binding("ops"), `{"role":"admin","subjects":["user:ann"],"cluster":true}`)
	s.put(s.keys.Role("deployer"), `{}`)
	s.put(s.keys.NodeLimit("n*"), `{}`)
	s.put(s.keys.DisabledSubject("user:a/b"), `{}`)

	later := s.present().Revision + 1000
	var lines []string
	for _, id := range [][2]string{{"token", "t1"}, {"token", "t2"}, {"token", "t3"}, {"binding", "ops"}, {"role", "deployer"}, {"node-limit", "n*"}, {"namespace", "gone"}} {
		lines = append(lines, audited(len(lines), later, id[0], id[1], "delete"))
	}
	lines = append(lines, audited(len(lines), later, "subject", "user:a/b", "put"), audited(len(lines), later, "subject", "user:c/d", "put"))
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, noTokens := range []bool{false, true} {
		o := s.options()
		o.NoTokens = noTokens
		host := &Host{Node: "n1", AuditFile: path}
		host.Complete(o, o.Work)
		o.Prefix = prefix
		p := s.plan(o, host)

		var got []string
		for _, r := range p.Audit.Revoked {
			got = append(got, r.Kind+" "+r.Name)
		}
		want := []string{"token t1", "binding ops", "role deployer", "node-limit n*", "subject user:c/d"}
		if noTokens {
			want = want[1:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("without tokens %v: %q, want %q", noTokens, got, want)
		}
	}
}

// A move of the cluster loses nothing, but only if nobody has decided anything after the backup.
func TestRestore_OfAMove(t *testing.T) {
	s := newSite(t)
	s.create("a", time.Now().Add(-2*time.Hour), nil)
	o := s.options()
	o.NothingLost = true
	p := s.plan(o, &Host{Node: "n1"})
	if !p.KeepsRuns || p.Gap.Ticks != 0 || p.Late.Ticks < 119 {
		t.Errorf("%+v", p)
	}

	// The node of this host has run again since the backup, maybe after another restore.
	stored, present := s.backup(), s.present()
	for _, seen := range []Seen{{present.Cluster.ID, present.Cluster.Epoch, present.Revision + 1}, {present.Cluster.ID, present.Cluster.Epoch + 1, present.Revision}} {
		host := s.hostThatHasSeen(seen)
		o = s.options()
		o.NothingLost = true
		if _, _, err := Restore(t.Context(), stored, host, o, nil, true); err == nil || !strings.Contains(err.Error(), "has run since the backup") {
			t.Errorf("seen %+v: %v", seen, err)
		}
		o = s.options()
		if _, _, err := Restore(t.Context(), stored, host, o, nil, true); err != nil {
			t.Errorf("seen %+v, with a gap: %v", seen, err)
		}
	}
	o = s.options()
	o.NothingLost = true
	if _, _, err := Restore(t.Context(), stored, s.hostThatHasSeen(Seen{present.Cluster.ID, present.Cluster.Epoch, present.Revision}), o, nil, true); err != nil {
		t.Errorf("the node has seen what is in the backup: %v", err)
	}

	s.put(s.keys.Node("n2"), `{"address":"http://127.0.0.1:1"}`)
	host := &Host{Node: "n1", DataDir: filepath.Join(t.TempDir(), "new"), Asker: peerhistory.NewAsker(peerhistory.Dial, nil)}
	o = s.options()
	o.NothingLost = true
	if _, _, err := Restore(t.Context(), s.backup(), host, o, []string{"all"}, true); err == nil || !strings.Contains(err.Error(), "while nodes were running") {
		t.Errorf("with a node: %v", err)
	}
}

// hostThatHasSeen returns the host n1, whose node has seen a history of etcd.
func (s *site) hostThatHasSeen(seen Seen) *Host {
	s.Helper()
	dir := filepath.Join(s.TempDir(), "data")
	state, err := datadir.Open(dir)
	if err != nil {
		s.Fatal(err)
	}
	defer state.Close()
	if err := state.SetHistory(seen.Cluster, seen.Epoch, seen.Revision, false); err != nil {
		s.Fatal(err)
	}

	return &Host{Node: "n1", DataDir: dir, Asker: peerhistory.NewAsker(peerhistory.Dial, nil)}
}

// An operator takes the last sign of life for --lost-until. The clock of the file system is some milliseconds behind that of the host, so
// output of the tick of 02:00:01 may have a time before that.
func TestLastSign_IsNotBeforeTheTick(t *testing.T) {
	dir := t.TempDir()
	tick := made.Add(time.Second)
	path := filepath.Join(dir, "spool", "default", "a", "r1.1.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, written := range []time.Time{tick.Add(-3 * time.Millisecond), tick} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, written, written)); err != nil {
			t.Fatal(err)
		}
		if sign := lastSign("n1", dir); sign == nil || !sign.At.Equal(tick) || sign.From != path {
			t.Errorf("output of %s: %+v", written, sign)
		}
	}
}

// Silence is no proof that a node has ended.
func TestRestore_RefusesSilentNodes(t *testing.T) {
	s := newSite(t)
	s.put(s.keys.Node("n2"), `{"address":"http://127.0.0.1:1"}`)
	stored := s.backup()
	host := &Host{Node: "n1", DataDir: filepath.Join(t.TempDir(), "new"), Asker: peerhistory.NewAsker(peerhistory.Dial, nil)}

	for _, c := range []struct {
		gone []string
		want string
	}{
		{nil, "no answer from n2"},
		{[]string{"n3"}, `"n3" is no node of the backup; its nodes are n2`},
		{[]string{"n2"}, ""},
		{[]string{"all"}, ""},
	} {
		_, _, err := Restore(t.Context(), stored, host, s.options(), c.gone, true)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("gone %v: %v, want %q", c.gone, err, c.want)
		}
	}
}

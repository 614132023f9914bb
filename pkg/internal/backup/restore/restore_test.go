package restore

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const prefix = "/carillon"

// site is a cluster on one host: an embedded etcd in a data directory, which the test starts, backs up and restores.
type site struct {
	*testing.T
	dir    string // the data directory
	keys   record.Keys
	server *embedded.Server
	client *kv.Client
	*store.Store
}

// newSite returns a site with a running etcd that contains a new cluster.
func newSite(t *testing.T) *site {
	t.Helper()
	keys, err := record.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}

	s := &site{T: t, dir: t.TempDir(), keys: keys}
	t.Cleanup(s.stop)
	s.start()
	if _, _, err := s.Bootstrap(t.Context(), 4, time.Now(), store.OpenAccess()); err != nil {
		t.Fatal(err)
	}

	return s
}

// start starts etcd with the data in the data directory.
func (s *site) start() {
	s.Helper()
	s.startWith(0)
}

func (s *site) startWith(quota int64) {
	s.Helper()
	var err error
	if s.server, err = embeddedtest.Start(s.Context(), filepath.Join(s.dir, etcdDir), quota); err != nil {
		s.Fatal(err)
	}

	s.client = s.server.Client()
	s.Store = store.New(s.client, kv.Direct(s.client), s.keys)
}

func (s *site) stop() {
	s.Helper()
	if s.server == nil {
		return
	}
	if err := s.server.Close(); err != nil {
		s.Error(err)
	}
	s.server = nil
}

func (s *site) put(key, value string, opts ...clientv3.OpOption) int64 {
	s.Helper()
	res, err := s.client.Put(s.Context(), key, value, opts...)
	if err != nil {
		s.Fatal(err)
	}

	return res.Header.Revision
}

func (s *site) get(key string) string {
	s.Helper()
	res, err := s.client.Get(s.Context(), key)
	if err != nil {
		s.Fatal(err)
	}
	if len(res.Kvs) == 0 {
		return ""
	}

	return string(res.Kvs[0].Value)
}

func (s *site) present() store.Present {
	s.Helper()
	p, err := s.Present(s.Context())
	if err != nil || !p.Found {
		s.Fatal(p.Found, err)
	}

	return p
}

// backup saves a snapshot of etcd, as etcdctl does.
func (s *site) backup() *backup.Stored {
	s.Helper()
	from, err := s.client.Snapshot(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	defer from.Close()

	content, err := io.ReadAll(from)
	if err != nil {
		s.Fatal(err)
	}

	path := filepath.Join(s.TempDir(), "carillon.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.Fatal(err)
	}

	stored, err := backup.Open(path)
	if err != nil {
		s.Fatal(err)
	}

	return stored
}

// options returns the options of a restore on the site.
func (s *site) options() *Options {
	return &Options{
		Work: filepath.Join(s.TempDir(), "work"), Node: "n1", DataDir: s.dir, Prefix: prefix, Embedded: true,
		Now: time.Now(), BackupTime: time.Now().Add(-time.Hour), By: task.NewActor("unix:uid=0"), Logger: zap.NewNop(),
	}
}

// prepare prepares the restore of a backup.
func prepare(ctx context.Context, stored *backup.Stored, o *Options) (*Prepared, error) {
	keys, err := record.NewKeys(o.Prefix)
	if err != nil {
		return nil, err
	}

	source, err := Unpack(ctx, stored, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = Clean(o.Work) }()

	content, err := ReadContent(ctx, source.Path, keys)
	if err != nil {
		return nil, err
	}

	return Prepare(ctx, source, content, o)
}

// restore prepares and installs the restore of a backup on the site, whose etcd it stops and starts.
func (s *site) restore(stored *backup.Stored, o *Options) *Prepared {
	s.Helper()
	p, err := prepare(s.Context(), stored, o)
	if err != nil {
		s.Fatal(err)
	}

	s.stop()
	if _, err := Install(s.Context(), filepath.Join(o.Work, PreparedFile), s.target()); err != nil {
		s.Fatal(err)
	}
	s.start()

	return p
}

func (s *site) target() Target {
	return Target{Node: "n1", DataDir: s.dir, Logger: zap.NewNop()}
}

func TestRestore_ReplacesTheContentAndBeginsAnEpoch(t *testing.T) {
	s := newSite(t)
	lease, err := s.client.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}

	s.put(s.keys.Specs()+"default/a", "1")
	s.put(s.keys.Node("n1"), `{"address":"https://10.0.0.1:7070"}`, clientv3.WithLease(lease.ID))
	s.put(s.keys.Cleared("i1"), "{}", clientv3.WithLease(lease.ID))
	s.put(s.keys.Handover(3), "{}")
	s.put(s.keys.NodeRequest("n1"), "{}")
	s.put(s.keys.LoginKey(), "{}")
	s.put(s.keys.Token("kept"), `{"subject":"user:ann"}`)
	s.put(s.keys.Token("session"), `{"subject":"user:ann","kind":"session"}`)
	s.put(s.keys.Token("link"), `{"subject":"user:ann","kind":"link"}`)
	fence := s.get(s.keys.Fence())

	before := s.present()
	stored := s.backup()
	s.put(s.keys.Specs()+"default/a", "2")
	lost := s.put(s.keys.Specs()+"default/b", "1")

	o := s.options()
	p := s.restore(stored, o)
	after := s.present()

	if got := s.get(s.keys.Specs() + "default/a"); got != "1" {
		t.Errorf("the task is %q, want that of the backup", got)
	}
	for _, key := range []string{
		s.keys.Specs() + "default/b", s.keys.Node("n1"), s.keys.Cleared("i1"), s.keys.Handover(3), s.keys.NodeRequest("n1"), s.keys.LoginKey(),
		s.keys.Token("session"), s.keys.Token("link"),
	} {
		if got := s.get(key); got != "" {
			t.Errorf("%s is still there: %s", key, got)
		}
	}
	if s.get(s.keys.Token("kept")) == "" {
		t.Error("the token of a person is gone")
	}
	if got := s.get(s.keys.Fence()); got == "" || got == fence {
		t.Errorf("the fence of access was not written: %s", got)
	}

	if leases, err := s.client.Leases(t.Context()); err != nil || len(leases.Leases) > 0 {
		t.Errorf("leases %v, %v", leases, err)
	}
	if after.Revision <= lost || after.Revision < o.Now.UnixMicro() {
		t.Errorf("revision %d is not higher than the lost %d and the time %d", after.Revision, lost, o.Now.UnixMicro())
	}

	r := after.Cluster.LastRestored()
	switch {
	case r == nil:
		t.Fatal("the cluster's record does not say that it was restored")
	case after.Cluster.ID != before.Cluster.ID, after.Cluster.Epoch != p.Restored.Epoch, r.Epoch != after.Cluster.Epoch, r.FromEpoch != 1, r.ID != p.Restored.ID:
		t.Errorf("the record is %+v, prepared %+v", after.Cluster, p.Restored)
	case r.Epoch < int(o.Now.Unix()):
		t.Errorf("epoch %d is lower than the time", r.Epoch)
	case r.BackupRevision != before.Revision, r.Revision < o.Now.UnixMicro(), r.Revision >= after.Mod, !r.Until.Equal(o.Now.Truncate(time.Millisecond)):
		t.Errorf("the record says %+v; it has revision %d", r, after.Mod)
	case !slices.Equal(r.Nodes, []string{"https://10.0.0.1:7070"}):
		t.Errorf("nodes %v", r.Nodes)
	}

	audit, _, err := s.NewestAudit(t.Context(), time.Time{}, record.AuditTime(time.Now().Add(time.Hour)))
	if len(audit) != 1 || err != nil {
		t.Fatalf("audit records %v, %v", audit, err)
	}
	if a := audit[0]; a.Operation != Operation || a.Subject != "unix:uid=0" || a.Node != "n1" {
		t.Errorf("audit record %+v", a)
	}
}

// Each restore has a higher revision and a higher epoch than all before it, also if an older backup is restored after a newer one. So no
// fencing token is used twice (G11). Each has a cluster of etcd of its own.
func TestRestore_RevisionsRiseWhateverBackupIsRestored(t *testing.T) {
	s := newSite(t)
	old := s.backup()
	for range 100 {
		s.put(s.keys.Specs()+"default/a", "1")
	}
	newer := s.backup()

	revision, epoch := s.present().Revision, 1
	tokens := map[string]bool{}
	for i, stored := range []*backup.Stored{old, newer, old, newer, newer} {
		o := s.options()
		o.BackupTime = time.Now().Add([]time.Duration{-24, -2, -24, -2, -2}[i] * time.Hour)
		o.Now = o.Now.Add(time.Duration(i) * 2 * time.Second)
		// With the same token, members of two restores would have the same IDs, and form a cluster.
		if token := s.restore(stored, o).Token; tokens[token] {
			t.Errorf("restore %d has the token %s of another one", i, token)
		} else {
			tokens[token] = true
		}

		for range 10 {
			s.put(s.keys.Specs()+"default/b", "1")
		}

		p := s.present()
		if p.Revision <= revision || p.Cluster.Epoch <= epoch {
			t.Fatalf("restore %d: revision %d after %d, epoch %d after %d", i, p.Revision, revision, p.Cluster.Epoch, epoch)
		}
		revision, epoch = p.Revision, p.Cluster.Epoch
	}
}

// A backup of a full etcd is restored into one that accepts writes.
func TestRestore_OfAFullEtcd(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.startWith(1 << 20)

	value := strings.Repeat("x", 100<<10)
	var err error
	for i := 0; i < 10_000 && err == nil; i++ { // the file grows only when etcd commits to it, every 100 ms
		_, err = s.client.Put(t.Context(), s.keys.Specs()+"default/a", value)
	}
	if err == nil || !strings.Contains(err.Error(), "space") {
		t.Fatalf("etcd is not full: %v", err)
	}

	s.restore(s.backup(), s.options())
	s.put(s.keys.Specs()+"default/b", "1")
	if alarms, err := s.client.AlarmList(t.Context()); err != nil || len(alarms.Alarms) > 0 {
		t.Errorf("alarms %v, %v", alarms, err)
	}
}

// The users of etcd are not restored, because nobody could remove them from an etcd whose passwords are lost. The plan says how to make
// them again.
func TestRestore_OfAnEtcdWithUsers(t *testing.T) {
	s := newSite(t)
	root, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{s.server.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()

	for _, change := range []func() error{
		func() error { _, err := root.RoleAdd(t.Context(), "root"); return err },
		func() error { _, err := root.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := root.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := root.RoleAdd(t.Context(), "tasks"); return err },
		func() error {
			_, err := root.RoleGrantPermission(t.Context(), "tasks", "/carillon/", clientv3.GetPrefixRangeEnd("/carillon/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserAdd(t.Context(), "carillon", "secret"); return err },
		func() error { _, err := root.UserGrantRole(t.Context(), "carillon", "tasks"); return err },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := root.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}

	login, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{s.server.Endpoint()}, Username: "root", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	in := s.client
	s.client = login
	stored := s.backup()
	s.client = in
	_ = login.Close()

	p := s.restore(stored, s.options())
	s.put(s.keys.Specs()+"default/b", "1")

	if users, err := s.client.UserList(t.Context()); err != nil || len(users.Users) > 0 {
		t.Errorf("users %v, %v", users, err)
	}

	want := []string{
		"etcdctl role add tasks", "etcdctl role grant-permission tasks readwrite /carillon/ --prefix",
		"etcdctl user add root", "etcdctl user grant-role root root", "etcdctl user add carillon", "etcdctl user grant-role carillon tasks", "etcdctl auth enable",
	}
	if !slices.Equal(p.EtcdUsers, want) {
		t.Errorf("commands:\n%s\nwant:\n%s", strings.Join(p.EtcdUsers, "\n"), strings.Join(want, "\n"))
	}
}

func TestRestore_Freezes(t *testing.T) {
	s := newSite(t)
	o := s.options()
	o.Freeze = "look first"
	s.restore(s.backup(), o)

	f, err := s.Freezes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if frozen := f.Freezes.Of("default"); frozen == nil || frozen.Reason != "look first" {
		t.Errorf("freezes %+v", f.Freezes)
	}
}

func TestRestore_DeletesAllTokens(t *testing.T) {
	s := newSite(t)
	s.put(s.keys.Token("kept"), `{"subject":"user:ann"}`)
	o := s.options()
	o.NoTokens = true
	s.restore(s.backup(), o)

	if got := s.get(s.keys.Token("kept")); got != "" {
		t.Errorf("a token is left: %s", got)
	}
}

func TestPrepare_Refuses(t *testing.T) {
	s := newSite(t)
	plain := s.backup()
	cluster := s.present().Cluster.ID

	s.put(s.keys.Root()+"future/a", "1")
	s.put(s.keys.Shard(2)+"future/default/a", "1")
	s.put("/other/a", "1")
	mixed := s.backup()

	// A newer version has changed the format of records.
	var record map[string]any
	text := s.get(s.keys.Cluster())
	if err := json.Unmarshal([]byte(text), &record); err != nil {
		t.Fatal(err)
	}
	record["format"] = store.NewestFormat + 1
	changed, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	s.put(s.keys.Cluster(), string(changed))
	newer := s.backup()
	s.put(s.keys.Cluster(), text)

	s.raiseAlarm(etcdserverpb.AlarmType_CORRUPT)
	corrupt := s.backup()

	cut := s.changeFile(plain, func(b []byte) []byte { return b[:len(b)/2] })
	flipped := s.changeFile(plain, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })

	for _, c := range []struct {
		name   string
		stored *backup.Stored
		change func(*Options)
		want   string
	}{
		{"a cut file", cut, nil, "damaged"},
		{"a flipped bit", flipped, nil, "damaged"},
		{"no time", plain, func(o *Options) { o.BackupTime = time.Time{} }, "backup-time: is required"},
		{"a clock before the backup", plain, func(o *Options) { o.BackupTime = o.Now.Add(time.Minute) }, "the clock of this host"},
		{"lost until before the backup", plain, func(o *Options) { o.Until = o.BackupTime.Add(-time.Second) }, "lost-until: "},
		{"lost until in the future", plain, func(o *Options) { o.Until = o.Now.Add(time.Second) }, "in the future"},
		{"another SHA-256", &backup.Stored{Name: "replaced", Path: plain.Path, Manifest: &backup.Manifest{SHA256: "5ca1ab1e"}}, func(o *Options) { o.SHA256 = "0ddba11" },
			"the backup has the SHA-256 5ca1ab1e, not 0ddba11"},
		{"no SHA-256", plain, func(o *Options) { o.SHA256 = "0ddba11" }, "has no manifest with a SHA-256: compare the file with sha256sum"},
		{"another prefix", plain, func(o *Options) { o.Prefix = "/elsewhere" }, "no cluster with the prefix"},
		{"another cluster", plain, func(o *Options) { o.Seen.Cluster = "another" }, "belongs to cluster another"},
		{"a later epoch", plain, func(o *Options) { o.Seen = Seen{cluster, 1 << 40, 1} }, "clock of this host is behind"},
		{"other keys", mixed, func(o *Options) { o.DropUnknown = true }, `1 keys outside of the prefix /carillon, such as "/other/a"`},
		{"a newer format", newer, func(o *Options) { o.DropOtherKeys, o.DropUnknown = true, true }, "restore it with a newer version"},
		{"the alarm CORRUPT", corrupt, func(o *Options) { o.DropOtherKeys, o.DropUnknown = true, true }, "or add --accept-corrupt"},
		{"too little space", &backup.Stored{Name: "large", Path: plain.Path, Manifest: &backup.Manifest{Size: 1 << 50}}, nil, backup.ErrNoDisk.Error()},
		{"unknown keys", mixed, func(o *Options) { o.DropOtherKeys = true }, "2 keys of kinds that this version does not know"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := s.options()
			if c.change != nil {
				c.change(o)
			}

			_, err := prepare(t.Context(), c.stored, o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}

			left, err := os.ReadDir(o.Work)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
			for _, e := range left {
				if e.Name() != PreparedFile {
					t.Errorf("%s is left", e.Name())
				}
			}
		})
	}

	o := s.options()
	o.DropUnknown, o.DropOtherKeys = true, true
	o.AcceptCorrupt = true
	s.restore(corrupt, o)
	s.put(s.keys.Specs()+"default/a", "1") // the alarm is gone
	for _, key := range []string{s.keys.Root() + "future/a", s.keys.Shard(2) + "future/default/a", "/other/a"} {
		if got := s.get(key); got != "" {
			t.Errorf("%s was not dropped", key)
		}
	}
}

// A work directory becomes private. One that others use, such as /var/lib, must stay as it is.
func TestUnpack_RefusesADirectoryOfOthers(t *testing.T) {
	s := newSite(t)
	stored := s.backup()
	shared := t.TempDir()
	file := filepath.Join(shared, "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(shared, 0o755)); err != nil {
		t.Fatal(err)
	}

	for work, want := range map[string]string{
		shared: "name a new directory", filepath.Join(s.dir, etcdDir): "the data of etcd", filepath.Join(s.dir, etcdDir, "work"): "the data of etcd", file: "not a directory",
	} {
		o := s.options()
		o.Work = work
		if _, err := Unpack(t.Context(), stored, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", work, err)
		}
	}
	if info, err := os.Stat(shared); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory has mode %v, %v", info.Mode(), err)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	o := s.options()
	o.Work = shared
	if _, err := Unpack(t.Context(), stored, o); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	if info, err := os.Stat(shared); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v", info.Mode(), err)
	}
}

// raiseAlarm raises an alarm of etcd.
func (s *site) raiseAlarm(alarm etcdserverpb.AlarmType) {
	s.Helper()
	c, err := kv.Dial(s.Context(), kv.Config{Endpoints: []string{s.server.Endpoint()}})
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close()

	status, err := c.Status(s.Context(), s.server.Endpoint())
	if err != nil {
		s.Fatal(err)
	}

	_, err = etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(s.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: alarm,
	})
	if err != nil {
		s.Fatal(err)
	}
}

// changeFile returns a copy of a backup with a changed file.
func (s *site) changeFile(stored *backup.Stored, change func([]byte) []byte) *backup.Stored {
	s.Helper()
	content, err := os.ReadFile(stored.Path)
	if err != nil {
		s.Fatal(err)
	}

	path := filepath.Join(s.TempDir(), "changed.db")
	if err := os.WriteFile(path, change(content), 0o600); err != nil {
		s.Fatal(err)
	}

	return &backup.Stored{Name: path, Path: path}
}

// A clock that is behind what the node of this host has seen does not lead to a lower revision. A second restore soon after the first
// does not lead to a revision ahead of the clock: a third one, of an older snapshot, would have a lower one.
func TestRevisionBump(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		revision, seen, want int64
	}{
		{1000, 2000, now.UnixMicro()},
		{now.UnixMicro() - 60e6, 0, now.UnixMicro()},
		{1000, now.UnixMicro() - 60e6, now.UnixMicro()},
		{now.UnixMicro() + 5, now.UnixMicro() + 9, now.UnixMicro() + 9 + minRevisionBump},
		{now.UnixMicro() + 5, 0, now.UnixMicro() + 5 + minRevisionBump},
	} {
		if got := c.revision + revisionBump(now, c.revision, c.seen); got != c.want {
			t.Errorf("from %d, seen %d: %d, want %d", c.revision, c.seen, got, c.want)
		}
	}
}

var errInterrupted = errors.New("interrupted")

// A restore that is interrupted at any step and then repeated is complete. Until then, the former data of etcd are complete.
func TestRestore_InterruptedAtEachStepAndRepeated(t *testing.T) {
	s := newSite(t)
	s.put(s.keys.Specs()+"default/a", "backup")
	stored := s.backup()
	s.put(s.keys.Specs()+"default/a", "lost")
	s.stop()

	state, err := datadir.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	state.Close()

	o := s.options()
	db := filepath.Join(o.Work, PreparedFile)
	for n := 0; ; n++ {
		steps := 0
		stop := func(string) error {
			if steps++; steps > n {
				return errInterrupted
			}
			return nil
		}

		o.interrupt = stop
		_, err := prepare(t.Context(), stored, o)
		if errors.Is(err, errInterrupted) {
			if _, err := ReadPrepared(db); !errors.Is(err, task.ErrNotFound) {
				t.Fatalf("step %d: a restore that was not prepared completely has a record: %v", n, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}

		break
	}

	// content reads from a copy: a start of etcd on the data themselves is the end of the undo.
	content := func() string {
		dir := filepath.Join(t.TempDir(), etcdDir)
		err := errors.Join(os.Mkdir(dir, 0o700), os.CopyFS(dir, os.DirFS(filepath.Join(s.dir, etcdDir))))
		if err != nil {
			t.Fatal(err)
		}

		if s.server, err = embeddedtest.Start(t.Context(), dir, 0); err != nil {
			t.Fatal(err)
		}
		defer s.stop()
		s.client = s.server.Client()

		return s.get(s.keys.Specs() + "default/a")
	}

	for n := 0; ; n++ {
		steps := 0
		target := s.target()
		replaced := false
		target.interrupt = func(step string) error {
			if steps++; steps > n {
				replaced = step == "rename the former data"
				return errInterrupted
			}
			return nil
		}

		i, err := Install(t.Context(), db, target)
		switch {
		case errors.Is(err, errInterrupted):
			want := "lost"
			if replaced {
				want = "backup"
			}
			if got := content(); got != want {
				t.Fatalf("after %d steps, the content is %q, want %q", n, got, want)
			}
			continue
		case err != nil:
			t.Fatal(err)
		case !i.Already: // because the step before had done it
			t.Fatal("the last interruption came after the data were replaced, but Install does not know it")
		case content() != "backup":
			t.Fatal("the content is not that of the backup")
		}

		s.checkUndo(i)

		return
	}
}

// checkUndo undoes an installation and checks that the former data are back.
func (s *site) checkUndo(i *Installed) {
	s.Helper()
	for _, command := range i.Undo() {
		words := strings.Fields(command)
		if err := os.Rename(words[1], words[2]); err != nil {
			s.Fatal(err)
		}
	}

	s.start()
	if got := s.get(s.keys.Specs() + "default/a"); got != "lost" {
		s.Errorf("after the undo, the content is %q", got)
	}
}

// To install a restore again, or to undo it, would take back what the member has promised to the others. So a repetition prints the
// commands of the undo only before the first start.
func TestInstall_TwiceChangesNothing(t *testing.T) {
	s := newSite(t)
	o := s.options()
	if _, err := prepare(t.Context(), s.backup(), o); err != nil {
		t.Fatal(err)
	}
	s.stop()

	for n := range 2 {
		i, err := Install(t.Context(), filepath.Join(o.Work, PreparedFile), s.target())
		if err != nil || i.Already != (n == 1) || i.Started || len(i.Undo()) != 2 {
			t.Fatalf("before the start: %+v, %v, %q", i, err, i.Undo())
		}
	}

	s.start()
	s.put(s.keys.Specs()+"default/a", "after")
	s.stop()

	i, err := Install(t.Context(), filepath.Join(o.Work, PreparedFile), s.target())
	if err != nil || !i.Already || !i.Started || len(i.Undo()) != 0 {
		t.Fatalf("after the start: %+v, %v, %q", i, err, i.Undo())
	}

	s.start()
	if got := s.get(s.keys.Specs() + "default/a"); got != "after" {
		t.Errorf("the content is %q", got)
	}
}

// A file system that cannot exchange directories needs two steps. An interruption between them leaves no data, and the former ones have
// their name already.
func TestInstall_InterruptedBetweenTwoRenames(t *testing.T) {
	s := newSite(t)
	s.put(s.keys.Specs()+"default/a", "lost")
	o := s.options()
	p, err := prepare(t.Context(), s.backup(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()

	etcd := filepath.Join(s.dir, etcdDir)
	if err := os.Rename(etcd, etcd+".before-"+p.Restored.ID); err != nil {
		t.Fatal(err)
	}

	i, err := Install(t.Context(), filepath.Join(o.Work, PreparedFile), s.target())
	if err != nil {
		t.Fatal(err)
	}
	s.checkUndo(i)
}

// writeRecord writes prepared.json.
func writeRecord(t *testing.T, work string, p *Prepared) {
	t.Helper()
	text, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, recordFile), text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestInstall_Refuses(t *testing.T) {
	s := newSite(t)
	o := s.options()
	p, err := prepare(t.Context(), s.backup(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()

	for _, c := range []struct {
		name   string
		seen   Seen
		change func(dir string, target *Target)
		want   string
	}{
		{"another cluster", Seen{"another", 1, 1}, nil, "belongs to cluster another"},
		{"a later epoch", Seen{p.Cluster, p.Restored.Epoch + 1, 1}, nil, "has seen epoch"},
		{"a later revision", Seen{p.Cluster, 1, p.Revision}, nil, "has seen revision"},
		{"other members", Seen{}, func(_ string, target *Target) { target.Members = map[string]string{"n1": "https://h1:2380"} }, "initial_cluster of this host"},
		{"an agent that runs", Seen{}, func(dir string, target *Target) {
			state, err := datadir.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(state.Close)
		}, "stop it first"},
		{"another database", Seen{}, func(string, *Target) {
			file, err := os.OpenFile(filepath.Join(o.Work, PreparedFile), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if _, err := file.WriteString("x"); err != nil {
				t.Fatal(err)
			}
		}, "not of the same restore"},
		{"too little space", Seen{}, func(string, *Target) {
			large := *p
			large.Size = 1 << 50
			writeRecord(t, o.Work, &large)
			t.Cleanup(func() { writeRecord(t, o.Work, p) })
		}, backup.ErrNoDisk.Error()},
		{"no record", Seen{}, func(string, *Target) { _ = os.Remove(filepath.Join(o.Work, recordFile)) }, "written last"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := s.target()
			target.DataDir = t.TempDir()
			if c.seen != (Seen{}) {
				state, err := datadir.Open(target.DataDir)
				if err != nil {
					t.Fatal(err)
				}
				if err := state.SetHistory(c.seen.Cluster, c.seen.Epoch, c.seen.Revision, false); err != nil {
					t.Fatal(err)
				}
				state.Close()
			}
			if c.change != nil {
				c.change(target.DataDir, &target)
			}

			_, err := Install(t.Context(), filepath.Join(o.Work, PreparedFile), target)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(target.DataDir, etcdDir)); !errors.Is(err, os.ErrNotExist) {
				t.Error("there are data of etcd")
			}
		})
	}
}

func TestLockDataDir_OfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}

	dir := t.TempDir()
	if err := os.Chown(dir, 65534, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := lockDataDir(dir); err == nil || strings.Contains(err.Error(), "stop it") {
		t.Errorf("the error is %v, but no agent runs", err)
	}
}

package source_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/backup/source"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// launch starts an etcd with a cluster in it.
func launch(t *testing.T, dir string) (*kvtest.Process, *kv.Client) {
	t.Helper()
	p, err := kvtest.Launch(dir, 0)
	ok(t, err)
	t.Cleanup(p.Kill)

	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{p.Endpoint()}})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })

	_, err = c.Put(t.Context(), "/carillon/cluster", record.Encode(task.Cluster{ID: "c1", Shards: 4, Epoch: 1}))
	ok(t, err)

	return p, c
}

func options(t *testing.T) source.Options {
	return source.Options{Prefix: "/carillon", Carillon: "v1", Now: time.Now, Work: t.TempDir()}
}

// hashOf returns the hash of all files in a directory.
func hashOf(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	ok(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != "carillon.lock" {
			b, readErr := os.ReadFile(path)
			fmt.Fprintf(sum, "%s %d\n%s", path, len(b), b)
			err = readErr
		}
		return err
	}))

	return fmt.Sprintf("%x", sum.Sum(nil))
}

// TestFromDataDir_HasEverythingThatWasAcknowledged kills an etcd at random moments while several clients write. Its data directory stays
// as it was.
//
// Verifies: G67
func TestFromDataDir_HasEverythingThatWasAcknowledged(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2 // each starts two etcds
	}
	for round := range rounds {
		dir := filepath.Join(t.TempDir(), "etcd")
		p, c := launch(t, dir)

		var acknowledged atomic.Int64
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if _, err := c.Put(t.Context(), fmt.Sprintf("/carillon/tasks/w%d/t%d", w, i), "{}"); err != nil {
						return
					}
					acknowledged.Add(1)
				}
			})
		}
		time.Sleep(time.Duration(200+rand.IntN(400)) * time.Millisecond)
		p.Kill()
		wg.Wait()

		before := hashOf(t, dir)
		packed, err := source.FromDataDir(t.Context(), filepath.Dir(dir), options(t))
		ok(t, err)

		m := packed.Manifest
		if m.Tasks() < acknowledged.Load() || m.Tasks() > acknowledged.Load()+4 || m.Source != backup.SourceDataDir {
			t.Errorf("round %d: %d of %d acknowledged puts: %+v", round, m.Tasks(), acknowledged.Load(), m)
		}
		if hashOf(t, dir) != before {
			t.Error("the data directory has changed")
		}
	}
}

// Each start of a member begins a term. Its first entry is in the log before anything is written.
func TestFromDataDir_RecordsTheTermOfTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	var last int64
	for range 2 {
		p, _ := launch(t, dir)
		p.Kill()

		packed, err := source.FromDataDir(t.Context(), dir, options(t))
		ok(t, err)
		if term := packed.Manifest.RaftTerm; term <= last {
			t.Errorf("raft term %d after %d", term, last)
		}
		last = packed.Manifest.RaftTerm
	}
}

// A leader that loses the others keeps what nobody has acknowledged, under a high revision. The others acknowledge more, in a later term. The
// backup to restore is theirs.
func TestFromDataDir_OfALeaderThatWasCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("elections of three members take seconds")
	}

	const kept = "/carillon/tasks/default/kept"
	m := newMembers(t, "a", "b", "c")
	m.start("a", "b", "c")
	_, err := m.servers["a"].Client().Put(t.Context(), "/carillon/cluster", record.Encode(task.Cluster{ID: "c1", Shards: 4, Epoch: 1}))
	ok(t, err)

	leader := m.leader()
	others := slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool { return name == leader })

	// Each of the writers has a put under way when the last of the others ends.
	var writers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for w := range 32 {
		writers.Go(func() {
			for i := 0; ; i++ {
				if _, err := m.servers[leader].Client().Put(ctx, fmt.Sprintf("/carillon/tasks/w%d/t%d", w, i), "{}"); err != nil {
					return
				}
			}
		})
	}
	m.stop(others...)
	time.AfterFunc(time.Second, cancel) // the leader answers nobody any more
	writers.Wait()
	m.stop(leader)

	m.start(others...)
	_, err = m.servers[others[0]].Client().Put(t.Context(), kept, "{}")
	ok(t, err)
	m.stop(others...)

	dir := t.TempDir()
	now := time.Now()
	manifests := map[string]*backup.Manifest{}
	for _, name := range []string{leader, others[0]} {
		o := options(t)
		now = now.Add(-time.Second) // the clock does not matter
		o.Now = func() time.Time { return now }
		packed, err := source.FromDataDir(t.Context(), m.dir(name), o)
		ok(t, err)
		f, err := os.Open(packed.Path)
		ok(t, err)
		_, err = backup.Store(t.Context(), dir, packed.Manifest, f)
		ok(t, errors.Join(err, f.Close()))
		manifests[name] = packed.Manifest
	}

	if cut, led := manifests[leader], manifests[others[0]]; cut.Revision <= led.Revision || cut.RaftTerm >= led.RaftTerm {
		t.Fatalf("the leader that was cut off has revision %d in term %d, the others have revision %d in term %d", cut.Revision, cut.RaftTerm, led.Revision, led.RaftTerm)
	}

	list, err := backup.List(dir)
	ok(t, err)
	s, err := backup.Open(filepath.Join(dir, list[len(list)-1].Name))
	ok(t, err)
	db, err := s.OpenUnpacked(t.Context(), t.TempDir())
	ok(t, err)
	found := false
	ok(t, errors.Join(db.Each(t.Context(), kept, func(*mvccpb.KeyValue) error { found = true; return nil }), db.Close()))
	if !found {
		t.Error("the last backup of the list does not have what was acknowledged last")
	}
}

// members are embedded members of one cluster.
type members struct {
	*testing.T
	root    string
	urls    map[string]string
	servers map[string]*embedded.Server
}

func newMembers(t *testing.T, names ...string) *members {
	t.Helper()
	m := &members{T: t, root: t.TempDir(), urls: map[string]string{}, servers: map[string]*embedded.Server{}}
	for _, name := range names {
		// Tests of other packages use higher ports.
		var l net.Listener
		var err error
		for range 100 {
			if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(2000))); err == nil {
				break
			}
		}
		ok(t, err)
		defer l.Close()
		m.urls[name] = "http://" + l.Addr().String()
	}

	return m
}

func (m *members) dir(name string) string { return filepath.Join(m.root, name) }

// start starts members, which must be more than half of all.
func (m *members) start(names ...string) {
	m.Helper()
	var wg sync.WaitGroup
	errs, servers := make([]error, len(names)), make([]*embedded.Server, len(names))
	for i, name := range names {
		wg.Go(func() {
			servers[i], errs[i] = embedded.Start(m.Context(), embedded.Config{
				Dir: m.dir(name), Name: name, Tick: 100 * time.Millisecond, Election: time.Second, Peers: &embedded.Peers{Members: m.urls},
			})
		})
	}
	wg.Wait()
	ok(m, errors.Join(errs...))

	for i, name := range names {
		m.servers[name] = servers[i]
		m.Cleanup(func() { _ = servers[i].Close() })
	}
}

func (m *members) stop(names ...string) {
	m.Helper()
	for _, name := range names {
		ok(m, m.servers[name].Close())
	}
}

// leader returns the name of the leader.
func (m *members) leader() string {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 30*time.Second)
	defer cancel()

	for {
		for name, s := range m.servers {
			status, err := s.Client().Status(ctx, s.Endpoint())
			if err != nil {
				m.Fatalf("the members have no leader: %v", err)
			}
			if status.Leader == status.Header.MemberId {
				return name
			}
		}
	}
}

func TestFromDataDir_RefusesWhatIsNoStoppedMember(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	launch(t, dir)
	if _, err := source.FromDataDir(t.Context(), dir, options(t)); !errors.Is(err, task.ErrConflict) {
		t.Errorf("of a running member: %v", err)
	}

	if _, err := source.FromDataDir(t.Context(), t.TempDir(), options(t)); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("of an empty directory: %v", err)
	}
}

// Linux mounts a file system read-only when its disk fails.
func TestFromDataDir_OfAReadOnlyFileSystem(t *testing.T) {
	dir, readOnly := t.TempDir(), t.TempDir()
	if err := unix.Mount(dir, readOnly, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(readOnly, unix.MNT_DETACH) })
	ok(t, unix.Mount("", readOnly, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))

	p, _ := launch(t, filepath.Join(dir, "etcd"))
	if _, err := source.FromDataDir(t.Context(), readOnly, options(t)); !errors.Is(err, task.ErrConflict) {
		t.Errorf("of a running member: %v", err)
	}

	p.Kill()
	if _, err := source.FromDataDir(t.Context(), readOnly, options(t)); err != nil {
		t.Error(err)
	}
}

func TestFromEtcd(t *testing.T) {
	p, c := launch(t, filepath.Join(t.TempDir(), "etcd"))
	from := source.Etcd{Endpoint: p.Endpoint()}

	packed, err := source.FromEtcd(t.Context(), from, options(t))
	ok(t, err)

	f, err := os.Open(packed.Path)
	ok(t, err)

	defer f.Close()

	s, err := backup.Store(t.Context(), t.TempDir(), packed.Manifest, f)
	ok(t, err)
	ok(t, s.Unpack(t.Context(), io.Discard))

	// With users, only those with the role root get a snapshot.
	ctx := t.Context()
	for _, user := range []string{"root", "carillon"} {
		_, err := c.UserAdd(ctx, user, "secret")
		ok(t, err)
		_, err = c.RoleAdd(ctx, user)
		ok(t, err)
		_, err = c.UserGrantRole(ctx, user, user)
		ok(t, err)
	}
	_, err = c.AuthEnable(ctx)
	ok(t, err)

	if _, err := source.FromEtcd(ctx, from, options(t)); !errors.Is(err, etcdadmin.ErrNeedsRoot) {
		t.Errorf("without a user: %v", err)
	}
	from.User, from.Password = "carillon", "secret"
	if _, err := source.FromEtcd(ctx, from, options(t)); !errors.Is(err, etcdadmin.ErrNeedsRoot) {
		t.Errorf("as carillon: %v", err)
	}

	from.User = "root"
	packed, err = source.FromEtcd(ctx, from, options(t))
	ok(t, err)
	if !packed.Manifest.Users {
		t.Errorf("%+v", packed.Manifest)
	}
}

package source_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/backup/source"
	"github.com/carillonhq/carillon/pkg/kv"
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

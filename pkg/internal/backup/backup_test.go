package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const prefix = "/carillon"

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put puts a record.
func put(t testing.TB, etcd *kv.Client, key string, value any) {
	t.Helper()
	text, isText := value.(string)
	if !isText {
		text = record.Encode(value)
	}

	_, err := etcd.Put(t.Context(), key, text)
	ok(t, err)
}

// fill puts a cluster with some tasks, and returns the builder of its keys.
func fill(t testing.TB, etcd *kv.Client, tasks int) record.Keys {
	t.Helper()
	keys, err := record.NewKeys(prefix)
	ok(t, err)

	put(t, etcd, keys.Cluster(), task.Cluster{ID: "c1", Shards: 4, Schema: 1, Epoch: 3, Format: 1})
	put(t, etcd, keys.Node("n1"), task.Node{Address: "127.0.0.1:7810"})
	put(t, etcd, keys.Secret("default", "db"), record.Secret{Secret: task.Secret{KeyID: "k1", Generation: 1, Change: task.SecretSet}, Sealed: []byte("sealed")})

	for i := range tasks {
		spec := task.Defaults()
		spec.Namespace, spec.Name = "default", fmt.Sprintf("task-%d", i)
		spec.Labels = map[string]string{"team": fmt.Sprint(rand.Uint64())}
		put(t, etcd, keys.Spec(record.Ref{Namespace: spec.Namespace, Name: spec.Name}), task.Task{Spec: spec, UID: task.NewUID()})
	}

	return keys
}

// snapshot returns a snapshot of etcd.
func snapshot(t testing.TB, etcd *kv.Client) []byte {
	t.Helper()
	r, err := etcd.Snapshot(t.Context())
	ok(t, err)

	defer r.Close()

	b, err := io.ReadAll(r)
	ok(t, err)

	return b
}

// pack packs a snapshot.
func pack(t testing.TB, snapshot []byte, at time.Time) *backup.Packed {
	t.Helper()
	origin := backup.Origin{Time: at, Source: backup.SourceAPI, Prefix: prefix, Carillon: "v1"}
	p, err := backup.Pack(t.Context(), bytes.NewReader(snapshot), filepath.Join(t.TempDir(), "backup.tmp"), origin)
	ok(t, err)

	return p
}

// stored stores a backup in a directory.
func stored(t testing.TB, dir string, p *backup.Packed) *backup.Stored {
	t.Helper()
	f, err := os.Open(p.Path)
	ok(t, err)

	defer f.Close()

	s, err := backup.Store(t.Context(), dir, p.Manifest, f)
	ok(t, err)

	return s
}

// TestDatabase_ReadsWhatEtcdHas changes keys at random, and compares what is read from the file with what etcd answers.
func TestDatabase_ReadsWhatEtcdHas(t *testing.T) {
	etcd, random := kvtest.Start(t), rand.New(rand.NewPCG(1, 2))
	ctx := t.Context()
	key := func() string { return fmt.Sprintf("/carillon/tasks/ns/%d", random.IntN(40)) }

	for round := range 6 {
		for range 150 {
			var ops []clientv3.Op
			// etcd refuses two changes of a key in one transaction.
			for _, k := range slices.Compact(slices.Sorted(slices.Values([]string{key(), key(), key()}))) {
				if random.IntN(3) == 0 {
					ops = append(ops, clientv3.OpDelete(k))
				} else {
					ops = append(ops, clientv3.OpPut(k, fmt.Sprint(random.Int())))
				}
			}

			_, err := etcd.Txn(ctx).Then(ops...).Commit()
			ok(t, err)
		}

		_, err := etcd.Put(ctx, "/carillonia", "another application")
		ok(t, err)

		want, err := etcd.Get(ctx, "/carillon/", clientv3.WithPrefix())
		ok(t, err)

		path := filepath.Join(t.TempDir(), "db")
		ok(t, os.WriteFile(path, snapshot(t, etcd), 0o600))

		d, err := backup.OpenDatabase(path)
		ok(t, err)

		type kept struct {
			value        string
			created, mod int64
		}
		got := map[string]kept{}
		last := d.Revision
		ok(t, d.Each(ctx, "/carillon/", func(kv *mvccpb.KeyValue) error {
			if kv.GetModRevision() > last {
				t.Errorf("revision %d after %d", kv.GetModRevision(), last)
			}
			last = kv.GetModRevision()
			got[string(kv.GetKey())] = kept{string(kv.GetValue()), kv.GetCreateRevision(), kv.GetModRevision()}

			return nil
		}))
		ok(t, d.Close())

		if d.Revision != want.Header.Revision || d.AuthEnabled {
			t.Errorf("revision %d instead of %d", d.Revision, want.Header.Revision)
		}

		for _, w := range want.Kvs {
			if g, want := got[string(w.Key)], (kept{string(w.Value), w.CreateRevision, w.ModRevision}); g != want {
				t.Errorf("round %d: %s is %v instead of %v", round, w.Key, g, want)
			}
		}
		if len(got) != len(want.Kvs) {
			t.Errorf("round %d: %d keys instead of %d", round, len(got), len(want.Kvs))
		}

		// The newest records of some keys are now their only ones.
		if round%2 == 0 {
			_, err := etcd.Compact(ctx, want.Header.Revision, clientv3.WithCompactPhysical())
			ok(t, err)
		}
	}
}

func TestPack_DescribesTheSnapshot(t *testing.T) {
	etcd := kvtest.Start(t)
	keys := fill(t, etcd, 5)
	put(t, etcd, keys.Root()+"novelty/x", "{}")
	put(t, etcd, "/other/x", "{}")

	raw := snapshot(t, etcd)
	p := pack(t, raw, noon)
	m := p.Manifest

	if m.ID != "20261128T120000.000Z" || m.Cluster != "c1" || m.Epoch != 3 || m.Format != 1 || m.Carillon != "v1" || m.Prefix != prefix || m.Size != int64(len(raw)) ||
		m.ClusterVersion == "" || m.Tasks() != 5 || m.Other != 1 || m.Counts["unknown"] != 1 || !slices.Equal(m.Unknown, []string{"novelty"}) ||
		!slices.Equal(m.Nodes, []backup.Node{{Name: "n1", Address: "127.0.0.1:7810"}}) || !slices.Equal(m.Keys, []string{"k1"}) {
		t.Errorf("%+v", m)
	}

	text, err := m.Encode()
	ok(t, err)

	again, err := backup.ParseManifest(text)
	ok(t, err)
	if fmt.Sprint(again) != fmt.Sprint(m) {
		t.Errorf("%+v\ninstead of\n%+v", again, m)
	}
}

func TestPack_LeavesNothingBehind(t *testing.T) {
	etcd := kvtest.Start(t)
	raw := snapshot(t, etcd) // no cluster
	origin := backup.Origin{Time: noon, Source: backup.SourceAPI, Prefix: prefix, Carillon: "v1"}
	dir := t.TempDir()

	cut, cancel := context.WithCancel(t.Context())
	cancel()

	for name, test := range map[string]struct {
		ctx context.Context
		r   io.Reader
	}{
		"no cluster": {t.Context(), bytes.NewReader(raw)},
		"cut short":  {t.Context(), bytes.NewReader(raw[:len(raw)-4096])},
		"cancelled":  {cut, bytes.NewReader(raw)},
		"broken":     {t.Context(), io.MultiReader(bytes.NewReader(raw[:5000]), failing{})},
	} {
		if _, err := backup.Pack(test.ctx, test.r, filepath.Join(dir, "backup.tmp"), origin); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
	}
}

// failing is a reader that fails.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestStored_RefusesEveryDamage flips bits, and cuts and extends files of a backup, in both of its forms.
//
// Verifies: G67
func TestStored_RefusesEveryDamage(t *testing.T) {
	etcd := kvtest.Start(t)
	fill(t, etcd, 50)
	p := pack(t, snapshot(t, etcd), noon)
	dir := t.TempDir()
	s := stored(t, dir, p)

	data, err := os.Open(p.Path)
	ok(t, err)

	defer data.Close()

	single := filepath.Join(t.TempDir(), "single.zst")
	_, err = backup.StoreFile(t.Context(), single, p.Manifest, data)
	ok(t, err)

	bare := filepath.Join(t.TempDir(), "bare.db")
	ok(t, s.UnpackFile(t.Context(), bare))

	// unpacks reports whether a backup is good: it can be opened and unpacked, and has the manifest that was stored.
	unpacks := func(name string) bool {
		s, err := backup.Open(name)
		if err == nil && s.Manifest != nil && fmt.Sprint(s.Manifest) != fmt.Sprint(p.Manifest) {
			t.Errorf("%s: the manifest is another one", name)
		}
		if err == nil {
			err = s.Unpack(t.Context(), io.Discard)
		}
		if err != nil && !errors.Is(err, backup.ErrDamaged) {
			t.Errorf("%s: not as damaged: %v", name, err)
		}

		return err == nil
	}

	random := rand.New(rand.NewPCG(3, 4))
	for _, test := range []struct{ name, file string }{
		{s.Name, s.Name + ".json"}, {s.Name, s.Name + ".db.zst"}, {single, single}, {bare, bare},
	} {
		good, err := os.ReadFile(test.file)
		ok(t, err)

		if !unpacks(test.name) {
			t.Fatalf("%s: not good before it is damaged", test.file)
		}

		damage := func(what string, bad []byte) {
			ok(t, os.WriteFile(test.file, bad, 0o600))
			if unpacks(test.name) {
				t.Errorf("%s: %s: taken as good", test.file, what)
			}
		}

		for range 60 {
			bad, at := bytes.Clone(good), random.IntN(len(good))
			bad[at] ^= 1 << random.IntN(8)
			damage(fmt.Sprint("flipped at ", at), bad)

			at = random.IntN(len(good))
			damage(fmt.Sprint("cut at ", at), good[:at])
		}

		damage("extended", append(bytes.Clone(good), "\n"...))
		ok(t, os.WriteFile(test.file, good, 0o600))
	}
}

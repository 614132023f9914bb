package backup_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestList_IsInTheOrderOfHistory(t *testing.T) {
	etcd := kvtest.Start(t)
	keys := fill(t, etcd, 2)
	dir := t.TempDir()

	// The host's clock was set back between the first two, and then an older backup was restored: it has a lower revision, but a
	// higher epoch.
	stored(t, dir, pack(t, snapshot(t, etcd), noon.Add(time.Hour)))
	put(t, etcd, keys.Graph("default"), "")
	later := pack(t, snapshot(t, etcd), noon)
	stored(t, dir, later)

	restored := pack(t, snapshot(t, etcd), noon.Add(-time.Hour))
	restored.Manifest.Epoch, restored.Manifest.Revision = 4, 1
	stored(t, dir, restored)

	list, err := backup.List(dir)
	ok(t, err)

	var got []string
	for _, l := range list {
		got = append(got, l.Name+l.Problem)
	}
	if want := "20261128T130000.000Z 20261128T120000.000Z 20261128T110000.000Z"; strings.Join(got, " ") != want {
		t.Errorf("%v instead of %s", got, want)
	}
}

// A member that was cut off while it led has entries that nobody acknowledged, under a high revision. The others have acknowledged entries
// since, in a later term.
func TestList_OrdersStoppedMembersAsRaftDoes(t *testing.T) {
	etcd := kvtest.Start(t)
	fill(t, etcd, 2)
	raw := snapshot(t, etcd)
	dir := t.TempDir()
	for hour, c := range []struct{ epoch, term, revision int64 }{
		{2, 0, 80},  // made by a node
		{2, 5, 100}, // a member that was cut off
		{2, 6, 95},
		{2, 6, 90},
		{1, 7, 500}, // before a restore
		{3, 0, 10},  // after another one
		{4, 7, 50},
		{4, 2, 2e9}, // after a restore by hand, which begins again at term 1 and raises the revision
	} {
		p := pack(t, raw, noon.Add(time.Duration(hour)*time.Hour))
		p.Manifest.Epoch, p.Manifest.RaftTerm, p.Manifest.Revision = int(c.epoch), c.term, c.revision
		stored(t, dir, p)
	}

	list, err := backup.List(dir)
	ok(t, err)

	var got []int64
	for _, l := range list {
		got = append(got, l.Manifest.Revision)
	}
	if want := []int64{500, 80, 100, 90, 95, 10, 50, 2e9}; !slices.Equal(got, want) {
		t.Errorf("revisions %v instead of %v", got, want)
	}
}

// Five members were stopped, and nodes had made backups before that. In each case, the last one has all that was acknowledged.
func TestSortListed_OfFiveStoppedMembers(t *testing.T) {
	for what, c := range map[string]struct{ list, want string }{ // term/revision, or the revision of a backup of a node
		"a backup between the members":                 {"6/100 6/104 105 6/110 5/130 6/109", "5/130 6/100 6/104 105 6/109 6/110"},
		"one that a member cut off hides":              {"6/100 115 5/130 5/120 6/110 6/110", "5/120 5/130 6/100 6/110 6/110 115"},
		"one with a higher revision than all":          {"6/100 140 5/130 6/110 6/109 6/109", "5/130 6/100 6/109 6/109 6/110 140"},
		"one before all":                               {"6/100 50 5/130 6/110 6/109 6/109", "50 5/130 6/100 6/109 6/109 6/110"},
		"one of the revision of a member":              {"6/100 109 5/130 6/110 6/109 6/109", "5/130 6/100 109 6/109 6/109 6/110"},
		"several, and three terms":                     {"4/125 101 7/99 105 103 6/112 104 6/130 7/104", "4/125 6/112 6/130 7/99 101 103 104 7/104 105"},
		"members of an etcd that was restored by hand": {"6/100 110 5/130 1/2000000000 1999999990 2/1999999999", "5/130 6/100 110 1999999990 1/2000000000 2/1999999999"},
	} {
		list := map[string]backup.Listed{}
		for i, word := range strings.Fields(c.list) {
			m := &backup.Manifest{ID: fmt.Sprint(i), Cluster: "c", Epoch: 1}
			term, revision, ok := strings.Cut(word, "/")
			if !ok {
				term, revision = "0", word
			}
			m.RaftTerm, _ = strconv.ParseInt(term, 10, 64)
			m.Revision, _ = strconv.ParseInt(revision, 10, 64)
			list[m.ID] = backup.Listed{Name: word, Manifest: m}
		}

		var got []string
		for _, l := range backup.SortListed(list) {
			got = append(got, l.Name)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

func TestList_NamesWhatIsNotGood(t *testing.T) {
	etcd := kvtest.Start(t)
	fill(t, etcd, 2)
	raw := snapshot(t, etcd)
	dir := t.TempDir()
	store := func(hour int) string {
		return stored(t, dir, pack(t, raw, noon.Add(time.Duration(hour)*time.Hour))).Name
	}

	store(0)
	ok(t, os.Remove(store(1)+".json"))
	ok(t, os.Truncate(store(2)+".db.zst", 100))
	ok(t, os.Remove(store(3)+".db.zst"))
	ok(t, os.Truncate(store(4)+".json", 100))
	ok(t, os.WriteFile(filepath.Join(dir, "20261128T170000.000Z.db.zst.tmp"), nil, 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "etcdctl.db"), raw, 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "package.json"), nil, 0o600))

	// Single files. Another program has stored the last one.
	for i, name := range []string{"before upgrade.zst", "pipe.db.zst", "short.zst"} {
		p := pack(t, raw, noon.Add(time.Duration(-1-i)*time.Hour))
		data, err := os.Open(p.Path)
		ok(t, err)
		_, err = backup.StoreFile(t.Context(), filepath.Join(dir, name), p.Manifest, data)
		ok(t, errors.Join(err, data.Close()))
	}
	ok(t, os.Truncate(filepath.Join(dir, "short.zst"), 100))
	ok(t, os.WriteFile(filepath.Join(dir, "log.zst"), []byte("\x28\xb5\x2f\xfd log"), 0o600))

	list, err := backup.List(dir)
	ok(t, err)

	want := []struct{ name, problem string }{
		{"20261128T130000.000Z", "damaged: it has no manifest"},
		{"20261128T140000.000Z", "damaged: the file has 100 bytes instead of"},
		{"20261128T150000.000Z", "damaged: 20261128T150000.000Z.db.zst is missing"},
		{"20261128T160000.000Z", "damaged: its manifest is incomplete"},
		{"20261128T170000.000Z.db.zst.tmp", "incomplete"},
		{"etcdctl.db", "a snapshot without a manifest"},
		{"short.zst", "damaged: it ends too early"},
		{"pipe", ""},
		{"before upgrade.zst", ""},
		{"20261128T120000.000Z", ""},
	}
	if len(list) != len(want) {
		t.Fatalf("%+v", list)
	}
	for i, l := range list {
		if l.Name != want[i].name || !strings.HasPrefix(l.Problem, want[i].problem) || (l.Problem == "") != (l.Manifest != nil && want[i].problem == "") {
			t.Errorf("%+v instead of %v", l, want[i])
		}
	}
}

func TestOpen_FindsABackupByEachOfItsNames(t *testing.T) {
	etcd := kvtest.Start(t)
	fill(t, etcd, 2)
	raw := snapshot(t, etcd)
	s := stored(t, t.TempDir(), pack(t, raw, noon))

	for _, name := range []string{s.Name, s.Name + ".json", s.Name + ".db.zst"} {
		again, err := backup.Open(name)
		if err != nil || again.Manifest == nil || again.Unpack(t.Context(), io.Discard) != nil {
			t.Errorf("%s: %+v, %v", name, again, err)
		}
	}

	var out bytes.Buffer
	ok(t, s.Unpack(t.Context(), &out))
	if !bytes.Equal(out.Bytes(), raw) {
		t.Error("another snapshot was unpacked")
	}

	if _, err := backup.Open(s.Name + "x"); !errors.Is(err, task.ErrNotFound) {
		t.Error(err)
	}
	if _, err := backup.Open(filepath.Dir(s.Name)); !errors.Is(err, task.ErrInvalid) {
		t.Error(err)
	}
}

func TestStore_KeepsWhatIsThere(t *testing.T) {
	etcd := kvtest.Start(t)
	fill(t, etcd, 2)
	p := pack(t, snapshot(t, etcd), noon)
	dir := t.TempDir()
	s := stored(t, dir, p)

	if _, err := backup.Store(t.Context(), dir, p.Manifest, strings.NewReader("")); !errors.Is(err, task.ErrExists) {
		t.Error(err)
	}
	if _, err := backup.StoreFile(t.Context(), s.Path, p.Manifest, strings.NewReader("")); !errors.Is(err, task.ErrExists) {
		t.Error(err)
	}
	ok(t, s.Unpack(t.Context(), io.Discard))
}

// TestStore_LeavesNothingOfAnotherContent covers streams that end too early, go on for too long, or break.
func TestStore_LeavesNothingOfAnotherContent(t *testing.T) {
	etcd := kvtest.Start(t)
	fill(t, etcd, 2)
	p := pack(t, snapshot(t, etcd), noon)
	good, err := os.ReadFile(p.Path)
	ok(t, err)

	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1

	dir := t.TempDir()
	for name, r := range map[string]io.Reader{
		"short":   bytes.NewReader(good[:len(good)-1]),
		"long":    io.MultiReader(bytes.NewReader(good), strings.NewReader("x")),
		"flipped": bytes.NewReader(flipped),
		"broken":  io.MultiReader(bytes.NewReader(good[:100]), failing{}),
	} {
		if _, err := backup.Store(t.Context(), dir, p.Manifest, r); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	m := backup.Manifest{
		Version: 1, ID: backup.FormatID(noon), Time: task.At(noon), Source: backup.SourceAPI, Cluster: "c1", Epoch: 1, Format: 1, Prefix: "/carillon",
		Revision: 10, Size: 100, PackedSize: 10, SHA256: strings.Repeat("a", 64), PackedSHA256: strings.Repeat("b", 64),
	}
	text, err := m.Encode()
	ok(f, err)

	f.Add(text)
	f.Add([]byte("{}"))
	f.Add(bytes.Replace(text, []byte(`"manifest": 1`), []byte(`"manifest": 2`), 1))
	f.Add(text[:len(text)-10])

	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := backup.ParseManifest(text)
		if err != nil {
			if !errors.Is(err, backup.ErrDamaged) && !errors.Is(err, backup.ErrNewer) {
				t.Error(err)
			}
			return
		}

		if _, err := m.Encode(); err != nil {
			t.Error(err)
		}
	})
}

func TestParseManifest_RefusesANewerVersion(t *testing.T) {
	m := backup.Manifest{Version: backup.ManifestVersion + 1}
	text, err := m.Encode()
	ok(t, err)

	if _, err := backup.ParseManifest(text); !errors.Is(err, backup.ErrNewer) {
		t.Error(err)
	}
}

package backup_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/test/buckettest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// open opens a place in a storage.
func open(s *buckettest.Storage, name string) *backup.Bucket {
	s.Helper()
	b, err := backup.OpenBucket(name, s.Env)
	ok(s, err)

	return b
}

// packFor returns a packed snapshot, with its content.
func packFor(t testing.TB, at time.Time) (*backup.Packed, []byte) {
	t.Helper()
	etcd := kvtest.Start(t)
	fill(t, etcd, 30)
	p := pack(t, snapshot(t, etcd), at)
	content, err := os.ReadFile(p.Path)
	ok(t, err)

	return p, content
}

func TestBucket_StoresListsAndFetches(t *testing.T) {
	s := buckettest.Start(t)
	b := open(s, "s3://backups/carillon/prod/")
	if b.String() != "s3://backups/carillon/prod" {
		t.Errorf("its name is %s", b)
	}

	older, text := packFor(t, noon)
	_, err := b.Store(t.Context(), older.Manifest, bytes.NewReader(text))
	ok(t, err)
	if _, err := b.Store(t.Context(), older.Manifest, bytes.NewReader(text)); !errors.Is(err, task.ErrExists) {
		t.Errorf("stored again: %v", err)
	}

	list, err := b.List(t.Context())
	ok(t, err)
	if len(list) != 1 || list[0].Name != older.Manifest.ID || list[0].Problem != "" || list[0].Manifest.SHA256 != older.Manifest.SHA256 || list[0].Size != int64(len(text)) {
		t.Fatalf("list: %+v", list)
	}

	place, id := backup.SplitBucketName("s3://backups/carillon/prod/" + older.Manifest.ID + ".json")
	if place != b.String() || id != older.Manifest.ID {
		t.Errorf("the name has the place %s and the ID %s", place, id)
	}
	fetched, err := b.Fetch(t.Context(), id, t.TempDir())
	ok(t, err)
	ok(t, fetched.Unpack(t.Context(), io.Discard))
	if fetched.Name != "s3://backups/carillon/prod/"+id {
		t.Errorf("it is called %s", fetched.Name)
	}

	// Another prefix has no backups.
	list, err = open(s, "s3://backups/carillon").List(t.Context())
	ok(t, err)
	if len(list) != 0 {
		t.Errorf("the prefix above has %+v", list)
	}
}

// A backup that is larger than one part is sent in several.
func TestBucket_StoresInParts(t *testing.T) {
	s := buckettest.Start(t)
	p, _ := packFor(t, noon)
	content := bytes.Repeat([]byte("0123456789abcdef"), 40<<20/16)
	m := *p.Manifest
	m.PackedSize, m.PackedSHA256 = int64(len(content)), sum(content)

	parts := 0
	s.Inject(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Has("partNumber") {
			parts++
		}
		return false
	})
	_, err := open(s, "s3://backups").Store(t.Context(), &m, bytes.NewReader(content))
	ok(t, err)
	if parts != 3 {
		t.Errorf("%d parts", parts)
	}
}

// Whatever fails, and whenever, a bucket lists no backup that is not complete.
func TestBucket_ListsNothingBad(t *testing.T) {
	former := backup.SetBucketTries(2)
	defer backup.SetBucketTries(former)

	isData := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ".db.zst") }
	unavailable := func(w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}

	p, text := packFor(t, noon)
	for name, c := range map[string]struct {
		fault   func(w http.ResponseWriter, r *http.Request) bool
		content func(text []byte) io.Reader
		want    error
	}{
		"the storage answers 503": {func(w http.ResponseWriter, _ *http.Request) bool { return unavailable(w) }, nil, task.ErrUnavailable},
		"503 to the snapshot": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodPut && isData(r) && unavailable(w)
		}, nil, task.ErrUnavailable},
		"503 to what is read back": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodGet && isData(r) && unavailable(w)
		}, nil, task.ErrUnavailable},
		"503 to the manifest": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodPut && !isData(r) && unavailable(w)
		}, nil, task.ErrUnavailable},
		"the connection ends": {func(_ http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodPut && isData(r) && abort()
		}, nil, task.ErrUnavailable},
		"the connection ends in an answer": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodGet && isData(r) && cutAnswer(w)
		}, nil, nil},
		"what is read back is wrong": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodGet && isData(r) && answerWith(w, "something else")
		}, nil, backup.ErrDamaged},
		"the snapshot is cut short": {nil, func(text []byte) io.Reader { return bytes.NewReader(text[:len(text)-1]) }, backup.ErrDamaged},
		"the snapshot is damaged": {nil, func(text []byte) io.Reader {
			text[len(text)/2] ^= 1
			return bytes.NewReader(text)
		}, backup.ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			s := buckettest.Start(t)
			s.Inject(c.fault)
			content := io.Reader(bytes.NewReader(text))
			if c.content != nil {
				content = c.content(slices.Clone(text))
			}

			b := open(s, "s3://backups")
			_, err := b.Store(t.Context(), p.Manifest, content)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}

			s.Inject(nil)
			if list, err := b.List(t.Context()); err != nil || slices.ContainsFunc(list, func(l backup.Listed) bool { return l.Problem == "" }) {
				t.Errorf("list: %+v, %v", list, err)
			}

			// It can be stored afterwards, unless the storage did not take the deletion.
			if c.fault == nil && len(s.Names()) > 0 {
				t.Errorf("left: %q", s.Names())
			}
		})
	}
}

// abort ends the connection of a request.
func abort() bool { panic(http.ErrAbortHandler) }

// cutAnswer begins an answer, and ends the connection.
func cutAnswer(w http.ResponseWriter) bool {
	w.Header().Set("Content-Length", "1000")
	w.Header().Set("Last-Modified", noon.Format(http.TimeFormat))
	_, _ = w.Write(make([]byte, 100))
	panic(http.ErrAbortHandler)
}

func answerWith(w http.ResponseWriter, text string) bool {
	w.Header().Set("Last-Modified", noon.Format(http.TimeFormat))
	_, _ = io.WriteString(w, text)

	return true
}

// A storage that fails for a moment is asked again.
func TestBucket_TriesAgain(t *testing.T) {
	s := buckettest.Start(t)
	p, text := packFor(t, noon)
	failed := map[string]bool{}
	s.Inject(func(w http.ResponseWriter, r *http.Request) bool {
		if key := r.Method + path.Base(r.URL.Path); !failed[key] && r.Method != http.MethodPut {
			failed[key] = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})

	b := open(s, "s3://backups")
	_, err := b.Store(t.Context(), p.Manifest, bytes.NewReader(text))
	ok(t, err)
	if list, err := b.List(t.Context()); err != nil || len(list) != 1 || list[0].Problem != "" {
		t.Errorf("list: %+v, %v", list, err)
	}
}

func TestBucket_NamesWhatIsNotGood(t *testing.T) {
	s := buckettest.Start(t)
	p, text := packFor(t, noon)
	b := open(s, "s3://backups/x")
	_, err := b.Store(t.Context(), p.Manifest, bytes.NewReader(text))
	ok(t, err)

	id := p.Manifest.ID

	for name, change := range map[string]func(){
		"it has no manifest": func() { s.Delete("x/" + id + ".json") },
		"instead of":         func() { s.Put("x/"+id+".db.zst", text[1:]) },
		"manifest":           func() { s.Put("x/"+id+".json", []byte("{}")) },
	} {
		manifest, err := p.Manifest.Encode()
		ok(t, err)
		s.Put("x/"+id+".json", manifest)
		s.Put("x/"+id+".db.zst", text)

		change()
		list, err := b.List(t.Context())
		ok(t, err)
		if len(list) != 1 || !strings.Contains(list[0].Problem, name) {
			t.Errorf("%s: %+v", name, list)
		}
		if _, err := b.Fetch(t.Context(), id, t.TempDir()); err == nil {
			t.Errorf("%s: it can be fetched", name)
		}
	}

	_, err = b.Fetch(t.Context(), backup.FormatID(noon.Add(time.Hour)), t.TempDir())
	if !errors.Is(err, task.ErrNotFound) {
		t.Errorf("a backup that does not exist: %v", err)
	}
	if _, err := open(s, "s3://other/x").List(t.Context()); !errors.Is(err, task.ErrNotFound) || !strings.Contains(err.Error(), "bucket other") {
		t.Errorf("a bucket that does not exist: %v", err)
	}
}

func TestBucket_EndsWithItsContext(t *testing.T) {
	s := buckettest.Start(t)
	p, text := packFor(t, noon)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := open(s, "s3://backups").Store(ctx, p.Manifest, readerFunc(func(b []byte) (int, error) {
		cancel()
		return copy(b, text), nil
	}))
	if !errors.Is(err, context.Canceled) || len(s.Names()) > 0 {
		t.Errorf("%v, left %q", err, s.Names())
	}
}

func TestOpenBucket_RefusesBadSettings(t *testing.T) {
	for _, c := range []struct{ name, endpoint, want string }{
		{"s3://", "", "not the name of a place"},
		{"backups/x", "", "not the name of a place"},
		{"s3://backups", "http://s3.example.com", "use https"},
		{"s3://backups", "s3.example.com", "not the URL of a storage"},
		{"s3://backups", "https://s3.example.com/path", "not the URL of a storage"},
	} {
		env := func(name string) string {
			if name == "AWS_ENDPOINT_URL" {
				return c.endpoint
			}
			return ""
		}
		if _, err := backup.OpenBucket(c.name, env); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s at %q: %v", c.name, c.endpoint, err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

package embedded_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// A member that starts with the data of another would rename it in the cluster and vote for it. Therefore the
// identity is read before etcd uses the data, and a refusal leaves every byte unchanged.
func TestStart_RefusesDataOfAnotherMemberUntouched(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	asMember := func(name string) embedded.Config {
		return embedded.Config{Dir: dir, Name: name, Peers: &embedded.Peers{Members: map[string]string{name: peerURL(t)}}}
	}

	b := server(t, asMember("b"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	before := digests(t, filepath.Join(dir, "member"))

	alone := embedded.Config{Dir: dir, Name: "b"}
	for _, test := range []struct {
		cfg  embedded.Config
		want string
	}{
		{asMember("a"), "the data directory belongs to member b, but this is a"},
		{alone, "the data directory belongs to member b of a cluster of 1: set --initial-cluster"},
	} {
		s, err := embedded.Start(t.Context(), test.cfg)
		if err == nil {
			_ = s.Close()
			t.Fatalf("started; want an error with %q", test.want)
		}

		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v; want an error with %q", err, test.want)
		}

		if after := digests(t, filepath.Join(dir, "member")); !maps.Equal(before, after) {
			t.Errorf("%q: the data changed", test.want)
		}
	}

	again, err := embedded.Start(t.Context(), asMember("b"))
	if err != nil {
		t.Fatal(err)
	}

	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// digests returns the SHA-256 of every file below dir, by path.
func digests(t *testing.T, dir string) map[string]string {
	t.Helper()

	sums := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		sum := sha256.Sum256(content)
		sums[path] = hex.EncodeToString(sum[:])

		return nil
	})

	if err != nil {
		t.Fatal(err)
	}

	return sums
}

// The names of directories may have any characters, and etcd ignores other files beside its segments.
func TestStart_ReadsItsDataAgain(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "data[1]*")
	first := server(t, embedded.Config{Dir: dir})
	put(t, first.Client(), "k", "v")

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	stray := filepath.Join(dir, "member", "wal", "copy.wal")
	if err := os.WriteFile(stray, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	again := server(t, embedded.Config{Dir: dir})
	if got := read(t, again.Client(), "k"); got != "v" {
		t.Errorf("%q; want v", got)
	}
}

// A single member does not accept the data of one of several, and the other way round.
func TestStart_RefusesDataOfOneWithoutPeers(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	alone := server(t, embedded.Config{Dir: dir})
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}

	cfg := embedded.Config{Dir: dir, Name: "a", Peers: &embedded.Peers{Members: map[string]string{"a": peerURL(t)}}}
	s, err := embedded.Start(t.Context(), cfg)
	if err == nil {
		_ = s.Close()
	}

	if want := "the data directory belongs to an etcd with a single member"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want an error with %q", err, want)
	}
}

package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	db     = Name{"default", "db", 3}
	values = map[string]string{"user": "app", "password": "hunter2"}
)

func TestRing_OpensWhatItSealed(t *testing.T) {
	r := NewRing(NewKey(), NewKey())
	sealed, key, err := r.Seal(db, values)
	if err != nil || key != r.IDs()[0] {
		t.Fatal(key, err)
	}

	if got, err := r.Open(db, sealed, key); err != nil || !maps.Equal(got, values) {
		t.Errorf("%v, %v", got, err)
	}

	if bytes.Contains(sealed, []byte("hunter2")) || bytes.Contains(sealed, []byte("password")) {
		t.Error("it is not encrypted")
	}

	again, _, _ := r.Seal(db, values)
	if bytes.Equal(sealed, again) {
		t.Error("the same nonce twice")
	}

	longer, _, _ := r.Seal(db, map[string]string{"user": "app", "password": "a longer one"})
	if len(longer) != len(sealed) {
		t.Error("the length reveals that of the value")
	}
}

func TestRing_OpensNothingElse(t *testing.T) {
	r := NewRing(NewKey(), NewKey())
	sealed, key, _ := r.Seal(db, values)

	for what, n := range map[string]Name{
		"another generation": {"default", "db", 2}, "another name": {"default", "db2", 3}, "another namespace": {"prod", "db", 3},
		"names cut otherwise": {"defaul", "t\x00db", 3},
	} {
		if _, err := r.Open(n, sealed, key); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}

	for i := range sealed {
		changed := slices.Clone(sealed)
		changed[i] ^= 1
		if _, err := r.Open(db, changed, key); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}

	if _, err := r.Open(db, sealed[:5], key); !errors.Is(err, ErrDamaged) {
		t.Errorf("cut short: %v", err)
	}

	if _, err := r.Open(db, sealed, r.IDs()[1]); !errors.Is(err, ErrDamaged) {
		t.Errorf("under another key: %v", err)
	}

	if _, err := NewRing(NewKey()).Open(db, sealed, key); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), key) {
		t.Errorf("without the key: %v", err)
	}

	if _, _, err := (Ring{}).Seal(db, values); !errors.Is(err, ErrNoKey) {
		t.Errorf("without any key: %v", err)
	}
}

func TestKey_PrintsAsItsID(t *testing.T) {
	k := NewKey()
	text, _ := json.Marshal(struct{ K Key }{k})
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%v %+v %#v %s %q %x %d", k, k, k, k, k, k, k), fmt.Sprintf("%v", NewRing(k)), string(text)} {
		for _, bad := range []string{k.formatLine()[len(keyMark):], fmt.Sprintf("%x", k.key()), fmt.Sprint(k.key())} {
			if strings.Contains(s, strings.Trim(bad, "[]")) {
				t.Errorf("%s", s)
			}
		}
	}
}

func TestKeyFile(t *testing.T) {
	f := KeyFile(filepath.Join(t.TempDir(), "keys"))
	if _, err := f.Ring(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}

	one, _, err := f.New(false)
	if err != nil {
		t.Fatal(err)
	}

	two, _, _ := f.New(false)
	three, r, err := f.New(true)
	want := func(keys ...Key) {
		t.Helper()
		got, err := f.Ring()
		if err != nil || !slices.Equal(got.IDs(), NewRing(keys...).IDs()) {
			t.Errorf("%v, %v; want %v", got.IDs(), err, keys)
		}
	}

	want(three, one, two)

	if err != nil || len(r.keys) != 3 {
		t.Error(r.IDs(), err)
	}

	if _, err := f.First(two.ID()); err != nil {
		t.Error(err)
	}

	want(two, three, one)

	if _, err := f.Remove(three.ID()); err != nil {
		t.Error(err)
	}

	want(two, one)
	sealed, key, _ := NewRing(one).Seal(db, values)

	if r, _ = f.Ring(); true {
		if got, err := r.Open(db, sealed, key); err != nil || !maps.Equal(got, values) {
			t.Errorf("from the file: %v, %v", got, err)
		}
	}

	for _, do := range []func(string) (Ring, error){f.First, f.Remove} {
		if _, err := do("00000000"); !errors.Is(err, ErrNoKey) {
			t.Error(err)
		}
	}

	_, _ = f.Remove(two.ID())

	if _, err := f.Remove(one.ID()); err == nil {
		t.Error("the last key was removed")
	}

	if info, err := os.Stat(string(f)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}

	if left, _ := os.ReadDir(filepath.Dir(string(f))); len(left) != 1 {
		t.Error("files are left", left)
	}
}

func TestKeyFile_RefusesWhatOthersMayRead(t *testing.T) {
	f := KeyFile(filepath.Join(t.TempDir(), "keys"))
	if _, _, err := f.New(false); err != nil {
		t.Fatal(err)
	}

	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o610} {
		if err := os.Chmod(string(f), mode); err != nil {
			t.Fatal(err)
		}

		if _, err := f.Ring(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("%o: %v", mode, err)
		}
	}

	_ = os.Chmod(string(f), 0o400)

	if _, err := f.Ring(); err != nil {
		t.Error(err)
	}

	if os.Geteuid() == 0 {
		if err := os.Chown(string(f), 65534, 65534); err != nil {
			t.Fatal(err)
		}

		if _, err := f.Ring(); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Error(err)
		}
	}

	if _, err := KeyFile(t.TempDir()).Ring(); err == nil {
		t.Error("a directory is no key file")
	}
}

func TestKeyFile_SaysWhichLineIsNoKey(t *testing.T) {
	f := KeyFile(filepath.Join(t.TempDir(), "keys"))
	k := NewKey().formatLine()
	for text, want := range map[string]string{
		"": "contains no key", "# nothing\n\n": "contains no key", "\nhunter2\n": "line 2", k + "\n" + k: "a second time", k[:30]: "line 1", k + "AAAA": "line 1",
	} {
		if err := os.WriteFile(string(f), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		_, err := f.Ring()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		} else if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), k[20:]) {
			t.Errorf("the error reveals the key: %v", err)
		}
	}
}

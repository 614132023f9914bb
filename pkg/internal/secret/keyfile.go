package secret

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// KeyFile is a file with keys, by its path.
type KeyFile string

// maxKeyFile is how many bytes a key file may have: enough for about a thousand keys.
const maxKeyFile = 64 << 10

// Ring reads the keys. It returns an error if users other than the owner may read or write the file, if it belongs
// neither to root nor to the current user, or if it contains no key.
func (f KeyFile) Ring() (Ring, error) {
	r, err := f.readRing()
	if err == nil && len(r.keys) == 0 {
		err = fmt.Errorf("%s contains no key; to create one: carillon secret key new %s", f, f)
	}
	return r, err
}

// readRing is Ring without the requirement of a key.
func (f KeyFile) readRing() (Ring, error) {
	file, err := os.OpenFile(string(f), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Ring{}, err
	}

	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return Ring{}, err
	}
	if err := checkPrivate(info); err != nil {
		return Ring{}, fmt.Errorf("%s %w", f, err)
	}

	b, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return Ring{}, err
	}
	if len(b) > maxKeyFile {
		return Ring{}, fmt.Errorf("%s is larger than %d bytes", f, maxKeyFile)
	}

	return f.parseRing(string(b))
}

// checkPrivate returns an error if a file has the wrong owner, or if others may open it.
func checkPrivate(info fs.FileInfo) error {
	switch st, ok := info.Sys().(*syscall.Stat_t); {
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("can be opened by other users (mode %04o): run chmod 600 on it", info.Mode().Perm())
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("belongs to user %d, not to root or the current user", st.Uid)
	}

	return nil
}

// parseRing parses the content of a key file. It skips empty lines and comments.
func (f KeyFile) parseRing(text string) (r Ring, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++

		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}

		k, err := parseKey(line)
		if err == nil && slices.Contains(r.IDs(), k.id) {
			err = fmt.Errorf("contains %s a second time", k)
		}

		if err != nil {
			return Ring{}, fmt.Errorf("%s: line %d %w", f, n, err)
		}

		r.keys = append(r.keys, k)
	}

	return r, nil
}

// New generates a key and adds it to the file, which it creates if necessary: as the last key, or with first as the
// one that encrypts.
func (f KeyFile) New(first bool) (Key, Ring, error) {
	k := NewKey()
	r, err := f.readRing()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r = Ring{}
	case err != nil:
		return k, r, err
	}

	at := len(r.keys)
	if first {
		at = 0
	}

	r.keys = slices.Insert(r.keys, at, k)

	return k, r, f.writeRing(r)
}

// First moves the key with an id to the first place, so that it encrypts. It returns ErrNoKey if the file does not
// contain it.
func (f KeyFile) First(id string) (Ring, error) {
	return f.changeRing(id, func(keys []Key, i int) ([]Key, error) {
		k := keys[i]
		return slices.Insert(slices.Delete(keys, i, i+1), 0, k), nil
	})
}

// Remove removes the key with an id. Values that were encrypted with it cannot be decrypted any more. It returns
// ErrNoKey if the file does not contain the key, and does not remove the only key.
func (f KeyFile) Remove(id string) (Ring, error) {
	return f.changeRing(id, func(keys []Key, i int) ([]Key, error) {
		if len(keys) == 1 {
			return nil, errors.New("it is the only key")
		}
		return slices.Delete(keys, i, i+1), nil
	})
}

// changeRing rewrites the file with the keys that do returns. i is the index of the key with the id.
func (f KeyFile) changeRing(id string, do func(keys []Key, i int) ([]Key, error)) (Ring, error) {
	r, err := f.readRing()
	if err != nil {
		return r, err
	}

	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.id == id })
	if i < 0 {
		return r, fmt.Errorf("%s: %w %s", f, ErrNoKey, id)
	}

	keys, err := do(slices.Clone(r.keys), i)
	if err != nil {
		return r, fmt.Errorf("%s: %s: %w", f, id, err)
	}

	return Ring{keys}, f.writeRing(Ring{keys})
}

const keyFileHead = "# Keys for Carillon secrets. The first key encrypts, all keys decrypt. Anyone who has a key can read what was encrypted with it.\n"

// writeRing replaces the file atomically, and syncs it to disk.
func (f KeyFile) writeRing(r Ring) error {
	text := keyFileHead
	for _, k := range r.keys {
		text += k.formatLine() + "\n"
	}

	// Write a temporary file in the same directory, sync it, rename it, and sync the directory.
	t, err := os.CreateTemp(filepath.Dir(string(f)), ".carillon-keys-*") // 0600
	if err != nil {
		return err
	}

	defer os.Remove(t.Name()) // fails after the rename, when the file has another name

	_, err = t.WriteString(text)
	if err == nil {
		err = t.Sync()
	}

	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	if err := os.Rename(t.Name(), string(f)); err != nil {
		return err
	}

	dir, err := os.Open(filepath.Dir(string(f)))
	if err != nil {
		return err
	}

	return errors.Join(dir.Sync(), dir.Close()) // without this, a crash could lose a new key that a daemon has already used
}

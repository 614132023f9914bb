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

// KeyFile is a file of keys, by its path.
type KeyFile string

const maxKeyFile = 64 << 10 // bytes: some thousand keys

// Ring reads the keys. It is an error if others than the owner may read or write
// the file, if it is neither root's nor this user's, or if it has no key.
func (f KeyFile) Ring() (Ring, error) {
	r, err := f.readRing()
	if err == nil && len(r.keys) == 0 {
		err = fmt.Errorf("%s has no key: carillon secret key new %s", f, f)
	}
	return r, err
}

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
		return Ring{}, fmt.Errorf("%s has more than %d bytes", f, maxKeyFile)
	}

	return f.parseRing(string(b))
}

// checkPrivate reports what is wrong with who owns a file, or who may open it.
func checkPrivate(info fs.FileInfo) error {
	switch st, ok := info.Sys().(*syscall.Stat_t); {
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("can be opened by others than its owner (mode %04o): chmod 600 it", info.Mode().Perm())
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("belongs to user %d, not to root or the current user", st.Uid)
	}

	return nil
}

func (f KeyFile) parseRing(text string) (r Ring, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++

		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}

		k, err := parseKey(line)
		if err == nil && slices.Contains(r.IDs(), k.id) {
			err = fmt.Errorf("has %s a second time", k)
		}

		if err != nil {
			return Ring{}, fmt.Errorf("%s: line %d %w", f, n, err)
		}

		r.keys = append(r.keys, k)
	}

	return r, nil
}

// New makes a key and adds it to the file, which is made if it is not there: as
// the last, or as the first, which encrypts.
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

// First puts the key with an id first, so that it encrypts. ErrNoKey if it is not
// there.
func (f KeyFile) First(id string) (Ring, error) {
	return f.changeRing(id, func(keys []Key, i int) ([]Key, error) {
		k := keys[i]
		return slices.Insert(slices.Delete(keys, i, i+1), 0, k), nil
	})
}

// Remove takes the key with an id out; what is sealed with it cannot be opened any
// more. ErrNoKey if it is not there; the last key stays.
func (f KeyFile) Remove(id string) (Ring, error) {
	return f.changeRing(id, func(keys []Key, i int) ([]Key, error) {
		if len(keys) == 1 {
			return nil, errors.New("it is the only key")
		}
		return slices.Delete(keys, i, i+1), nil
	})
}

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

const keyFileHead = "# Keys of Carillon's secrets. The first encrypts, all decrypt. Whoever has one can read what was encrypted with it.\n"

// writeRing puts a new file in the place of the former, whole or not at all, and on disk.
func (f KeyFile) writeRing(r Ring) error {
	text := keyFileHead
	for _, k := range r.keys {
		text += k.formatLine() + "\n"
	}

	t, err := os.CreateTemp(filepath.Dir(string(f)), ".carillon-keys-*") // 0600
	if err != nil {
		return err
	}

	defer os.Remove(t.Name()) // it has another name by then, if all went well

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

	return errors.Join(dir.Sync(), dir.Close()) // or a new key may be gone that a daemon has used
}

package datadir

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nodeKeyFile contains the private key with which the node signs its requests to other nodes. It
// is created once, at the first start on a data directory.
const nodeKeyFile = "node.key"

// nodeKeyType is the type of the PEM block in it.
const nodeKeyType = "PRIVATE KEY"

// OpenNodeKey reads the node's key, or creates it if there is none. The caller holds the
// lock of the data directory.
func OpenNodeKey(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, nodeKeyFile)
	key, err := readNodeKey(path)
	if errors.Is(err, os.ErrNotExist) {
		key, err = makeNodeKey(path)
	}

	if err != nil {
		return nil, fmt.Errorf("node key %s: %w", path, err)
	}

	return key, nil
}

// readNodeKey reads the key. It returns an error if another user may have created the file or read it.
func readNodeKey(path string) (ed25519.PrivateKey, error) {
	// O_NONBLOCK keeps the open of a fifo from blocking. The checks use the open file, so it cannot be replaced in
	// between.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link; remove it, and the node makes another key")
	}
	if err != nil {
		return nil, err
	}

	defer f.Close()

	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}

	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is not a regular file")
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("it belongs to user %d, not to the daemon's user %d", st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("it has mode %04o, so that others may have read it: remove it, and the node makes another key", st.Mode&0o7777)
	}

	b, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return nil, err
	}

	block, rest := pem.Decode(b)
	if block == nil || block.Type != nodeKeyType || len(rest) > 0 {
		return nil, errors.New("it is damaged: remove it, and the node makes another key")
	}

	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("it holds no Ed25519 key: remove it, and the node makes another key")
	}

	return key, nil
}

// makeNodeKey creates a key and writes it to path. After a crash, the file is either complete or does not exist.
func makeNodeKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}

	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}

	// Remove an incomplete file of an earlier start. O_EXCL neither follows a link
	// nor writes to a file that another user has created.
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}

	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}

	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: nodeKeyType, Bytes: der}))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}

	return key, os.Rename(tmp, path)
}

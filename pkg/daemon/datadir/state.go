// Package datadir stores in the data directory what a daemon must keep over restarts: the state
// of the node (state.json), and the key with which it signs requests (node.key).
//
// A daemon opens the directory with Open and holds its lock until Close, so at
// most one daemon runs on a directory. The lock proves that all processes that used it before have ended, so
// their leases can be revoked and their instances be reported as cleared. It proves nothing about the processes of
// another copy of the directory; [State.Begin] detects that the directory may be a copy.
//
// Files are written under another name, synced and renamed. After a crash each of them
// has either its former contents or the new ones. If SetWanted or SetHistory fails, the state in
// memory and on disk is unchanged. The package rejects a directory or a key to which other users can write.
package datadir

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/task"
)

// State is the state of a node in its data directory, under the lock that proves that former processes have ended. Its
// methods may be called from any goroutine.
type State struct {
	dir  string
	lock *os.File // holds the lock until it is closed

	mu     sync.Mutex
	lockID string // identifies lock; "" before Begin
	kept   Record // the contents of the file
}

// Record is the contents of state.json.
type Record struct {
	// Session and Election are the leases of the present session and election. They are saved before
	// any key is attached to them, so that the next process can always revoke them.
	Session  string `json:"session,omitempty"`
	Election string `json:"election,omitempty"`
	// Instances lists the instances that ran on this directory, the newest last. The
	// last one is the present instance, and all others are dead.
	Instances []string `json:"instances"`
	// Lock identifies the lock that proves that all these instances but the last are dead: the boot of the machine, and the
	// device and inode of the lock file. A copy of the directory has another lock file, or is on a machine that was booted
	// another time.
	Lock string `json:"lock,omitempty"`
	// State is the state that an operator requested: cordoned or draining; "" means ready.
	State string `json:"state,omitempty"`
	// StateBy is the user who requested the present state, also if it is ready.
	StateBy *task.Actor `json:"state_by,omitempty"`
	// The history of etcd to which this directory belongs: the cluster, its epoch,
	// and the highest revision that was seen.
	Cluster  string `json:"cluster,omitempty"`
	Epoch    int    `json:"epoch,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Restored bool   `json:"restored,omitempty"` // etcd was found to have gone back in this epoch
	// Peers are the addresses of some other nodes, which are asked whether they follow another history.
	Peers []string `json:"peers,omitempty"`
}

// keepInstances is the maximum number of instances that are stored. Attempts of older instances are not in the inbox
// any more.
const keepInstances = 50

// ErrRunning means that a daemon uses a data directory.
var ErrRunning = errors.New("another daemon is running on it")

// Open locks the data directory and reads its state. It fails at once if another
// daemon holds the lock.
func Open(dir string) (*State, error) {
	if err := filetrust.MakePrivateDir(dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}

	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}

	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("data directory %s: %w", dir, ErrRunning)
	}

	// Read the state only under the lock. Another daemon may have changed it until now.
	s := &State{dir: dir, lock: lock}
	b, err := os.ReadFile(s.filePath())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		lock.Close()
		return nil, fmt.Errorf("data directory: %w", err)
	}

	if len(b) > 0 {
		if err := json.Unmarshal(b, &s.kept); err != nil {
			lock.Close()
			return nil, fmt.Errorf("%s is damaged: %w", s.filePath(), err)
		}
	}

	return s, nil
}

// filePath returns the path of the file with the record.
func (s *State) filePath() string { return filepath.Join(s.dir, "state.json") }

// Close releases the lock of the directory.
func (s *State) Close() { s.lock.Close() }

// Begin returns the record of the former process and adds the new instance to it. It must be called once, before
// the instance writes anything to etcd.
//
// proven reports whether the lock proves that the former processes are dead. It does not if one of them held another
// lock: then the machine has restarted since, or this directory is a copy and the process may still use the original.
// In that case, later starts prove nothing either, until TrustLock is called.
func (s *State) Begin(instance string) (former Record, proven bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	lock, err := lockID(s.lock)
	if err != nil {
		return Record{}, false, fmt.Errorf("data directory: %w", err)
	}

	former = s.kept
	former.Instances = slices.Clone(former.Instances)
	proven = len(former.Instances) == 0 || former.Lock == lock
	s.lockID = lock
	if proven {
		s.kept.Lock = lock
	}

	s.kept.Instances = append(slices.Clone(former.Instances), instance)
	if n := len(s.kept.Instances); n > keepInstances {
		s.kept.Instances = s.kept.Instances[n-keepInstances:]
	}

	return former, proven, s.writeFile()
}

// TrustLock makes the lock of this process a proof, at later starts, that all earlier instances are dead. It is called after the
// node has joined the cluster, because then none of them holds its name. If the process ends before that, or if TrustLock
// fails, the next start proves nothing. Otherwise the second start on a copy would consider the original dead.
func (s *State) TrustLock() error {
	return s.changeRecord(func(k *Record) { k.Lock = s.lockID })
}

// lockID identifies a lock among all locks of all machines, for the time until its machine restarts.
func lockID(lock *os.File) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}

	var st unix.Stat_t
	if err := unix.Fstat(int(lock.Fd()), &st); err != nil {
		return "", err
	}

	return fmt.Sprintf("%s/%x/%d", strings.TrimSpace(string(boot)), st.Dev, st.Ino), nil
}

// SetSession saves the lease of the session. It is called before the lease is used, and with 0 when the session has
// ended.
func (s *State) SetSession(id clientv3.LeaseID) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.kept.Session = leaseName(id)
	return s.writeFile()
}

// SetElection saves the lease of the election. It is called before the lease is used, and with 0 when the election has
// ended.
func (s *State) SetElection(id clientv3.LeaseID) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.kept.Election = leaseName(id)
	return s.writeFile()
}

// Wanted returns the state that an operator requested; without a request, it is ready.
func (s *State) Wanted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.kept.State, task.NodeReady)
}

// WantedBy returns the user who requested the wanted state.
func (s *State) WantedBy() *task.Actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.StateBy
}

// SetWanted saves the state that an operator requested, and who requested it. It changes
// nothing if that state is saved already.
func (s *State) SetWanted(state string, by *task.Actor) error {
	if s.Wanted() == state {
		return nil
	}

	if state == task.NodeReady {
		state = ""
	}

	return s.changeRecord(func(k *Record) { k.State, k.StateBy = state, by })
}

// History returns the saved history of etcd: the cluster ("" before the first start), its epoch, and the
// highest revision that was seen.
func (s *State) History() (cluster string, epoch int, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Cluster, s.kept.Epoch, s.kept.Revision
}

// Epoch returns the saved epoch of the cluster.
func (s *State) Epoch() int {
	_, epoch, _ := s.History()
	return epoch
}

// Restored reports whether etcd was found to have gone back in this epoch.
func (s *State) Restored() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Restored
}

// SetHistory saves the history of etcd and whether it was found to have gone back.
func (s *State) SetHistory(cluster string, epoch int, revision int64, restored bool) error {
	return s.changeRecord(func(k *Record) { k.Cluster, k.Epoch, k.Revision, k.Restored = cluster, epoch, revision, restored })
}

// Peers returns the saved addresses of other nodes.
func (s *State) Peers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Peers
}

// SetPeers saves the addresses of other nodes. The caller must not modify the list afterwards.
func (s *State) SetPeers(list []string) error {
	return s.changeRecord(func(k *Record) { k.Peers = list })
}

// changeRecord changes the record and writes it if it differs. After an error the record is unchanged, in memory and on
// disk.
func (s *State) changeRecord(change func(*Record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	was := s.kept
	change(&s.kept)

	if reflect.DeepEqual(s.kept, was) {
		return nil
	}

	err := s.writeFile()
	if err != nil {
		s.kept = was
	}

	return err
}

// Leases returns the leases that the present process holds.
func (s *State) Leases() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	var list []string
	for _, l := range []string{s.kept.Session, s.kept.Election} {
		if l != "" {
			list = append(list, l)
		}
	}

	return list
}

// writeFile replaces the file with the present record. The caller holds mu.
func (s *State) writeFile() error {
	b, err := json.Marshal(s.kept)
	if err != nil {
		panic(fmt.Sprintf("datadir: encode state: %v", err))
	}
	return WriteSynced(s.filePath(), append(b, '\n'), 0o600)
}

// WriteSynced replaces the file at path: it writes a new file beside it, syncs it, and
// renames it.
func WriteSynced(path string, b []byte, mode os.FileMode) error {
	tmp := path + ".new"

	// Remove a file that a killed daemon has left. If another file or link appears afterwards, another user has created
	// it, and O_EXCL makes the open fail.
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}

	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}

	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}

	return nil
}

// leaseName returns the lease as a hexadecimal number, as etcdctl prints it, or "" for 0.
func leaseName(id clientv3.LeaseID) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%x", int64(id))
}

// ParseLease returns the lease with a name in a Record, or 0 if the name is empty or invalid.
func ParseLease(s string) clientv3.LeaseID {
	var id int64
	if _, err := fmt.Sscanf(s, "%x", &id); err != nil {
		return 0
	}
	return clientv3.LeaseID(id)
}

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

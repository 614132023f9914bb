package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/task"
)

// state is what a daemon must know of its former processes: kept in its data
// directory, under the lock that proves that they are dead.
type state struct {
	dir  string
	lock *os.File

	mu   sync.Mutex
	kept kept
}

type kept struct {
	// Leases are those of the present session and election, saved before
	// anything is attached to them.
	Session  string `json:"session,omitempty"`
	Election string `json:"election,omitempty"`
	// Instances are those that ran on this directory, the newest last; the
	// last is this one. All others are dead.
	Instances []string `json:"instances"`
	// State is what an operator wants of the node: cordoned or draining; "" is ready.
	State string `json:"state,omitempty"`
	// StateBy is who asked for the present state, ready included.
	StateBy string `json:"state_by,omitempty"`
	// Of the history of etcd that this directory belongs to: the cluster, its epoch,
	// and the highest revision that was seen.
	Cluster  string `json:"cluster,omitempty"`
	Epoch    int    `json:"epoch,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Restored bool   `json:"restored,omitempty"` // it was found to have gone back in this epoch
}

// keepInstances is how many former instances are remembered: those whose
// attempts may still be in the inbox.
const keepInstances = 50

// openState locks the data directory and reads what was kept. It fails at once
// if another daemon has it.
func openState(dir string) (*state, error) {
	if err := filetrust.MakePrivateDir(dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}

	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}

	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("data directory %s: another daemon is running on it", dir)
	}

	s := &state{dir: dir, lock: lock}
	b, err := os.ReadFile(s.path())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		lock.Close()
		return nil, fmt.Errorf("data directory: %w", err)
	}

	if len(b) > 0 {
		if err := json.Unmarshal(b, &s.kept); err != nil {
			lock.Close()
			return nil, fmt.Errorf("%s is damaged: %w", s.path(), err)
		}
	}

	return s, nil
}

func (s *state) path() string { return filepath.Join(s.dir, "state.json") }

// close gives the directory up.
func (s *state) close() { s.lock.Close() }

// begin takes the leases and the instances of the former process, and notes
// that a new instance begins.
func (s *state) begin(instance string) (former kept, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	former = s.kept
	former.Instances = slices.Clone(former.Instances)
	s.kept.Instances = append(slices.Clone(former.Instances), instance)
	if n := len(s.kept.Instances); n > keepInstances {
		s.kept.Instances = s.kept.Instances[n-keepInstances:]
	}

	return former, s.save()
}

// setSession and setElection save a lease before it is used; 0 when it is not any more.
func (s *state) setSession(id clientv3.LeaseID) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.kept.Session = leaseName(id)
	return s.save()
}

func (s *state) setElection(id clientv3.LeaseID) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.kept.Election = leaseName(id)
	return s.save()
}

// wanted is the state that an operator wants the node to be in, and wantedBy is who
// asked for it.
func (s *state) wanted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.kept.State, task.NodeReady)
}

func (s *state) wantedBy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.StateBy
}

// setWanted keeps both. Who asks for a state that the node has already changes nothing.
func (s *state) setWanted(state, by string) error {
	if s.wanted() == state {
		return nil
	}

	if state == task.NodeReady {
		state = ""
	}

	return s.set(func(k *kept) { k.State, k.StateBy = state, by })
}

// history is what was seen of etcd's history, as it was kept.
func (s *state) history() (cluster string, epoch int, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Cluster, s.kept.Epoch, s.kept.Revision
}

func (s *state) epoch() int {
	_, epoch, _ := s.history()
	return epoch
}

// restored reports whether etcd was found to have gone back in this epoch.
func (s *state) restored() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Restored
}

func (s *state) setHistory(cluster string, epoch int, revision int64, restored bool) error {
	return s.set(func(k *kept) { k.Cluster, k.Epoch, k.Revision, k.Restored = cluster, epoch, revision, restored })
}

// set changes what is kept; after an error it is as it was, here and on disk.
func (s *state) set(change func(*kept)) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	was := s.kept
	change(&s.kept)

	if reflect.DeepEqual(s.kept, was) {
		return nil
	}

	err := s.save()
	if err != nil {
		s.kept = was
	}

	return err
}

// leases are those that the present process holds.
func (s *state) leases() []string {
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

// save writes the file anew, synced, and moves it into place.
func (s *state) save() error {
	b, err := json.Marshal(s.kept)
	if err != nil {
		panic(fmt.Sprintf("daemon: encode state: %v", err))
	}
	return writeSynced(s.path(), append(b, '\n'), 0o600)
}

func writeSynced(path string, b []byte, mode os.FileMode) error {
	tmp := path + ".new"

	// A file that a killed daemon has left is removed. One that appears since is not opened, nor is a link
	// followed: it would be somebody else's.
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

func leaseName(id clientv3.LeaseID) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%x", int64(id))
}

func parseLease(s string) clientv3.LeaseID {
	var id int64
	if _, err := fmt.Sscanf(s, "%x", &id); err != nil {
		return 0
	}
	return clientv3.LeaseID(id)
}

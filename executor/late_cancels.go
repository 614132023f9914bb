package executor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxLateCancels is how many late cancels a node keeps at most.
	maxLateCancels = 10_000
	// maxLateLines is how many lines of the file may be out of date before it is rewritten.
	maxLateLines = 1000
)

// lateID identifies the attempt of a late cancel.
type lateID struct {
	namespace, task, run string
	token                int64
}

func lateIDOf(c *task.LateCancel) lateID { return lateID{c.Namespace, c.Task, c.Run, c.Token} }

// lateCancels keeps late cancels in a file of the data directory, so that neither the cancel nor the end of its attempt
// is lost if the daemon ends before etcd has space. Each line of the file is a task.LateCancel; the last line of an
// attempt counts. Its methods may be called from any goroutine; they wait for the disk.
type lateCancels struct {
	path string

	mu      sync.Mutex
	kept    map[lateID]task.LateCancel
	size    int64 // of the whole lines in the file
	expired int   // lines that no longer count
}

// openLateCancels reads the late cancels that former processes have left in a data directory.
func openLateCancels(dir string) (*lateCancels, error) {
	l := &lateCancels{path: filepath.Join(dir, "late-cancels"), kept: map[lateID]task.LateCancel{}}

	content, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("late cancels: %w", err)
	}

	// A crash may have torn the last line. Nobody was told that it is kept, and the next line replaces it.
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	l.size = int64(len(content))

	for line := range bytes.Lines(content) {
		var c task.LateCancel
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("late cancels: %s is damaged: %w", l.path, err)
		}

		if _, again := l.kept[lateIDOf(&c)]; again {
			l.expired++
		}
		l.kept[lateIDOf(&c)] = c
	}

	return l, nil
}

// list returns the cancels that are kept.
func (l *lateCancels) list() []task.LateCancel {
	l.mu.Lock()
	defer l.mu.Unlock()

	list := make([]task.LateCancel, 0, len(l.kept))
	for _, c := range l.kept {
		list = append(list, c)
	}

	return list
}

// keep keeps a cancel until drop. It is on disk when keep returns nil.
func (l *lateCancels) keep(c task.LateCancel) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	_, again := l.kept[lateIDOf(&c)]
	if !again && len(l.kept) >= maxLateCancels {
		return fmt.Errorf("late cancels: the node keeps %d already", len(l.kept))
	}

	line, err := encodeLateCancel(c)
	if err == nil {
		err = l.writeAt(line, l.size)
	}
	if err != nil {
		return fmt.Errorf("late cancels: %w", err)
	}

	l.size += int64(len(line))
	l.kept[lateIDOf(&c)] = c
	if again {
		l.expired++
	}

	return nil
}

// drop forgets a cancel whose attempt's end is recorded. If the file cannot be changed, the next process forgets the
// cancel again.
func (l *lateCancels) drop(id lateID) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if _, kept := l.kept[id]; !kept {
		return nil
	}

	delete(l.kept, id)
	l.expired++

	if len(l.kept) > 0 && l.expired < maxLateLines {
		return nil
	}
	if err := l.rewriteFile(); err != nil {
		return fmt.Errorf("late cancels: %w", err)
	}

	return nil
}

func encodeLateCancel(c task.LateCancel) ([]byte, error) {
	line, err := json.Marshal(c)
	return append(line, '\n'), err
}

// writeAt writes and syncs a part of the file. The caller must hold mu.
func (l *lateCancels) writeAt(b []byte, offset int64) error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}

	_, err = f.WriteAt(b, offset)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Truncate(l.path, offset) // the next line replaces it in any case
	}

	return err
}

// rewriteFile rewrites the file with only the cancels that are kept. The caller must hold mu.
func (l *lateCancels) rewriteFile() error {
	if len(l.kept) == 0 {
		if err := os.Truncate(l.path, 0); err != nil {
			return err
		}
		l.size, l.expired = 0, 0

		return nil
	}

	var content []byte
	for _, c := range l.kept {
		line, err := encodeLateCancel(c)
		if err != nil {
			return err
		}
		content = append(content, line...)
	}

	tmp := &lateCancels{path: l.path + ".new"}
	if err := os.Remove(tmp.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := tmp.writeAt(content, 0); err != nil {
		return err
	}
	if err := os.Rename(tmp.path, l.path); err != nil {
		return err
	}
	l.size, l.expired = int64(len(content)), 0

	return nil
}

package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// File is a policy in a file. It is safe for concurrent use.
type File struct {
	path  string
	owner uint32 // who may write it, and the directories on the way to it
	log   *zap.Logger

	mu     sync.Mutex
	seen   stamp
	policy *Policy
	err    error
}

// Open reads a policy. An error says why it does not count.
func Open(path string, log *zap.Logger) (*File, error) {
	f := &File{path: path, log: log.Named("policy")}
	_, err := f.Policy()
	return f, err
}

// Policy is what the file says now. An error means that nobody knows: nothing may
// start until the file is right again. It is logged when that begins and ends.
func (f *File) Policy() (*Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := stampOf(f.path)
	if f.seen.settled && now.same(f.seen) {
		return f.policy, f.err
	}
	had, failed := f.policy, f.err
	f.policy, f.err = f.read()
	switch {
	case f.err != nil && (failed == nil || failed.Error() != f.err.Error()):
		f.log.Error("the policy cannot be read: nothing starts on this node until it can", zap.String("file", f.path), zap.Error(f.err))
	case f.err == nil && (failed != nil || had != nil && !now.same(f.seen)):
		f.log.Info("read the policy", zap.String("file", f.path))
	}
	f.seen = now
	return f.policy, f.err
}

// stamp tells one content of a file from another, without reading it.
type stamp struct {
	dev, ino, size int64
	changed        syscall.Timespec
	there          bool
	settled        bool // a later change has another stamp
}

// grain is how far apart two changes of a file must be to be told apart.
const grain = 50 * time.Millisecond

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{dev: int64(st.Dev), ino: int64(st.Ino), size: st.Size, changed: st.Ctim, there: true,
		settled: time.Since(time.Unix(st.Ctim.Unix())) > grain}
}

func (s stamp) same(o stamp) bool {
	s.settled, o.settled = false, false
	return s == o
}

const maxFile = 1 << 20

func (f *File) read() (*Policy, error) {
	if !filepath.IsAbs(f.path) {
		return nil, fmt.Errorf("policy: %s is not an absolute path", f.path)
	}
	real, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	for dir := filepath.Dir(real); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err == nil {
			err = f.guarded(info)
		}
		if err != nil {
			return nil, fmt.Errorf("policy: directory %s %w", dir, err)
		}
		if dir == "/" {
			break
		}
	}
	file, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil {
		err = f.guarded(info)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is not a regular file")
	}
	if err != nil {
		return nil, fmt.Errorf("policy: %s %w", real, err)
	}
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("policy: %w", err)
	case len(b) > maxFile:
		return nil, fmt.Errorf("policy: %s has more than %d bytes", f.path, maxFile)
	}
	p, err := parse(f.path, b)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return p, nil
}

// parse reads a policy strictly. What says nothing is refused, a field without a
// value as well as a file: it would allow all, and was meant to say something.
func parse(path string, b []byte) (*Policy, error) {
	var fields map[string]json.RawMessage
	p := &Policy{}
	err := manifest.Checked(path, b, &fields, func() error {
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if string(fields[name]) == "null" {
				return task.Invalid(task.CodeRequired, name, "has no value: leave it out, or say what is allowed; nothing is []")
			}
		}
		return nil
	})
	if err == nil && fields == nil {
		err = fmt.Errorf("%s is empty; a policy that allows all is {}", path)
	}
	if err == nil {
		err = manifest.Checked(path, b, p, p.Validate)
	}
	return p, err
}

// guarded reports whether nobody but the owner, or root, can change a file, or what
// is in a directory. In a sticky directory others can add, but not replace.
func (f *File) guarded(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("has no owner")
	case st.Uid != 0 && st.Uid != f.owner:
		return fmt.Errorf("belongs to user %d, and has to belong to root", st.Uid)
	case info.Mode().Perm()&0o022 != 0 && !(info.IsDir() && info.Mode()&fs.ModeSticky != 0):
		return fmt.Errorf("can be written by others than root (mode %04o)", info.Mode().Perm())
	}
	return nil
}

// words is an error of the file system without the call and the path.
func words(err error) string {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err.Error()
	}
	return err.Error()
}

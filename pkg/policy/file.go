package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// File is a policy in a file, which is read again when it has changed. It is safe for concurrent use.
type File struct {
	path  string
	owner uint32 // the user who, besides root, may write to it and to the directories on its path; 0 except in tests
	log   *zap.Logger

	mu     sync.Mutex
	seen   stamp     // the stamp of the file when it was last read
	read   time.Time // when it was last read
	policy *Policy   // the result of that, or err
	err    error
}

// recheckAfter is the age at which a policy is read again even if its stamp is unchanged. The stamp does not
// show who may write to the directories on its path.
const recheckAfter = 5 * time.Second

// Open reads a policy. It returns the File together with an error if the policy is not valid now.
func Open(path string, log *zap.Logger) (*File, error) {
	f := &File{path: path, log: log.Named("policy")}
	_, err := f.Policy()
	return f, err
}

// Policy returns the current policy. An error means that it cannot be read or is not valid; nothing may
// start until that is corrected. The beginning and the end of that state are logged.
func (f *File) Policy() (*Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := stampOf(f.path)
	if f.seen.settled && now.sameFile(f.seen) && time.Since(f.read) < recheckAfter {
		return f.policy, f.err
	}

	had, failed := f.policy, f.err
	f.policy, f.err = f.loadPolicy()
	f.read = time.Now()
	switch {
	case f.err != nil && (failed == nil || failed.Error() != f.err.Error()):
		f.log.Error("cannot read the policy; this node starts no runs", zap.String("file", f.path), zap.Error(f.err))
	case f.err == nil && (failed != nil || had != nil && !now.sameFile(f.seen)):
		f.log.Info("loaded the policy", zap.String("file", f.path))
	}

	f.seen = now

	return f.policy, f.err
}

// stamp identifies the contents of a file without reading them.
type stamp struct {
	dev, ino, size int64
	changed        syscall.Timespec // ctime
	there          bool             // the file exists
	settled        bool             // a later change will have another stamp
}

// fileTimePrecision is the time after which a further change of a file is certain to have another ctime.
const fileTimePrecision = 50 * time.Millisecond

// stampOf returns the stamp of a file. It is the zero stamp if the file does not exist.
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
		settled: time.Since(time.Unix(st.Ctim.Unix())) > fileTimePrecision}
}

// sameFile reports whether two stamps are equal, whether or not they are settled.
func (s stamp) sameFile(o stamp) bool {
	s.settled, o.settled = false, false
	return s == o
}

// maxFile is the maximum size of a policy file in bytes.
const maxFile = 1 << 20

// loadPolicy reads the file and checks who can write to it.
func (f *File) loadPolicy() (*Policy, error) {
	real, err := filetrust.Resolve(f.path, f.owner)
	if err != nil {
		return nil, err
	}

	file, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", real, errorText(err))
	}

	defer file.Close()

	// Check the open file, so that it cannot be replaced between the check and the read.
	info, err := file.Stat()
	if err == nil {
		err = filetrust.Check(info, f.owner)
	}

	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is not a regular file")
	}

	if err != nil {
		return nil, fmt.Errorf("%s %w", real, err)
	}

	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %s", real, errorText(err))
	case len(b) > maxFile:
		return nil, fmt.Errorf("%s is larger than %d bytes", f.path, maxFile)
	}

	return parsePolicy(f.path, b)
}

// parsePolicy parses a policy strictly. It rejects an empty file and fields without a
// value, because they would allow everything although the author probably wanted to restrict something.
func parsePolicy(path string, b []byte) (*Policy, error) {
	var fields map[string]json.RawMessage
	p := &Policy{}

	err := manifest.Checked(path, b, &fields, func() error { return checkValues("", fields) })
	if err == nil && fields == nil {
		err = fmt.Errorf("%s is empty; to allow everything, write {}", path)
	}

	if err == nil {
		err = manifest.Checked(path, b, p, func() error { return cmp.Or(p.Validate(), p.checkLimit(fields["limits"])) })
	}

	return p, err
}

// checkValues returns an error for a field without a value.
func checkValues(at string, fields map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if string(fields[name]) == "null" {
			return task.Invalid(task.CodeRequired, at+name, "has no value: remove it, or list what is allowed; [] allows nothing")
		}

		var inner map[string]json.RawMessage
		if json.Unmarshal(fields[name], &inner) == nil { // otherwise it has no fields
			if err := checkValues(at+name+".", inner); err != nil {
				return err
			}
		}
	}

	return nil
}

// checkLimit returns an error for a limit with a value that means no limit. given is the field limits of the file.
func (p *Policy) checkLimit(given json.RawMessage) error {
	var said, kept map[string]json.RawMessage
	b, err := json.Marshal(p.Limits) // omits values that mean no limit
	if err == nil && given != nil {
		err = errors.Join(json.Unmarshal(given, &said), json.Unmarshal(b, &kept))
	}

	for _, name := range slices.Sorted(maps.Keys(said)) {
		if _, ok := kept[name]; !ok && err == nil {
			return task.Invalid(task.CodeOutOfRange, "limits."+name, "%s is not a limit: remove it, or set a limit", said[name])
		}
	}

	return err
}

// errorText returns the message of an error of package fs without the operation and the path.
func errorText(err error) string {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err.Error()
	}
	return err.Error()
}

package spool

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/wake"
)

// Watch tells when there may be more to read of an attempt's output: after it has
// begun, written or ended; woken has one slot, so that whoever is slow to look holds
// nothing up, and sees all when it looks. An attempt that has not begun here, and one
// that has ended, may be watched as well. stop must be called, once.
//
// Open and Active that are called after Watch miss nothing: what they do not show is
// told. An attempt that is not Active any more has written its last byte.
func (s *Spool) Watch(namespace, name, run string, attempt int) (woken <-chan struct{}, stop func(), err error) {
	path, err := s.Path(namespace, name, run, attempt)
	if err != nil {
		return nil, nil, err
	}

	c := wake.NewSignal()
	s.mu.Lock()
	defer s.mu.Unlock()

	s.followers[path] = append(s.followers[path], c)
	if o := s.active[path]; o != nil {
		o.followed.Store(true)
	}

	return c, func() { s.removeFollower(path, c) }, nil
}

func (s *Spool) removeFollower(path string, c wake.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()

	left := slices.DeleteFunc(s.followers[path], func(f wake.Signal) bool { return f == c })
	if len(left) > 0 {
		s.followers[path] = left
		return
	}

	delete(s.followers, path)

	if o := s.active[path]; o != nil {
		o.followed.Store(false)
	}
}

// activateOutput says that an attempt may write from now on.
func (s *Spool) activateOutput(o *Output) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.active[o.path] = o
	o.followed.Store(len(s.followers[o.path]) > 0)
	s.wakeFollowers(o.path)
}

// retireOutput ends what activate began; size is that of the file.
func (s *Spool) retireOutput(path string, size int64) {
	s.mu.Lock()
	delete(s.active, path)
	s.wakeFollowers(path)
	s.mu.Unlock()

	if s.used.Add(onDisk(size)) > s.cfg.Total {
		s.sweep.Send()
	}
}

// notifyWritten wakes the followers of an attempt that has any.
func (s *Spool) notifyWritten(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeFollowers(path)
}

func (s *Spool) wakeFollowers(path string) {
	for _, c := range s.followers[path] {
		c.Send()
	}
}

package spool

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/wake"
)

// Watch returns a channel that receives when there may be more to read of an attempt's output: after the attempt has
// begun, written or ended. The channel has one slot, so a slow reader delays
// nothing, and misses nothing if it reads everything each time. The attempt may not have begun here yet, or may
// have ended. The caller must call stop, once.
//
// A caller that calls Open and Active after Watch misses nothing: the channel reports every later
// change. Once Active returns false for an attempt that has begun, its output is complete.
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

// removeFollower ends what Watch began.
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

// activateOutput registers the output of an attempt that may write from now on, and wakes its followers.
func (s *Spool) activateOutput(o *Output) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.active[o.path] = o
	o.followed.Store(len(s.followers[o.path]) > 0)
	s.wakeFollowers(o.path)
}

// retireOutput ends what activateOutput began, and wakes the followers. size is the size of the file in bytes. It
// requests a sweep if the spool is now too large.
func (s *Spool) retireOutput(path string, size int64) {
	s.mu.Lock()
	delete(s.active, path)
	s.wakeFollowers(path)
	s.mu.Unlock()

	if s.used.Add(onDisk(size)) > s.cfg.Total {
		s.sweep.Send()
	}
}

// notifyWritten wakes the followers of an attempt.
func (s *Spool) notifyWritten(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeFollowers(path)
}

// wakeFollowers wakes the followers of an attempt. The caller holds mu.
func (s *Spool) wakeFollowers(path string) {
	for _, c := range s.followers[path] {
		c.Send()
	}
}

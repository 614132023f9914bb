package scheduler

import (
	"runtime"
	"sync"
	"weak"
)

// shared keeps one value for each text as long as somebody uses it.
type shared[T any] struct {
	read func(text string) (*T, error)

	mu     sync.Mutex
	byText map[string]weak.Pointer[T]
}

func newShared[T any](read func(string) (*T, error)) *shared[T] {
	return &shared[T]{read: read, byText: map[string]weak.Pointer[T]{}}
}

// get returns the value of a text, which the caller may reuse.
func (s *shared[T]) get(text []byte) (*T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.byText[string(text)].Value(); v != nil {
		return v, nil
	}
	own := string(text)
	v, err := s.read(own)
	if err != nil {
		return nil, err
	}
	s.byText[own] = weak.Make(v)
	runtime.AddCleanup(v, s.forget, own)
	return v, nil
}

// forget drops a text that nobody uses any more. Somebody may have begun to by now.
func (s *shared[T]) forget(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byText[text].Value() == nil {
		delete(s.byText, text)
	}
}

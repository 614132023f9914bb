package definition

import (
	"runtime"
	"sync"
	"weak"
)

// A Cache keeps one value for each text as long as the value is in use. It holds weak pointers, so the
// garbage collector determines when a value is gone. It is safe for concurrent use.
type Cache[T any] struct {
	read func(text string) (*T, error) // parses a text; its result must depend on the text only

	mu     sync.Mutex
	byText map[string]weak.Pointer[T]
}

// NewCache returns an empty cache of values that read makes of their texts.
func NewCache[T any](read func(string) (*T, error)) *Cache[T] {
	return &Cache[T]{read: read, byText: map[string]weak.Pointer[T]{}}
}

// Get returns the value of a text: the one that is in use, or else a new one. The caller may change text
// afterwards. An error is not cached.
func (c *Cache[T]) Get(text []byte) (*T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if v := c.byText[string(text)].Value(); v != nil {
		return v, nil
	}

	own := string(text)
	v, err := c.read(own)
	if err != nil {
		return nil, err
	}

	c.byText[own] = weak.Make(v)
	runtime.AddCleanup(v, c.forgetUnused, own)

	return v, nil
}

// forgetUnused drops a text whose value was collected, unless a new value of the same text is in use by
// now.
func (c *Cache[T]) forgetUnused(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.byText[text].Value() == nil {
		delete(c.byText, text)
	}
}

// Shared keeps the definitions of all shards of a node. It is safe for concurrent use.
type Shared struct {
	timings  *Cache[Timing]
	policies *Cache[Policy]
}

// NewShared returns a Shared without definitions.
func NewShared() *Shared { return &Shared{NewCache(NewTiming), NewCache(NewPolicy)} }

// ParseTiming returns the timing of a text, see NewTiming. It does not keep text.
func (s *Shared) ParseTiming(text []byte) (*Timing, error) { return s.timings.Get(text) }

// ParsePolicy returns the policy of a text, see NewPolicy. It does not keep text.
func (s *Shared) ParsePolicy(text []byte) (*Policy, error) { return s.policies.Get(text) }

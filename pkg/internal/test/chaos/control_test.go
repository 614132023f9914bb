package chaos_test

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// control is the current environment of a daemon. The test writes it to a file, which the daemon reads many times a
// second.
type control struct {
	// Offset moves the wall clock. Drift makes it run faster from Since on, by that many seconds a second.
	Offset time.Duration `json:"offset,omitempty"`
	Drift  float64       `json:"drift,omitempty"`
	Since  time.Time     `json:"since,omitzero"`

	StallWatches bool          `json:"stall_watches,omitempty"` // no watch delivers anything
	LoseAnswers  int           `json:"lose_answers,omitempty"`  // the percentage of writes whose answers are lost
	DelayWrites  int           `json:"delay_writes,omitempty"`  // the percentage of writes that fail and are delivered later
	DelayBy      time.Duration `json:"delay_by,omitempty"`      // the maximum delay of these
	CutPeers     bool          `json:"cut_peers,omitempty"`     // other nodes cannot be reached
}

const controlEvery = 25 * time.Millisecond

// write replaces the file atomically, so that its reader never sees a part of it.
func (c control) write(path string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("control file: %w", err)
	}

	return os.Rename(path+".new", path)
}

// controls is the daemon's view of its control file.
type controls struct {
	mu      sync.Mutex
	now     control
	changed chan struct{}
}

func followControls(path string) *controls {
	c := &controls{changed: make(chan struct{})}
	c.read(path)
	go func() {
		for range time.Tick(controlEvery) {
			c.read(path)
		}
	}()

	return c
}

// read applies the content of the file. A file that cannot be read, for example because the daemon has no
// descriptors left, changes nothing.
func (c *controls) read(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}

	var next control
	if json.Unmarshal(b, &next) != nil {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if next != c.now {
		c.now = next
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// get returns the current values, and a channel that is closed when they change.
func (c *controls) get() (control, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.changed
}

// until waits until a condition holds. It returns false if done is closed first.
func (c *controls) until(done <-chan struct{}, claim func(control) bool) bool {
	for {
		now, changed := c.get()
		if claim(now) {
			return true
		}

		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

package kv

import "time"

// Doubts are the keys that a list has otherwise than a watch had told: what happened to them is on its way, and comes as an
// echo (see Batch), or the watch has lost it. The zero value has none. It is one goroutine's.
type Doubts struct {
	keys map[string]doubt
}

type doubt struct {
	first int64 // the first revision that explains it
	since time.Time
}

// Add doubts a key until the watch tells of it at revision first or later.
func (d *Doubts) Add(key string, first int64) {
	if d.keys == nil {
		d.keys = map[string]doubt{}
	}
	d.keys[key] = doubt{first, time.Now()}
}

// Echo takes what the watch tells after a list has told it.
func (d *Doubts) Echo(key string, revision int64) {
	if known, ok := d.keys[key]; ok && revision >= known.first {
		delete(d.keys, key)
	}
}

// Clear forgets all: a new watch begins, which tells of none of them.
func (d *Doubts) Clear() { d.keys = nil }

// Lost takes out those that are older than patience, and returns how many they were.
func (d *Doubts) Lost(patience time.Duration) (n int) {
	for key, known := range d.keys {
		if time.Since(known.since) >= patience {
			delete(d.keys, key)
			n++
		}
	}

	return n
}

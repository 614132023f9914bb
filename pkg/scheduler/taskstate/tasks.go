package taskstate

import (
	"hash/maphash"
	"iter"
)

// Tasks are the tasks of a shard by their full names. The zero value is empty and ready to use.
//
// The keys are hashes of the names, because each task has its name already. A map with names as keys takes 18 bytes more
// for each task: a string, and its share of the slots that a map leaves free.
type Tasks struct {
	byHash map[uint64]*Task
	// collided holds, by name, tasks whose hash another task had when they were added. It is nearly always empty.
	collided map[string]*Task

	hash func(name string) uint64 // nil: hashName. Tests set it to let names collide
}

// nameSeed makes the hashes unpredictable, so that nobody can choose names that collide.
var nameSeed = maphash.MakeSeed()

// hashName returns the hash of a name.
func hashName(name string) uint64 { return maphash.String(nameSeed, name) }

// hashOf returns the key of a name.
func (l *Tasks) hashOf(name string) uint64 {
	if l.hash != nil {
		return l.hash(name)
	}
	return hashName(name)
}

// Get returns the task with a full name, or nil.
func (l *Tasks) Get(name string) *Task {
	if t := l.byHash[l.hashOf(name)]; t != nil && t.FullName() == name {
		return t
	}
	return l.collided[name]
}

// Put adds a task, in place of another one of its name. It must be called again after Text has changed.
func (l *Tasks) Put(t *Task) {
	name := t.FullName()
	hash := l.hashOf(name)

	// A task stays where it is, also if the hash is free by now. Otherwise it would be in both maps.
	first := l.byHash[hash]
	if l.collided[name] != nil || first != nil && first.FullName() != name {
		if l.collided == nil {
			l.collided = map[string]*Task{}
		}
		l.collided[name] = t // the key becomes a part of the new text, so that the old one can be freed

		return
	}

	if l.byHash == nil {
		l.byHash = map[uint64]*Task{}
	}
	l.byHash[hash] = t
}

// Delete removes the task with a full name, if there is one.
func (l *Tasks) Delete(name string) {
	hash := l.hashOf(name)
	if t := l.byHash[hash]; t != nil && t.FullName() == name {
		delete(l.byHash, hash)
		return
	}

	delete(l.collided, name)
}

// Len returns the number of tasks.
func (l *Tasks) Len() int { return len(l.byHash) + len(l.collided) }

// All returns all tasks, in no particular order. The caller may delete tasks meanwhile.
func (l *Tasks) All() iter.Seq[*Task] {
	return func(yield func(*Task) bool) {
		for _, t := range l.byHash {
			if !yield(t) {
				return
			}
		}

		for _, t := range l.collided {
			if !yield(t) {
				return
			}
		}
	}
}

package kv

// Entered returns how many transactions have entered the lock table of b so far. The queue metric counts a
// transaction slightly earlier.
func (b *Batcher) Entered() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.turns.seq
}

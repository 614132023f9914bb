package kv

// Entered returns how many transactions have taken their place in b's order so far. A transaction counts as queued a
// moment before that.
func (b *Batcher) Entered() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.turns.seq
}

package ui

import "sync"

// together calls functions at the same time, and waits for all of them. So a page waits only for the slowest of its
// questions. A panic in one of them goes on in the caller.
func together(calls ...func()) {
	var all sync.WaitGroup
	panics := make(chan any, len(calls))

	for _, call := range calls {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panics <- p
				}
			}()
			call()
		})
	}

	all.Wait()

	select {
	case p := <-panics:
		panic(p)
	default:
	}
}

// Package callgroup runs calls of one caller concurrently. A panic in one of them propagates to the caller.
//
// A panic ends the process unless its own goroutine recovers it. The servers of the API and of the pages recover panics only
// in the goroutine of the request. So code that serves requests starts other goroutines only with this package: a fault in one
// request must end this request, and not the node with its runs.
//
// The caller waits for all calls before it panics, so a call must not wait for a value that only another call would send.
// If it does, use WithContext, whose context ends with the first panic.
//
// The package is small because clients and servers use it, which share no other package below them.
package callgroup

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Panic describes the panic of a call, with the stack of its goroutine.
type Panic struct {
	Value any // the argument of panic
	Stack []byte
}

// Error implements error. It contains the stack.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n\n%s", p.Value, p.Stack) }

// Origin returns the value of a recovered panic, and the stack where it began. It must be called by the deferred function that
// recovered the panic.
func Origin(recovered any) (value any, stack []byte) {
	if p, ok := recovered.(*Panic); ok {
		return p.Value, p.Stack
	}

	return recovered, debug.Stack()
}

// Catch calls f and returns its panic, or nil if f returned.
func Catch(f func()) (p *Panic) {
	defer func() {
		if r := recover(); r != nil {
			value, stack := Origin(r)
			p = &Panic{Value: value, Stack: stack}
		}
	}()

	f()

	return nil
}

// Start calls f in a goroutine and does not wait for it. If f panics, the goroutine calls onPanic, which must end the operation
// that f belongs to.
func Start(f func(), onPanic func(*Panic)) {
	go func() {
		if p := Catch(f); p != nil {
			onPanic(p)
		}
	}()
}

// Run calls functions concurrently and waits for all of them.
func Run(calls ...func()) {
	g := New()
	for _, call := range calls {
		g.Go(func() error { call(); return nil })
	}

	_ = g.Wait()
}

// Group is an errgroup.Group whose Wait panics if one of its calls has panicked.
type Group struct {
	calls    *errgroup.Group
	panicked atomic.Pointer[Panic]
}

// New returns a Group without a context.
func New() *Group { return &Group{calls: &errgroup.Group{}} }

// WithContext returns a Group, and a context that ends with the first error or panic of a call, or when Wait returns.
func WithContext(ctx context.Context) (*Group, context.Context) {
	calls, ctx := errgroup.WithContext(ctx)
	return &Group{calls: calls}, ctx
}

// SetLimit limits the number of calls that run at the same time.
func (g *Group) SetLimit(n int) { g.calls.SetLimit(n) }

// Go calls f in a goroutine.
func (g *Group) Go(f func() error) {
	g.calls.Go(func() (err error) {
		if p := Catch(func() { err = f() }); p != nil {
			g.panicked.CompareAndSwap(nil, p)
			return p
		}

		return err
	})
}

// Wait waits for all calls, and returns the first error. If a call has panicked, it panics with the first *Panic.
func (g *Group) Wait() error {
	err := g.calls.Wait()
	if p := g.panicked.Load(); p != nil {
		panic(p)
	}

	return err
}

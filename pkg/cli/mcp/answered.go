package mcp

import (
	"context"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// answeredTransport reports the end of the input only when all calls before it are answered. The SDK ends the session at once, and
// drops the answers of calls that are active. So `carillon mcp < calls` would answer some of them.
//
// When the context of Connect ends, the input ends at once. The SDK then cancels the active calls; it would wait for them otherwise.
type answeredTransport struct{ transport sdk.Transport }

func (t answeredTransport) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.transport.Connect(ctx)
	if err != nil {
		return nil, err
	}

	return &answeredConnection{
		Connection: c, interrupted: ctx.Done(), read: func() (jsonrpc.Message, error) { return c.Read(ctx) },
		active: map[jsonrpc.ID]bool{}, changed: make(chan struct{}, 1),
	}, nil
}

type answeredConnection struct {
	sdk.Connection
	interrupted <-chan struct{}
	read        func() (jsonrpc.Message, error) // until interrupted

	// mu guards active, the calls that were read and not answered yet. It is nil when no answer can be written any more.
	mu      sync.Mutex
	active  map[jsonrpc.ID]bool
	changed chan struct{} // gets a value after active has changed
}

// Read ignores its context, which the SDK never cancels.
func (c *answeredConnection) Read(context.Context) (jsonrpc.Message, error) {
	msg, err := c.read()
	if err != nil {
		c.waitForAnswers()
		return nil, err
	}

	if r, ok := msg.(*jsonrpc.Request); ok && r.IsCall() {
		c.mu.Lock()
		if c.active != nil {
			c.active[r.ID] = true
		}
		c.mu.Unlock()
	}

	return msg, nil
}

// waitForAnswers waits until no call is active, or no answer can be written any more.
func (c *answeredConnection) waitForAnswers() {
	for {
		c.mu.Lock()
		n := len(c.active)
		c.mu.Unlock()
		if n == 0 {
			return
		}

		select {
		case <-c.changed:
		case <-c.interrupted:
			return
		}
	}
}

func (c *answeredConnection) Write(ctx context.Context, msg jsonrpc.Message) error {
	err := c.Connection.Write(ctx, msg)

	// After an error, the SDK writes nothing more.
	if err != nil {
		c.forget(func() { c.active = nil })
	} else if r, ok := msg.(*jsonrpc.Response); ok {
		c.forget(func() { delete(c.active, r.ID) })
	}

	return err
}

// Close also ends the wait for answers: the SDK closes a connection only when it writes nothing more.
func (c *answeredConnection) Close() error {
	c.forget(func() { c.active = nil })
	return c.Connection.Close()
}

// forget changes active, and wakes who waits for that.
func (c *answeredConnection) forget(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()

	select {
	case c.changed <- struct{}{}:
	default:
	}
}

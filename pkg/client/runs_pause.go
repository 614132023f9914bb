package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// PauseRun asks the node of a run to have it stand still: State is task.Paused when
// it does. One that has not started will not, until it is resumed. Code
// CodeNotRunning if the run waits in the queue, CodeAlreadyEnded if it has ended or
// is about to.
//
// Of a run with parts it asks the nodes of those that are with one now. What comes
// back has each part as it is then: PausedBy says that it was asked. Parts that begin
// later are not paused. CodeNotRunning if no node has a part.
func (c *Client) PauseRun(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return c.turn(ctx, namespace, name, id, "pause")
}

// ResumeRun asks the node of a run to let it go on. That of a run that is not paused
// changes nothing. Its codes are those of PauseRun.
func (c *Client) ResumeRun(ctx context.Context, namespace, name, id string) (task.Run, error) {
	return c.turn(ctx, namespace, name, id, "resume")
}

func (c *Client) turn(ctx context.Context, namespace, name, id, what string) (task.Run, error) {
	var r task.Run
	if err := checkID(id); err != nil {
		return r, err
	}
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "runs", id, what)
	return r, err
}

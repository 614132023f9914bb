package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// AuditLine is a line of an audit's answer: exactly one of its fields is set.
type AuditLine struct {
	Progress *task.AuditProgress `json:"progress,omitempty" doc:"How far it is."`
	Audit    *task.Audit         `json:"audit,omitempty" doc:"What was found; the last line."`
	Error    *Problem            `json:"error,omitempty" doc:"What ended it; the last line."`
}

// Repairs are findings that are to be mended.
type Repairs struct {
	Findings []task.RepairRequest `json:"findings"`
}

// AuditOptions say how an audit is done.
type AuditOptions struct {
	// Pause is the time between the two looks, in whole seconds, 1 to 60; 0 is the server's default.
	Pause time.Duration
	// Tell, if set, hears about once a second how far it is.
	Tell func(task.AuditProgress)
}

// Audit has the server check the cluster against the promises. It takes as long
// as reading everything takes: Config.Timeout bounds the wait for the next word,
// and Pause comes on top.
func (c *Client) Audit(ctx context.Context, o AuditOptions) (task.Audit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := c.timeout + max(o.Pause, time.Minute)
	quiet := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no word of the audit for %s: %w", limit, context.DeadlineExceeded)) })
	defer quiet.Stop()
	q := url.Values{}
	if o.Pause > 0 {
		q.Set("pause", strconv.Itoa(int(o.Pause/time.Second)))
	}
	res, err := c.send(ctx, call{method: http.MethodGet, path: "/v1/audit", query: q, stream: true})
	if err != nil {
		return task.Audit{}, err
	}
	defer res.Body.Close()
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != linesType {
		return task.Audit{}, c.notCarillon(res)
	}
	in := bufio.NewReader(res.Body)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w: %w", err, cause)
			}
			return task.Audit{}, c.failed(err, false)
		}
		quiet.Reset(limit)
		var l AuditLine
		if err := json.Unmarshal(bytes.TrimSpace(line), &l); err != nil {
			return task.Audit{}, c.notCarillon(res)
		}
		switch {
		case l.Audit != nil:
			return *l.Audit, nil
		case l.Error != nil:
			return task.Audit{}, problemError(l.Error)
		case l.Progress != nil && o.Tell != nil:
			o.Tell(*l.Progress)
		}
	}
}

// Repair has the server mend findings, at most 100 at once. The results come in
// their order; after one that failed there are none.
func (c *Client) Repair(ctx context.Context, findings []task.RepairRequest) ([]task.RepairResult, error) {
	var l List[task.RepairResult]
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/audit:repair", body: Repairs{findings}}, &l)
	return l.Items, err
}

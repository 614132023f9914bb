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

// AuditService checks the cluster's records, and repairs them.
type AuditService struct{ conn *connection }

// AuditLine is a line of an audit's answer: exactly one of its fields is set.
type AuditLine struct {
	Progress *task.AuditProgress `json:"progress,omitempty" doc:"The progress of the audit."`
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

// Run has the server check the cluster's records against what Carillon guarantees. It
// takes as long as the server needs to read all records, plus o.Pause. Config.Timeout,
// plus the longer of o.Pause and a minute, bounds the wait for each report of progress.
func (s *AuditService) Run(ctx context.Context, o AuditOptions) (task.Audit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	limit := s.conn.timeout + max(o.Pause, time.Minute)
	quiet := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no word of the audit for %s: %w", limit, context.DeadlineExceeded)) })
	defer quiet.Stop()

	q := url.Values{}

	if o.Pause > 0 {
		q.Set("pause", strconv.Itoa(int(o.Pause/time.Second)))
	}

	res, err := s.conn.sendCall(ctx, call{method: http.MethodGet, path: "/v1/audit", query: q, stream: true})
	if err != nil {
		return task.Audit{}, err
	}

	defer res.Body.Close()

	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != linesType {
		return task.Audit{}, s.conn.notCarillon(res)
	}

	// The answer is a line for each report of progress, then one with the result or with
	// the error that ended the audit. An answer that ends before that was cut off.
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

			return task.Audit{}, s.conn.errorWithoutAnswer(err, false)
		}

		quiet.Reset(limit)

		var l AuditLine
		if err := json.Unmarshal(bytes.TrimSpace(line), &l); err != nil {
			return task.Audit{}, s.conn.notCarillon(res)
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

// Repair has the server repair findings, at most 100 in one call. The results are in
// their order. The server stops at the first repair that fails, so that the findings
// after it have no result.
func (s *AuditService) Repair(ctx context.Context, findings []task.RepairRequest) ([]task.RepairResult, error) {
	var l List[task.RepairResult]
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/audit:repair", body: Repairs{findings}}, &l)

	return l.Items, err
}

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

// AuditService audits the cluster's records and repairs findings.
type AuditService struct{ conn *connection }

// AuditLine is one line of the answer to an audit. Exactly one field is set.
type AuditLine struct {
	Progress *task.AuditProgress `json:"progress,omitempty" doc:"The progress of the audit."`
	Audit    *task.Audit         `json:"audit,omitempty" doc:"The findings; only in the last line."`
	Error    *Problem            `json:"error,omitempty" doc:"The error that ended the audit; only in the last line."`
}

// Repairs is the body of a repair request.
type Repairs struct {
	Findings []task.RepairRequest `json:"findings"`
}

// AuditOptions are the options of an audit.
type AuditOptions struct {
	// Pause is the time between the two reads of a suspicious record, in whole seconds from 1 to 60; 0 means the
	// server's default.
	Pause time.Duration
	// Tell, if set, is called with the progress of the audit about once a second.
	Tell func(task.AuditProgress)
}

// Run makes the server audit the cluster's records against Carillon's guarantees. It takes as long as the
// server needs to read all records, plus o.Pause. Each wait for a progress report is limited to Config.Timeout
// plus the longer of o.Pause and a minute.
func (s *AuditService) Run(ctx context.Context, o AuditOptions) (task.Audit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	limit := s.conn.timeout + max(o.Pause, time.Minute)
	quiet := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no progress of the audit for %s: %w", limit, context.DeadlineExceeded)) })
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

// Repair makes the server repair findings, at most 100 in one call. The results have the order of the findings.
// The server stops at the first repair that fails, so later findings have no result.
func (s *AuditService) Repair(ctx context.Context, findings []task.RepairRequest) ([]task.RepairResult, error) {
	var l List[task.RepairResult]
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/audit:repair", body: Repairs{findings}}, &l)

	return l.Items, err
}

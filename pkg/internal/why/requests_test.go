package why_test

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// requests is a task that sends requests, with an overlap policy.
func requests(overlap string) *world {
	return timed(func(s *task.Spec) {
		s.Overlap = overlap
		s.Action = task.Action{HTTP: &task.HTTP{URL: "https://api.example.com/orders", Method: "POST"}}
	})
}

// unsent makes a run one with attempts that were not sent.
func unsent(r *task.Run) {
	r.Reason, r.Attempt, r.NotBefore, r.NotBeforeBy = task.ReasonTarget, 8, task.At(at("12:00:12")), task.NotBeforeByTarget
	r.Unsent = &task.Unsent{Count: 7, First: task.At(at("11:58:11")), Last: task.At(at("11:59:50")), Node: "n2", Message: "nothing was sent: connection refused"}
}

// Runs of tasks that send requests.
var requestStories = []story{
	{"waits for its target", func() *world { return requests(task.OverlapSkip).run("11:30:00", task.Queued, unsent) }, "11:30", task.VerdictWaiting,
		[]string{"has been waiting for 1m 49s: the target of its request was unreachable or asked to wait: connection refused (7 attempts were not sent since 11:58:11 UTC), " +
			"and the next starts no earlier than 12:00:12 UTC; it will go to n1 if that node has a free slot.",
			"Not sent: 7 attempts, from 2026-03-10 11:58:11.000 UTC to 2026-03-10 11:59:50.000 UTC; they do not count for the retry policy; the last one on n2"}},
	{"waits for its target, after an attempt that counts", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Queued, func(r *task.Run) {
			unsent(r)
			r.Attempt, r.Attempts = 9, []task.Attempt{{Attempt: 1, State: task.Failed, Reason: task.ReasonAnswer, HTTPStatus: 500, Node: "n1", EndedAt: task.At(at("11:30:05"))}}
		})
	}, "11:30", task.VerdictWaiting, []string{"(7 attempts were not sent since 11:58:11 UTC); attempt 1 failed on n1, and the next starts", "Attempt: 1 on n1 failed (response), HTTP status 500"}},
	{"waits for its target, and no node is left", func() *world {
		w := requests(task.OverlapSkip).run("11:30:00", task.Queued, func(r *task.Run) { unsent(r); r.NotBefore = task.At(at("11:59:55")) })
		w.Nodes = nil
		return w
	}, "11:30", task.VerdictWaiting, []string{"no node is available"}},
	{"waits while another run waits for the target", func() *world {
		return requests(task.OverlapAllow).run("10:30:00", task.Queued, unsent).run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonTarget })
	}, "11:30", task.VerdictWaiting, []string{"has been waiting for 30m: the run of Tue 10 Mar 2026 10:30 UTC waits for the target of its request: connection refused (7 attempts were not sent since 11:58:11 UTC)."}},
	{"waits while another run tries the target again", func() *world {
		return requests(task.OverlapAllow).run("11:30:00", task.Queued, func(r *task.Run) { r.Reason = task.ReasonTarget })
	}, "11:30", task.VerdictWaiting, []string{"the target of the task's requests was unreachable or asked to wait, and another run tries it again."}},
	{"would wait behind a run that waits for the target", func() *world { return requests(task.OverlapAllow).run("11:30:00", task.Queued, unsent) }, "12:30", task.VerdictWillRun,
		[]string{"the run of Tue 10 Mar 2026 11:30 UTC waits for the target of its request (connection refused), and if that does not change, this one waits."}},
	{"would be skipped for a run that waits for the target", func() *world { return requests(task.OverlapSkip).run("11:30:00", task.Queued, unsent) }, "12:30", task.VerdictWillRun,
		[]string{"a run is waiting for its next attempt, and if it still is then, this one is skipped"}},
	{"was never sent", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Failed, func(r *task.Run) {
			unsent(r)
			r.Reason, r.StartedAt, r.LatenessMS, r.Message = task.ReasonUnsent, task.Time{}, nil, "nothing was sent: no such host"
		})
	}, "11:30", task.VerdictFailed, []string{"failed: its request was not sent: no such host; before that, 7 attempts were not sent since Tue 10 Mar 2026 11:58:11 UTC."}},
	{"succeeded after attempts that were not sent", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Succeeded, func(r *task.Run) {
			unsent(r)
			r.Reason, r.StartedAt, r.EndedAt = "", task.At(at("12:00:12")), task.At(at("12:00:13"))
		})
	}, "11:30", task.VerdictSucceeded, []string{"succeeded after 1s, on attempt 8, after 7 attempts that were not sent."}},
	{"ran on the node on which the last attempt was not sent", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Succeeded, func(r *task.Run) { unsent(r); r.Reason, r.Node = "", "n2" })
	}, "11:30", task.VerdictSucceeded, []string{"where attempt 7 had failed, because no other matching node had a free slot"}},
	{"got a response that is no success", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Failed, func(r *task.Run) {
			r.Reason, r.Message, r.HTTPStatus = task.ReasonAnswer, "HTTP 500 Internal Server Error", 500
		})
	}, "11:30", task.VerdictFailed, []string{"ran on n1 and failed: its target's response does not count as success (HTTP 500 Internal Server Error).", "HTTP status: 500"}},
	{"was sent and not answered, and may be repeated", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Failed, func(r *task.Run) { r.Reason, r.Message = task.ReasonUnanswered, "connection reset" })
	}, "11:30", task.VerdictFailed, []string{"failed: its request was sent, but no complete response arrived (connection reset)."}},
	{"was sent and not answered, and must not be repeated", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Lost, func(r *task.Run) { r.Reason, r.Message = task.ReasonUnanswered, "connection reset" })
	}, "11:30", task.VerdictLost, []string{"was lost: its request was sent, but no complete response arrived (connection reset)."}},
	{"was lost with its node", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Lost, func(r *task.Run) {
			r.Reason, r.Message = task.ReasonNodeLost, task.Assigned{Action: task.Action{HTTP: &task.HTTP{}}}.LostMessage()
		})
	}, "11:30", task.VerdictLost, []string{"was lost: its node was lost while it ran (its request may have reached its target)."}},
	{"its certificate was not trusted", func() *world {
		return requests(task.OverlapSkip).run("11:30:00", task.Failed, func(r *task.Run) { r.Reason, r.Message = task.ReasonTLS, "certificate has expired" })
	}, "11:30", task.VerdictFailed, []string{"failed: the certificate of its target could not be verified (certificate has expired)."}},
	{"skipped while the target is down", func() *world {
		return requests(task.OverlapSkip).run("10:30:00", task.Queued, func(r *task.Run) { unsent(r); r.Unsent.First = task.At(at("10:30:01")) }).
			run("11:30:00", task.Skipped, func(r *task.Run) {
				r.Reason, r.EndedAt = task.ReasonOverlap, task.At(at("11:30:00").Add(time.Millisecond))
			})
	}, "11:30", task.VerdictSkipped, []string{"was skipped: another run of the task was active (the run of Tue 10 Mar 2026 10:30 UTC)",
		"Active then: the run of Tue 10 Mar 2026 10:30 UTC, from Tue 10 Mar 2026 10:30:01 UTC, still active"}},
}

package task

import (
	"strconv"
	"strings"
	"time"
)

// MaxLedger is the longest time for which a ledger remembers ticks.
const MaxLedger = Duration(90 * 24 * time.Hour)

// DefaultLedger is for how long a ledger remembers ticks if neither the task nor the cluster says otherwise.
const DefaultLedger = Duration(30 * 24 * time.Hour)

// MaxKeepFor is the longest History.KeepFor.
const MaxKeepFor = Duration(90 * 24 * time.Hour)

// MaxHistory is how many records History.KeepFor keeps of a task at most, however young they are.
const MaxHistory = 10_000

// LedgerKind is what a line of a ledger describes.
type LedgerKind string

// The kinds of lines.
const (
	// LedgerSucceeded is a span of ticks whose runs succeeded. Ticks from First to Last that other lines or the history
	// name are not among them. The others are, if Count is their number: see package ledger.
	LedgerSucceeded LedgerKind = "succeeded"
	// LedgerException is one tick whose run did not succeed, or a range of skipped or missed ticks.
	LedgerException LedgerKind = "exception"
	// LedgerHour is the number of ticks of an hour that did not succeed and have no line of their own.
	LedgerHour LedgerKind = "hour"
	// LedgerRequested is a run that somebody requested. It belongs to no tick.
	LedgerRequested LedgerKind = "requested"
	// LedgerRequestedMore is the number of further requested runs, by how they ended.
	LedgerRequestedMore LedgerKind = "requested_more"
	// LedgerUnreadable is the number of records that could not be read when they were deleted.
	LedgerUnreadable LedgerKind = "unreadable"
)

// LedgerLine is what a ledger records of one tick, of several ticks, or of a requested run, after their records were
// deleted from the history.
type LedgerLine struct {
	Kind  LedgerKind `json:"kind" doc:"What the line is about."`
	First Time       `json:"first" doc:"The first tick; of an hour, its beginning; of a requested run, the time of the request."`
	Last  Time       `json:"last" doc:"The last tick; equal to first if there is only one."`
	Count int64      `json:"count" doc:"How many ticks or runs the line describes."`

	// For single ticks, ranges and requested runs.
	State   State  `json:"state,omitempty" doc:"How the runs ended, or that the ticks were skipped or missed."`
	Reason  string `json:"reason,omitempty" doc:"Why it did not succeed: a reason, exit N for an exit code, signal NAME, or HTTP N for a status."`
	Attempt int    `json:"attempt,omitempty" doc:"The number of the last attempt."`
	Node    string `json:"node,omitempty" doc:"The node of the run."`
	Run     string `json:"run,omitempty" doc:"The id of the run; empty for ranges of ticks."`
	Late    bool   `json:"late_result,omitempty" doc:"A result of the run arrived after it had been declared lost."`

	// For spans of successes.
	MeanMS        int64 `json:"mean_ms,omitempty" doc:"The mean duration in milliseconds."`
	MaxMS         int64 `json:"max_ms,omitempty" doc:"The longest duration in milliseconds."`
	MaxLatenessMS int64 `json:"max_lateness_ms,omitempty" doc:"The latest start after a tick was due, in milliseconds."`

	// Causes counts the ticks of an hour, and further requested runs, by state and reason: failed: exit 1.
	Causes map[string]int64 `json:"causes,omitempty" doc:"Why, with the number of ticks for each reason."`

	// Of an hour, Named contains the earliest ticks. The other Count-len(Named) ticks lie between HiddenFirst and HiddenLast,
	// inclusive. Ticks outside are not among them.
	Named       []Time `json:"named,omitempty" doc:"The earliest ticks of an hour that did not succeed, at most 12. Which state each had is not kept."`
	HiddenFirst Time   `json:"hidden_first,omitzero" doc:"The ticks of the hour that did not succeed and are not named lie between hidden_first and hidden_last."`
	HiddenLast  Time   `json:"hidden_last,omitzero" doc:"The last tick among those that the line does not list."`
}

// ParseLedgerReason splits the reason in a ledger, such as "exit 1", into what the record of a run has: a reason, and an exit
// code, a signal or a status.
func ParseLedgerReason(text string) (reason string, exitCode *int, signal string, httpStatus int) {
	kind, detail, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(detail)

	switch {
	case kind == "exit" && err == nil:
		return ReasonExit, &n, "", 0
	case kind == "signal" && detail != "":
		return ReasonSignal, nil, detail, 0
	case kind == "HTTP" && err == nil:
		return ReasonAnswer, nil, "", n
	}

	return text, nil, "", 0
}

package wording

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// OutcomesText returns the number of runs, and how they ended.
func OutcomesText(s client.TaskStats) string {
	var parts []string
	for _, state := range task.States() {
		if n := s.Outcomes[state]; n > 0 {
			parts = append(parts, Grouped(n)+" "+strings.ReplaceAll(string(state), "_", " "))
		}
	}

	text := Grouped(s.Runs)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}

	return text
}

// Percent formats a share. Only a share of 1 is 100 %.
func Percent(share float64) string {
	const almost = 0.9995
	if share < 1 && share >= almost {
		share = 0.999
	}

	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*share), ".0") + "%"
}

// QuantilesText formats a distribution; "" if there is none.
func QuantilesText(q *client.Quantiles, all bool) string {
	if q == nil {
		return ""
	}

	text := func(ms int64) string { return task.Duration(time.Duration(ms) * time.Millisecond).Approximate() }
	if !all {
		return fmt.Sprintf("p50 %s, p99 %s, max %s", text(q.P50MS), text(q.P99MS), text(q.MaxMS))
	}

	return fmt.Sprintf("p50 %s, p95 %s, p99 %s, max %s", text(q.P50MS), text(q.P95MS), text(q.P99MS), text(q.MaxMS))
}

// SuccessfulText describes how long successful runs took, those of the ledger included; "" if the ledger counts none of
// them, because then the quantiles tell more.
func SuccessfulText(s client.TaskStats) string {
	if s.Ledger == nil || s.Successful == nil {
		return ""
	}

	text := func(ms int64) string { return task.Duration(time.Duration(ms) * time.Millisecond).Approximate() }

	return fmt.Sprintf("mean %s, max %s, %s late at most", text(s.Successful.MeanMS), text(s.Successful.MaxMS), text(s.Successful.MaxLatenessMS))
}

// FailureText describes why runs did not succeed, without their number.
func FailureText(f client.FailureCount) string {
	return RunResult(task.Run{State: f.State, Reason: f.Reason, ExitCode: f.ExitCode, Signal: f.Signal, HTTPStatus: f.HTTPStatus}, time.Time{})
}

// ReasonsText returns the number of ticks that did not run, and why; "" if there are none.
func ReasonsText(reasons map[string]int64) string {
	var sum int64
	names := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), strings.Compare(a, b))
	})

	parts := make([]string, len(names))
	for i, name := range names {
		sum += reasons[name]
		parts[i] = fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), reasons[name])
	}

	if sum == 0 {
		return ""
	}

	return fmt.Sprintf("%s: %s", Plural(sum, "tick"), strings.Join(parts, ", "))
}

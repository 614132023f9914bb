package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// formatSpan formats a duration in whole seconds or larger units, because the screen is drawn once a second.
func formatSpan(d time.Duration) string {
	if d < time.Second {
		return "0s"
	}

	return task.Duration(d).Approximate()
}

// formatMillis formats a lateness.
func formatMillis(ms int64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%dms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.1fs", float64(ms)/1000)
	}

	return formatSpan(time.Duration(ms) * time.Millisecond)
}

// formatNumber formats n with thousands separators.
func formatNumber[T int | int64](n T) string { return wording.Grouped(int(n)) }

// formatCount returns a number with its noun: "1 task", "2 tasks".
func formatCount[T int | int64](n T, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatNumber(n) + " " + one + "s"
}

// formatRate formats a count per minute as a rate per second.
func formatRate(perMinute int64) string {
	switch {
	case perMinute == 0:
		return "0/s"
	case perMinute < 600:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(perMinute)/60), ".0") + "/s"
	}

	return formatNumber((perMinute+30)/60) + "/s"
}

var barRunes = []rune("▁▂▃▄▅▆▇█")

// drawBars draws numbers as a row of bars, scaled to the largest one.
func drawBars(list []int64) string {
	var most int64
	for _, n := range list {
		most = max(most, n)
	}

	var b strings.Builder

	for _, n := range list {
		i := 0
		if most > 0 {
			i = int((n*int64(len(barRunes)) - 1) / most)
		}
		b.WriteRune(barRunes[max(i, 0)])
	}

	return b.String()
}

// stateSymbol is the symbol and the style of a state. withoutSymbols replaces the symbol on terminals that lack it.
type stateSymbol struct {
	sign  string
	style Style
}

var stateSymbols = map[task.State]stateSymbol{
	task.Queued:     {"…", Cyan},
	task.Dispatched: {"▸", Cyan},
	task.Running:    {"▶", Cyan},
	task.Paused:     {"‖", Yellow},
	task.Succeeded:  {"✓", Green},
	task.Failed:     {"✗", Red},
	task.TimedOut:   {"✗", Red},
	task.Lost:       {"?", Red},
	task.Cancelled:  {"⊘", Yellow},
	task.Skipped:    {"↷", Yellow},
	task.Missed:     {"○", Yellow},
}

// withoutSymbols replaces symbols that some terminals lack.
func withoutSymbols(s string) string {
	return strings.NewReplacer("·", "-", "–", "-", "…", "~", "→", "->", "─", "-", "✓", "+", "✗", "x", "○", "o", "❄", "*", "◐", "o", "▶", ">", "‖", "=", "▸", ">",
		"⊘", "/", "↷", "-", "×", "x", "⏎", "enter", "▁", "_", "▂", ".", "▃", ".", "▄", ":", "▅", ":", "▆", "|", "▇", "|", "█", "#", "░", ".", "↑", "^", "↓", "v").Replace(s)
}

// progressWords describes the progress that a run has reported, or returns "".
func progressWords(p *task.Progress) string {
	const long = 10

	if p == nil || p.Percent == nil {
		return ""
	}

	percent := min(max(*p.Percent, 0), 100)
	n := int(percent / 100 * long)

	return strings.TrimSpace(fmt.Sprintf("%s%s %.0f%% %s", strings.Repeat("█", n), strings.Repeat("░", long-n), percent, stripControls(p.Text)))
}

package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// span returns a duration in whole seconds or larger units, since the screen is drawn
// once a second.
func span(d time.Duration) string {
	if d < time.Second {
		return "0s"
	}

	return task.Duration(d).Approximate()
}

// millis is a lateness.
func millis(ms int64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%dms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.1fs", float64(ms)/1000)
	}

	return span(time.Duration(ms) * time.Millisecond)
}

// number is n with its thousands apart.
func number[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural is "1 task", "2 tasks".
func plural[T int | int64](n T, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + one + "s"
}

// rate is how many in a second, of so many in a minute.
func rate(perMinute int64) string {
	switch {
	case perMinute == 0:
		return "0/s"
	case perMinute < 600:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(perMinute)/60), ".0") + "/s"
	}

	return number((perMinute+30)/60) + "/s"
}

var bars = []rune("▁▂▃▄▅▆▇█")

// bar draws numbers as a line of bars, the highest as high as can be.
func bar(list []int64) string {
	var most int64
	for _, n := range list {
		most = max(most, n)
	}

	var b strings.Builder

	for _, n := range list {
		i := 0
		if most > 0 {
			i = int((n*int64(len(bars)) - 1) / most)
		}
		b.WriteRune(bars[max(i, 0)])
	}

	return b.String()
}

// face is how a state looks. Where there are no symbols, plain has letters for them.
type face struct {
	sign  string
	style Style
}

var faces = map[task.State]face{
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

func words(s string) string { return strings.ReplaceAll(s, "_", " ") }

// result says how a run ended.
func result(state task.State, reason string, exit *int) string {
	switch {
	case state == task.Failed && exit != nil && reason != task.ReasonShutdown: // then it was told to end
		return fmt.Sprintf("exit %d", *exit)
	case state == task.Failed && reason != "" && reason != task.ReasonExit:
		return words(reason)
	case state == task.Succeeded || reason == "" || state == task.TimedOut:
		return words(string(state))
	}

	return words(string(state)) + ": " + words(reason)
}

// plain is text without the symbols that some terminals lack.
func plain(s string) string {
	return strings.NewReplacer("·", "-", "–", "-", "…", "~", "→", "->", "─", "-", "✓", "+", "✗", "x", "○", "o", "❄", "*", "▶", ">", "‖", "=", "▸", ">",
		"⊘", "/", "↷", "-", "×", "x", "⏎", "enter", "▁", "_", "▂", ".", "▃", ".", "▄", ":", "▅", ":", "▆", "|", "▇", "|", "█", "#", "░", ".", "↑", "^", "↓", "v").Replace(s)
}

// progressWords are how far a run is, as it says itself; "" if it does not.
func progressWords(p *task.Progress) string {
	const long = 10

	if p == nil || p.Percent == nil {
		return ""
	}

	percent := min(max(*p.Percent, 0), 100)
	n := int(percent / 100 * long)

	return strings.TrimSpace(fmt.Sprintf("%s%s %.0f%% %s", strings.Repeat("█", n), strings.Repeat("░", long-n), percent, clean(p.Text)))
}

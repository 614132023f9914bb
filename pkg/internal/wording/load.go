package wording

import (
	"fmt"
	"math"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
)

// RunNumber formats a number of runs with commas. A part of a run is "<1".
func RunNumber(n float64) string {
	if n > 0 && n < 0.5 {
		return "<1"
	}
	return Grouped(int(math.Round(n)))
}

// RunCount returns a number of runs, or of tasks, with its noun.
func RunCount(n float64, noun string) string {
	text := RunNumber(n) + " " + noun
	if n < 0.5 || n >= 1.5 {
		text += "s"
	}

	return text
}

// InexactLoad says what a load spreads or leaves out, each on a line.
func InexactLoad(l client.TaskLoad) []string {
	var lines []string
	if l.Jittered > 0 {
		lines = append(lines, fmt.Sprintf("%s with jitter: runs are spread over the time in which they may fall due", RunCount(float64(l.Jittered), "task")))
	}
	if l.Inexact > 0 {
		lines = append(lines, fmt.Sprintf("%s with @every and other expressions: runs of @every are spread over the whole time", RunCount(float64(l.Inexact), "task")))
	}
	if l.AfterCompletion > 0 {
		verb := "count"
		if l.AfterCompletion == 1 {
			verb = "counts"
		}
		lines = append(lines, fmt.Sprintf("%s that %s from the end of a run: not predictable, not included", RunCount(float64(l.AfterCompletion), "task"), verb))
	}

	return lines
}

// LoadMakerText returns the schedule of tasks that make load, with its zone and jitter.
func LoadMakerText(m client.LoadMaker) string {
	text := OneLine(m.Schedule)
	if m.Timezone != "UTC" {
		text += " " + OneLine(m.Timezone)
	}
	if m.Jitter > 0 {
		text += fmt.Sprintf(" (jitter %s)", m.Jitter)
	}

	return text
}

// shownSeconds is how many busy seconds of a minute are named.
const shownSeconds = 3

// HotSeconds names the seconds of a minute in which most runs fall due: ":00 1,200, :30 40". It returns "" if no second
// has many more than the others.
func HotSeconds(p client.LoadPeak) string {
	const seconds, much = 60, 3

	var parts []string
	for _, s := range p.Seconds[:min(len(p.Seconds), shownSeconds)] {
		if s.Runs*seconds >= much*p.Runs {
			parts = append(parts, fmt.Sprintf(":%02d %s", s.Second, RunNumber(s.Runs)))
		}
	}

	return strings.Join(parts, ", ")
}

package load

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// hour is an hour of the local clock, with the number of runs in each of its minutes.
type hour struct {
	Begins time.Time   `json:"begins"`
	Runs   [60]float64 `json:"runs"`
	Known  [60]bool    `json:"-"` // the minutes that the load covers
	first  time.Time   // the first of them
}

// label returns the hour of the clock: "03:00". Begins may be another one, if the clock has changed since. The zone is above the labels, and
// again where it changes.
func (h *hour) label() string { return h.first.Format("15:00") }

// hoursOf divides a load into hours. Where the clock changes, an hour may be there twice or not at all. If it changes by
// half an hour, the rest of an hour is an hour of its own.
func hoursOf(l client.TaskLoad, zone *time.Location) []hour {
	var list []hour
	for i, runs := range l.Runs {
		at := l.From.Add(time.Duration(i) * l.Step.Std()).In(zone)
		begins := at.Add(-time.Duration(at.Minute())*time.Minute - time.Duration(at.Second())*time.Second)

		if n := len(list); n == 0 || !list[n-1].Begins.Equal(begins) {
			list = append(list, hour{Begins: begins, first: at})
		}

		h := &list[len(list)-1]
		h.Runs[at.Minute()] += runs
		h.Known[at.Minute()] = true
	}

	return list
}

// totalRuns returns the runs of the hour.
func (h *hour) totalRuns() (sum float64) {
	for _, runs := range h.Runs {
		sum += runs
	}
	return sum
}

// The signs of a cell, from few runs to many.
var (
	blocks      = []rune("▁▂▃▄▅▆▇█")
	asciiBlocks = []rune(".:-=+*#@")
)

// labelWidth and totalWidth are the widths of what is left and right of the cells.
const (
	labelWidth = len("00:00 ")
	totalWidth = len("  1,234,567")
)

// heatMap returns the map: a line for each hour, with a cell for each minute, or for several if the terminal is narrow.
// width is that of the terminal; 0: no limit.
func heatMap(f *factory.Factory, l client.TaskLoad, width int) string {
	hours := hoursOf(l, f.Zone(output.ReaderZone))
	per := minutesPerCell(width)

	most := 0.0
	for i := range hours {
		for from := 0; from < 60; from += per {
			most = max(most, sumOf(hours[i].Runs[from:from+per]))
		}
	}

	var b strings.Builder
	zone := ""
	if len(hours) > 0 {
		zone = hours[0].first.Format("MST")
	}
	b.WriteString(f.Paint(output.Dim, fmt.Sprintf("%-*s%s", labelWidth, zone, scale(per))) + "\n")

	for i := range hours {
		h := &hours[i]
		// The hours below this line have another offset from UTC.
		if changed := h.first.Format("MST"); changed != zone {
			zone = changed
			b.WriteString(f.Paint(output.Dim, zone) + "\n")
		}

		b.WriteString(f.Paint(output.Dim, h.label()) + " " + h.formatCells(f, per, most))
		fmt.Fprintf(&b, "%*s\n", totalWidth, wording.RunNumber(h.totalRuns()))
	}

	signs := signsOf(f)
	each := "a minute"
	if per > 1 {
		each = fmt.Sprintf("%d minutes", per)
	}
	fmt.Fprintf(&b, "%-*s%s\n", labelWidth, "", f.Paint(output.Dim, f.Plain(fmt.Sprintf("%c 1 … %c %s in %s", signs[0], signs[len(signs)-1], wording.RunCount(most, "run"), each))))

	return b.String()
}

// minutesPerCell returns how many minutes a cell has, so that a line fits.
func minutesPerCell(width int) int {
	for _, per := range []int{1, 2, 3, 5} {
		if width == 0 || labelWidth+60/per+totalWidth <= width {
			return per
		}
	}

	return 10
}

// scale returns the line above the map, with the minutes of the hour.
func scale(per int) string {
	step := 10
	if per >= 5 {
		step = 30
	}

	var b strings.Builder
	for minute := 0; minute < 60; minute += step {
		fmt.Fprintf(&b, "%-*s", step/per, fmt.Sprintf(":%02d", minute))
	}

	return b.String()
}

// signsOf returns the signs of the cells.
func signsOf(f *factory.Factory) []rune {
	if f.ASCII {
		return asciiBlocks
	}
	return blocks
}

// formatCells returns the cells of an hour. Neighbors of the same color are painted together.
func (h *hour) formatCells(f *factory.Factory, per int, most float64) string {
	var b, same strings.Builder
	var color output.Color

	flush := func() {
		b.WriteString(f.Paint(color, same.String()))
		same.Reset()
	}

	signs := signsOf(f)
	for from := 0; from < 60; from += per {
		sign, next := ' ', output.Color("")
		if level := levelOf(sumOf(h.Runs[from:from+per]), most, len(signs)); level > 0 {
			sign, next = signs[level-1], colorOf(level, len(signs))
		}

		if next != color {
			flush()
			color = next
		}
		same.WriteRune(sign)
	}

	flush()

	return b.String()
}

// sumOf adds up runs.
func sumOf(runs []float64) (sum float64) {
	for _, r := range runs {
		sum += r
	}
	return sum
}

// levelOf returns the level of a number of runs, from 1 to levels on a logarithmic scale up to most; 0 for none.
func levelOf(runs, most float64, levels int) int {
	switch {
	case runs <= 0:
		return 0
	case most <= 1:
		return levels
	}

	return 1 + int(math.Round(float64(levels-1)*math.Max(math.Log(runs), 0)/math.Log(most)))
}

// colorOf returns the color of a level.
func colorOf(level, levels int) output.Color {
	switch {
	case 2*level <= levels:
		return output.Green
	case 4*level <= 3*levels:
		return output.Yellow
	}

	return output.Red
}

// hourTable returns the table of hours with numbers, in steps of five minutes.
func hourTable(f *factory.Factory, hours []hour) *output.Table {
	const step = 5

	g := &output.Table{Headers: []string{"HOUR"}}
	for minute := 0; minute < 60; minute += step {
		g.Headers = append(g.Headers, fmt.Sprintf(":%02d", minute))
	}
	g.Headers = append(g.Headers, "RUNS", "BUSIEST", "RUNS IN IT")

	for i := range hours {
		h := &hours[i]
		row := []string{h.first.Format("Mon 15:00 MST")}
		for from := 0; from < 60; from += step {
			cell := wording.RunNumber(sumOf(h.Runs[from : from+step]))
			if !h.Known[from] && !h.Known[from+step-1] {
				cell = f.NoValue()
			}
			row = append(row, cell)
		}

		busiest, runs := f.NoValue(), 0.0
		for minute, n := range h.Runs {
			if n > runs {
				busiest, runs = h.Begins.Add(time.Duration(minute)*time.Minute).Format("15:04 MST"), n
			}
		}

		g.AddRow(append(row, wording.RunNumber(h.totalRuns()), busiest, wording.RunNumber(runs))...)
	}

	return g
}

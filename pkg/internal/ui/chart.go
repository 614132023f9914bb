package ui

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// barChart is a chart of durations: one bar for each run, the newest last. The numbers are in a table beside it.
type barChart struct {
	Name        string
	Top         time.Duration // the value of the highest bar
	First, Last task.Time
	Bars        []chartBar
}

// chartBar is a bar of a chart.
type chartBar struct {
	Percent float64
	Bad     bool // drawn with stripes
	Title   string
}

// chartOf returns a chart of runs, which begin with the newest. Runs with a negative value are left out.
func chartOf(name string, runs []task.Run, value func(task.Run) time.Duration) barChart {
	c := barChart{Name: name}
	for _, r := range runs {
		c.Top = max(c.Top, value(r))
	}

	for _, r := range slices.Backward(runs) {
		v := value(r)
		if v < 0 {
			continue
		}

		bar := chartBar{Bad: r.State != task.Succeeded, Title: fmt.Sprintf("%s: %s, %s", r.ScheduledTime.UTC().Format("2006-01-02 15:04:05 UTC"), task.Duration(v).Approximate(), wording.RunResult(r, time.Time{}))}
		if c.Top > 0 {
			bar.Percent = 100 * float64(v) / float64(c.Top)
		}
		if c.First.IsZero() {
			c.First = r.ScheduledTime
		}
		c.Last = r.ScheduledTime
		c.Bars = append(c.Bars, bar)
	}

	return c
}

// SVG draws the bars. The drawing is stretched to its place, so it contains no text but titles.
func (c barChart) SVG() template.HTML {
	const width, height, gap = 10, 100, 2

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bars" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s of the last %d runs; the table below has the numbers">`, max(len(c.Bars), 20)*width, height, template.HTMLEscapeString(c.Name), len(c.Bars))
	for _, y := range []int{0, height / 2, height} {
		fmt.Fprintf(&b, `<line class="grid" x1="0" x2="100%%" y1="%d" y2="%d"/>`, y, y)
	}

	for i, bar := range c.Bars {
		x, h := i*width+gap/2, max(bar.Percent*height/100, 1.5)
		class := "bar"
		if bar.Bad {
			class = "bar bad"
		}

		fmt.Fprintf(&b, `<g><title>%s</title><rect class="hit" x="%d" y="0" width="%d" height="%d"/><rect class="%s" x="%d" y="%.1f" width="%d" height="%.1f"/>`, template.HTMLEscapeString(bar.Title), i*width, width, height, class, x, height-h, width-gap, h)
		// Stripes tell bars of runs that did not succeed also without colors.
		for y := height - h + 2; bar.Bad && y < height; y += 5 {
			fmt.Fprintf(&b, `<rect class="stripe" x="%d" y="%.1f" width="%d" height="1.5"/>`, x, y, width-gap)
		}
		b.WriteString("</g>")
	}
	b.WriteString("</svg>")

	return template.HTML(b.String()) //nolint:gosec // all texts are escaped
}

package chaos_test

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// counts are a node's counters, summed over its processes. What a process counts after it was last read is lost
// when it ends, so the sums are a little low.
type counts struct {
	before, now map[string]float64
}

// settle adds the counters of the previous process to the sum.
func (c *counts) settle() {
	c.before, c.now = c.sum(), nil
}

func (c *counts) sum() map[string]float64 {
	sum := map[string]float64{}
	for _, m := range []map[string]float64{c.before, c.now} {
		for name, v := range m {
			sum[name] += v
		}
	}

	return sum
}

// scrape reads a node's counters, if the node answers.
func (w *world) scrape(n *node) {
	if !n.process.running() {
		return
	}

	c := http.Client{Timeout: 500 * time.Millisecond}
	res, err := c.Get("http://" + n.metrics + "/metrics")
	if err != nil {
		return
	}

	defer res.Body.Close()

	now := map[string]float64{}
	for s := bufio.NewScanner(res.Body); s.Scan(); {
		series, value, ok := strings.Cut(s.Text(), " ")
		name, _, _ := strings.Cut(series, "{")
		counter := strings.HasPrefix(name, "carillon_") && strings.HasSuffix(name, "_total") && !strings.HasPrefix(name, "carillon_api_")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case !ok || err != nil:
		case counter:
			now[series] = v
		case series == "go_goroutines":
			n.goroutines = int(v)
		}
	}

	n.counts.now = now
}

// counters returns the sums over all nodes.
func (w *world) counters() map[string]float64 {
	sum := map[string]float64{}
	for _, n := range w.nodes {
		w.scrape(n)
		for series, v := range n.counts.sum() {
			sum[series] += v
		}
	}

	return sum
}

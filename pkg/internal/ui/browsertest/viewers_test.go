//go:build browser

package browsertest

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The figures of TestViewers: how many watch the page, for how long each measurement lasts, and how many tasks fire a second.
const (
	manyViewers    = 100
	measureFor     = 20 * time.Second
	ticksPerSecond = 100
)

// Measures what viewers of one page cost a node: CPU time, memory, and lateness of ticks, without viewers, with one, with 100,
// and without viewers again. One viewer pays for the rendering, which all share; the others pay for the messages to them. It
// asserts nothing, because machines differ; UI_VIEWERS=N runs it N times. The memory is that of the whole node, in which stacks of the
// executor's goroutines grow meanwhile: TestLive_MemoryOfViewer of package ui measures that of a viewer alone.
func TestViewers_Cost(t *testing.T) {
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("UI_VIEWERS"), "0"))
	must(t, err)
	if rounds == 0 {
		t.Skip("set UI_VIEWERS=1")
	}

	for i := range ticksPerSecond {
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule, s.Action = "default", loadTask(i), task.Schedules{"@every 1s"}, task.Action{Noop: &task.Noop{}}
		_, err := fixture.api.Tasks.Create(t.Context(), "default", s)
		must(t, err)
	}
	cookies := fixture.viewers(t)

	for range rounds {
		for _, path := range []string{"/ui", "/ui/tasks"} {
			before := fixture.measureViewers(t, path, cookies, 0)
			one := fixture.measureViewers(t, path, cookies, 1)
			many := fixture.measureViewers(t, path, cookies, manyViewers)
			after := fixture.measureViewers(t, path, cookies, 0)

			// Meanwhile the node itself becomes more expensive, because etcd visits the keys that were deleted since it has
			// compacted its revisions.
			drift := (after.cpu - before.cpu) / 3
			rendering := one.cpu - before.cpu - drift
			all := many.cpu - before.cpu - 2*drift

			const others = manyViewers - 1
			t.Logf("%s: rendering costs %.2f %% of a core, each other viewer %.3f %% and %.0f KiB",
				path, rendering*100, (all-rendering)*100/others, (many.memory-one.memory)*1024/others)
		}
	}
}

// measureViewers measures the node while n viewers watch a page.
func (c *cluster) measureViewers(t *testing.T, path string, cookies []string, n int) cost {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching, received atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { watch(ctx, t, path, cookies[i%len(cookies)], &watching, &received) })
	}
	await(t, func() error {
		if w := watching.Load(); w < int64(n) {
			return fmt.Errorf("%d viewers watch", w)
		}
		return nil
	})

	received.Store(0)
	used := c.measure(t)
	bytes := received.Load()
	cancel()
	all.Wait()

	t.Logf("%s: %d viewers: %.1f %% of a core, heap and stacks %.1f MiB, late p50 %s, p99 %s; %.1f kB/s to each",
		path, n, used.cpu*100, used.memory, used.p50, used.p99, float64(bytes)/float64(max(n, 1))/measureFor.Seconds()/1000)

	return used
}

// viewers returns the cookies of two subjects with the same rights: one subject may have 64 streams.
func (c *cluster) viewers(t *testing.T) (cookies []string) {
	t.Helper()
	subjects := []string{"service:viewer-1", "service:viewer-2"}
	_, err := c.api.Bindings.Put(t.Context(), task.Binding{Name: "viewers", Role: "viewer", Subjects: subjects, Cluster: true}, client.Writing{Create: true})
	must(t, err)

	for _, subject := range subjects {
		token, err := c.api.Tokens.Create(t.Context(), client.TokenRequest{Subject: subject, Until: task.At(time.Now().Add(time.Hour))})
		must(t, err)
		cookies = append(cookies, signIn(t, token.Secret))
	}

	return cookies
}

// signIn returns the cookie of a session that is begun with a token.
func signIn(t *testing.T, token string) string {
	t.Helper()
	form := url.Values{"token": {token}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fixture.url("/ui/login"), strings.NewReader(form.Encode()))
	must(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")

	res, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	must(t, res.Body.Close())
	if res.StatusCode != http.StatusSeeOther || len(res.Cookies()) != 1 {
		t.Fatalf("the login: %s, %v", res.Status, res.Cookies())
	}
	c := res.Cookies()[0]

	return c.Name + "=" + c.Value
}

// loadTask returns the name of a task that fires every second.
func loadTask(i int) string { return fmt.Sprintf("load-%02d", i) }

// watch opens the stream of a page until ctx ends.
func watch(ctx context.Context, t *testing.T, path, cookie string, watching, received *atomic.Int64) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fixture.url("/ui/live?at="+path), http.NoBody)
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("HX-Request", "true")
	r.Header.Set("Cookie", cookie)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()

	b := bufio.NewReaderSize(res.Body, 64<<10)
	for first := true; ; {
		line, err := b.ReadString('\n')
		if err != nil {
			return
		}
		received.Add(int64(len(line)))
		if first && strings.HasPrefix(line, "data: <") {
			first = false
			watching.Add(1)
		}
	}
}

// cost is what a node uses.
type cost struct {
	cpu      float64 // of a core
	memory   float64 // MiB: live heap and stacks
	p50, p99 time.Duration
}

// measure measures the node for a while.
func (c *cluster) measure(t *testing.T) cost {
	t.Helper()
	cpu := c.cpuTime(t)
	began := time.Now()
	memory := math.Inf(1) // the least, which is that after a garbage collection
	for time.Since(began) < measureFor {
		time.Sleep(200 * time.Millisecond) // it measures
		memory = min(memory, c.memory(t))
	}
	used := (c.cpuTime(t) - cpu).Seconds() / time.Since(began).Seconds()

	var late []int64 // milliseconds from the tick to the start
	for i := range ticksPerSecond {
		runs, err := c.api.Runs.ListByTask(t.Context(), "default", loadTask(i), client.RunListOptions{Since: began, Limit: 100})
		must(t, err)
		for _, r := range runs {
			if r.LatenessMS != nil {
				late = append(late, *r.LatenessMS)
			}
		}
	}
	if len(late) == 0 {
		t.Fatal("no task has run")
	}
	slices.Sort(late)
	quantile := func(q float64) time.Duration {
		return time.Duration(late[int(q*float64(len(late)-1))]) * time.Millisecond
	}

	return cost{cpu: used, memory: memory, p50: quantile(0.5), p99: quantile(0.99)}
}

// cpuTime returns the CPU time that the process of the node has used.
func (c *cluster) cpuTime(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.node.Process.Pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(b), ") ")
	words := strings.Fields(rest)
	user, err := strconv.Atoi(words[11])
	must(t, err)
	system, err := strconv.Atoi(words[12])
	must(t, err)

	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory returns what the heap and the stacks of the node use, in MiB.
func (c *cluster) memory(t *testing.T) float64 {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url("/metrics"), http.NoBody)
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+c.token)
	res, err := http.DefaultClient.Do(r)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)

	sum := 0.0
	for _, name := range []string{"go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes"} {
		_, rest, ok := strings.Cut(string(b), "\n"+name+" ")
		if !ok {
			t.Fatalf("/metrics has no %s: %.200s", name, b)
		}
		value, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		must(t, err)
		sum += value
	}

	return sum / (1 << 20)
}

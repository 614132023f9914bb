package ask

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// Answer is the answer to a question. Its places must not be changed.
type Answer struct {
	readmodel.Page
	at           task.Time // when the owners were asked
	shards       int
	needsHistory bool
	needed       Revisions // it contains these revisions, or their shards are missing
	entry        *entry    // nil: it is not kept

	// What the question asks for instead of places. It must not be changed.
	board  *task.Board
	splits []string          // see Splits
	sizes  map[int]shardSize // see ShardSizes
}

// Info describes the answer for the caller of a list. now is the clock of this node.
func (a *Answer) Info(now task.Time) client.ListInfo {
	asOf := task.At(a.at.Add(-time.Duration(a.AgeMS) * time.Millisecond))
	info := client.ListInfo{Count: &a.Counts.Tasks, AsOf: asOf, AgeMS: max(now.Sub(asOf.Time).Milliseconds(), 0), Shards: a.shards, Missing: a.Missing}
	info.Collecting = a.collecting()

	return info
}

// collecting returns for how many percent of the tasks the owners know how their runs ended, if the answer depends on that
// and they do not know it for all; otherwise nil.
func (a *Answer) collecting() *int {
	percent := a.Collected()
	if percent == 100 || !a.needsHistory {
		return nil
	}

	return &percent
}

// NextPage returns the cursor of the page that follows the places of the answer, or "" if there is none.
func (a *Answer) NextPage() string {
	if n := len(a.Places); a.More && n > 0 {
		return PlaceCursor(a.Places[n-1])
	}
	return ""
}

// Include adds to the answer what another one, for a later part of the same list, says about the shards.
func (a *Answer) Include(later Answer) {
	a.AgeMS = max(a.AgeMS, later.AgeMS)
	a.Unread = max(a.Unread, later.Unread)
	a.Missing = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Missing, later.Missing))))
}

// incomplete returns why the answer may lack tasks that match, or nil.
func (a *Answer) incomplete() error {
	why := ""
	switch percent := a.collecting(); {
	case len(a.Missing) > 0:
		why = "nobody answers for " + shardsText(a.Missing)
	case percent != nil:
		why = fmt.Sprintf("the owners have read only %d%% of the history", *percent)
	default:
		return nil
	}

	return httpapi.Fail(http.StatusServiceUnavailable, client.CodeIncomplete, "the list is not complete: %s", why).
		WithHint("try again; after the failure of a node, its shards move to others within seconds")
}

// shardsText names some of the shards.
func shardsText(shards []int) string {
	const most = 10
	names := make([]string, min(len(shards), most))
	for i := range names {
		names[i] = strconv.Itoa(shards[i])
	}

	text := "shard " + names[0]
	if len(shards) > 1 {
		text = "shards " + strings.Join(names, ", ")
	}
	if len(shards) > most {
		text += fmt.Sprintf(" and %d others", len(shards)-most)
	}

	return text
}

// KeepRows keeps the rows that were shown for an answer, for when etcd is away. view is what they depend on, apart from
// the question. rows must not be changed.
func (a *Answer) KeepRows(view string, rows any, n int) {
	if a.entry != nil && n <= maxKeptRows {
		a.entry.keepRows(view, rows, *a)
	}
}

// OldRows returns the rows that KeepRows has kept for the same question and view, with their answer.
func (a *Answer) OldRows(view string) (rows any, answer Answer, ok bool) {
	if a.entry == nil {
		return nil, Answer{}, false
	}
	return a.entry.oldRows(view)
}

// away is the error if no node answers for any shard.
type away struct {
	since task.Time
	why   string
}

func (a *away) Error() string {
	return fmt.Sprintf("no scheduling node has answered since %s: %s", a.since.Format(time.RFC3339), a.why)
}

// failure converts an error of askAll to one for the caller.
func (a *Asker) failure(c *httpapi.Call, err error) error {
	var busy *readmodel.Busy
	var gone *away

	switch {
	case errors.As(err, &busy):
		return busyFailure(c, busy)
	case errors.As(err, &gone):
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "%s", gone).
			WithHint("lists by name, without other filters, need no scheduling node")
	}

	return err
}

// busyFailure returns the failure of a node that answers no query at the moment.
func busyFailure(c *httpapi.Call, busy *readmodel.Busy) error {
	seconds := max((busy.RetryAfter+time.Second-1)/time.Second, 1)
	c.Writer.Header().Set("Retry-After", strconv.Itoa(int(seconds)))

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "node %s is busy with other queries", busy.Node).
		WithHint("try again later, or list by name, without other filters")
}

// refusal returns why a question is refused, whatever other nodes have answered: it is too long, or a node is busy. Of
// several busy nodes, it is the one that is busy for the longest time. It returns nil if all failures are about single nodes.
func refusal(failures map[string]error) error {
	var worst *readmodel.Busy
	for _, err := range failures {
		var refused *task.Error
		if errors.As(err, &refused) {
			return refused
		}

		var busy *readmodel.Busy
		if errors.As(err, &busy) && (worst == nil || busy.RetryAfter > worst.RetryAfter) {
			worst = busy
		}
	}

	if worst == nil {
		return nil
	}

	return worst
}

// judge returns why an answer cannot be given: the question is refused, or no node has answered.
func (a *Asker) judge(answer *Answer, failures map[string]error) error {
	if err := refusal(failures); err != nil {
		return err
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if len(answer.Missing) < a.Shards {
		a.since = task.Time{}
		return nil
	}

	if a.since.IsZero() {
		a.since = answer.at
	}

	why := "no shard has an owner"
	if names := slices.Sorted(maps.Keys(failures)); len(names) > 0 {
		why = peers.NodeError(names[0], failures[names[0]]).Error()
	}

	return &away{since: a.since, why: why}
}

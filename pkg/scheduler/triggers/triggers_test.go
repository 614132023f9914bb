package triggers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

var now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// tell describes fates, one word for each.
func tell(fates []Fate) string {
	words := map[Outcome]string{Wait: "wait", Delete: "delete", Skip: "skip", Miss: "miss", Start: "start", Queue: "queue"}

	var list []string
	for _, f := range fates {
		word := words[f.Outcome]
		if f.Reason != "" {
			word += ":" + f.Reason
		}
		list = append(list, word)
	}

	return strings.Join(list, " ")
}

func dependent(change func(d *Dependent)) *Dependent {
	d := &Dependent{
		Exists: true, UID: "u", Generation: func(source string) int64 { return map[string]int64{"a": 3}[source] }, Now: now,
		Overlap: task.OverlapQueue, Limit: 100, Idle: true, MayStart: true,
	}
	if change != nil {
		change(d)
	}

	return d
}

func good() Trigger { return Trigger{UID: "u", Source: "a", Generation: 3, At: now.Add(-time.Second)} }

func TestDecide_EachTriggerAlone(t *testing.T) {
	for name, c := range map[string]struct {
		dependent func(d *Dependent)
		trigger   func(t *Trigger)
		want      string
	}{
		"good":                        {want: "start"},
		"no entry":                    {func(d *Dependent) { *d = Dependent{Now: now} }, nil, "delete"},
		"no entry, unreadable":        {func(d *Dependent) { *d = Dependent{Now: now} }, func(t *Trigger) { *t = Trigger{Unreadable: true} }, "delete"},
		"bad entry":                   {func(d *Dependent) { *d = Dependent{Exists: true, Bad: true, Now: now} }, nil, "wait"},
		"bad entry, unreadable":       {func(d *Dependent) { *d = Dependent{Exists: true, Bad: true, Now: now} }, func(t *Trigger) { *t = Trigger{Unreadable: true} }, "delete"},
		"another task of the name":    {nil, func(t *Trigger) { t.UID = "v" }, "delete"},
		"unreadable":                  {nil, func(t *Trigger) { *t = Trigger{Unreadable: true} }, "skip:bad_record"},
		"of a lost history":           {nil, func(t *Trigger) { t.IsLost = true }, "miss:restored"},
		"of a lost history, unlinked": {nil, func(t *Trigger) { t.IsLost, t.Source = true, "b" }, "miss:restored"},
		"of a lost history, paused":   {func(d *Dependent) { d.Paused = true }, func(t *Trigger) { t.IsLost = true }, "miss:restored"},
		"of a lost history, frozen":   {func(d *Dependent) { d.Frozen = true }, func(t *Trigger) { t.IsLost = true }, "miss:restored"},
		"of a lost history, gone":     {func(d *Dependent) { d.UID = "v" }, func(t *Trigger) { t.IsLost = true }, "delete"},
		"another source":              {nil, func(t *Trigger) { t.Source = "b" }, "skip:unlinked"},
		"an earlier link":             {nil, func(t *Trigger) { t.Generation = 2 }, "skip:unlinked"},
		"at the start deadline":       {func(d *Dependent) { d.Deadline = time.Second }, nil, "start"},
		"past the start deadline":     {func(d *Dependent) { d.Deadline = time.Second - 1 }, nil, "miss:start_deadline"},
		"past the deadline, frozen":   {func(d *Dependent) { d.Deadline, d.Frozen = 1, true }, nil, "miss:start_deadline"},
		"shadow":                      {func(d *Dependent) { d.Shadow = true }, nil, "skip:shadow"},
		"paused":                      {func(d *Dependent) { d.Paused = true }, nil, "skip:paused"},
		"paused and frozen":           {func(d *Dependent) { d.Paused, d.Frozen = true, true }, nil, "skip:paused"},
		"frozen":                      {func(d *Dependent) { d.Frozen = true }, nil, "wait"},
		"frozen, another source":      {func(d *Dependent) { d.Frozen = true }, func(t *Trigger) { t.Source = "b" }, "skip:unlinked"},
		"busy":                        {func(d *Dependent) { d.Idle, d.MayStart = false, false }, nil, "wait"},
		"busy, allow":                 {func(d *Dependent) { d.Overlap, d.Idle, d.MayStart = task.OverlapAllow, false, false }, nil, "wait"},
		"not idle, but allow permits": {func(d *Dependent) { d.Overlap, d.Idle = task.OverlapAllow, false }, nil, "start"},
		"busy, skip":                  {func(d *Dependent) { d.Overlap, d.Idle = task.OverlapSkip, false }, nil, "skip:overlap"},
		"idle, skip":                  {func(d *Dependent) { d.Overlap = task.OverlapSkip }, nil, "start"},
		"busy, replace":               {func(d *Dependent) { d.Overlap, d.Idle = task.OverlapReplace, false }, nil, "queue:overlap"},
		"catching up, replace":        {func(d *Dependent) { d.Overlap, d.Idle, d.CatchingUp = task.OverlapReplace, false, true }, nil, "wait"},
		"idle, replace":               {func(d *Dependent) { d.Overlap = task.OverlapReplace }, nil, "start"},
	} {
		one := good()
		if c.trigger != nil {
			c.trigger(&one)
		}
		if got := tell(Decide(dependent(c.dependent), []Trigger{one})); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestDecide_SeveralTriggers(t *testing.T) {
	busy := func(policy string) func(d *Dependent) {
		return func(d *Dependent) { d.Overlap, d.Idle, d.MayStart = policy, false, false }
	}
	idle := func(policy string) func(d *Dependent) { return func(d *Dependent) { d.Overlap = policy } }
	limited := func(oldest, idle bool) func(d *Dependent) {
		return func(d *Dependent) { d.Limit, d.DropOldest, d.Idle = 2, oldest, idle }
	}

	for name, c := range map[string]struct {
		dependent func(d *Dependent)
		n         int
		want      string
	}{
		"queue, idle":             {nil, 3, "start wait wait"},
		"queue, busy":             {busy(task.OverlapQueue), 3, "wait wait wait"},
		"full, newest":            {limited(false, false), 4, "wait wait skip:queue_full skip:queue_full"},
		"full, oldest":            {limited(true, false), 4, "skip:dropped skip:dropped wait wait"},
		"idle, not full":          {limited(false, true), 3, "start wait wait"},
		"idle and full":           {limited(false, true), 4, "start wait wait skip:queue_full"},
		"idle and full, oldest":   {limited(true, true), 4, "start skip:dropped wait wait"},
		"allow":                   {idle(task.OverlapAllow), 3, "start wait wait"},
		"skip, idle":              {idle(task.OverlapSkip), 3, "start skip:overlap skip:overlap"},
		"skip, busy":              {busy(task.OverlapSkip), 2, "skip:overlap skip:overlap"},
		"replace, idle":           {idle(task.OverlapReplace), 3, "skip:dropped skip:dropped start"},
		"replace, busy":           {busy(task.OverlapReplace), 3, "skip:dropped skip:dropped queue:overlap"},
		"replace, catching up":    {func(d *Dependent) { d.Overlap, d.Idle, d.CatchingUp = task.OverlapReplace, false, true }, 3, "skip:dropped skip:dropped wait"},
		"none":                    {nil, 0, ""},
		"frozen, whatever policy": {func(d *Dependent) { d.Frozen, d.Overlap = true, task.OverlapSkip }, 2, "wait wait"},
	} {
		if got := tell(Decide(dependent(c.dependent), slices.Repeat([]Trigger{good()}, c.n))); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}

	// Void triggers do not count for the limit.
	mixed := []Trigger{good(), {UID: "v"}, good(), {UID: "u", Source: "b", Generation: 1}, good()}
	if got := tell(Decide(dependent(limited(false, false)), mixed)); got != "wait delete wait skip:unlinked skip:queue_full" {
		t.Errorf("mixed: %s", got)
	}
}

// However many triggers wait, there is a limit.
func TestDecide_LimitsWhatWaits(t *testing.T) {
	many := slices.Repeat([]Trigger{good()}, task.MaxTriggerQueue+2)
	for name, c := range map[string]struct {
		dependent func(d *Dependent)
		want      string // how many of each
	}{
		"frozen": {func(d *Dependent) { d.Frozen = true }, "2 skip:frozen, 1000 wait"},
		"allow":  {func(d *Dependent) { d.Overlap, d.MayStart = task.OverlapAllow, false }, "1000 wait, 2 skip:queue_full"},
	} {
		var parts []string
		words := strings.Fields(tell(Decide(dependent(c.dependent), many)))
		for len(words) > 0 {
			n := 1
			for n < len(words) && words[n] == words[0] {
				n++
			}
			parts = append(parts, fmt.Sprintf("%d %s", n, words[0]))
			words = words[n:]
		}

		if got := strings.Join(parts, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

package executor

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestDecide(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ok := view{now: now, session: 2}

	for name, c := range map[string]struct {
		a    func(*attempt)
		v    func(*view)
		want action
	}{
		"waiting, dispatched under the session":    {func(a *attempt) { a.session = 2 }, nil, doReady},
		"waiting, held before":                     {func(a *attempt) { a.session = 1 }, nil, doAdopt},
		"waiting, never joined":                    {func(*attempt) {}, func(v *view) { v.session = 0 }, doNothing},
		"waiting, a write is under way":            {func(a *attempt) { a.busy = true }, nil, doNothing},
		"waiting, an older one still runs":         {func(a *attempt) { a.session = 2 }, func(v *view) { v.behind = true }, doNothing},
		"waiting, cancelled":                       {func(a *attempt) { a.CancelRequested = true }, nil, doCancel},
		"waiting, cancelled while draining":        {func(a *attempt) { a.CancelRequested = true }, func(v *view) { v.draining = true }, doCancel},
		"waiting, draining":                        {func(*attempt) {}, func(v *view) { v.draining = true }, doHandBack},
		"waiting, could not be started":            {func(a *attempt) { a.session, a.mustHandBack = 2, true }, nil, doHandBack},
		"waiting, could not be started just now":   {func(a *attempt) { a.session, a.mustHandBack, a.failedAt, a.notBefore = 2, true, 5, now.Add(1) }, nil, doNothing},
		"waiting, could not be started, cancelled": {func(a *attempt) { a.mustHandBack, a.CancelRequested = true, true }, nil, doCancel},
		"waiting, frozen":                          {func(a *attempt) { a.session = 2 }, func(v *view) { v.frozen = true }, doNothing},
		"waiting, frozen, held before":             {func(a *attempt) { a.session = 1 }, func(v *view) { v.frozen = true }, doAdopt},
		"waiting, in time":                         {func(a *attempt) { a.session, a.StartBefore = 2, task.At(now) }, nil, doReady},
		"waiting, too late":                        {func(a *attempt) { a.session, a.StartBefore = 2, task.At(now.Add(-time.Millisecond)) }, nil, doMiss},
		"waiting, too late, frozen":                {func(a *attempt) { a.StartBefore = task.At(now.Add(-time.Second)) }, func(v *view) { v.frozen = true }, doMiss},
		"waiting, too late, cancelled":             {func(a *attempt) { a.StartBefore, a.CancelRequested = task.At(now.Add(-time.Second)), true }, nil, doCancel},
		"waiting, late for a retry":                {func(a *attempt) { a.session, a.StartBefore, a.Attempt = 2, task.At(now.Add(-time.Second)), 2 }, nil, doReady},
		"waiting, late for a person": {func(a *attempt) {
			a.session, a.StartBefore, a.Trigger = 2, task.At(now.Add(-time.Second)), task.TriggerManual
		}, nil, doReady},
		"waiting, gone":                               {func(a *attempt) { a.recordGone = true }, nil, doForget},
		"waiting, gone while it is written":           {func(a *attempt) { a.recordGone, a.busy = true, true }, nil, doNothing},
		"waiting, came and went before":               {func(a *attempt) { a.stale = true }, nil, doLose},
		"waiting, overdue":                            {func(a *attempt) { a.session = 2 }, func(v *view) { v.overdue = true }, doNothing},
		"waiting, perhaps handed back":                {perhapsHandedBack, nil, doAdopt},
		"waiting, perhaps handed back, draining":      {perhapsHandedBack, func(v *view) { v.draining = true }, doHandBack},
		"waiting, perhaps handed back, changed since": {func(a *attempt) { perhapsHandedBack(a); a.Mod = 6 }, nil, doReady},
		"waiting, perhaps handed back, fenced":        {perhapsHandedBack, func(v *view) { v.fenced = true }, doNothing},
		"waiting, perhaps handed back, cancelled":     {func(a *attempt) { perhapsHandedBack(a); a.CancelRequested = true }, nil, doCancel},
		"waiting, perhaps handed back, too late":      {func(a *attempt) { perhapsHandedBack(a); a.StartBefore = task.At(now.Add(-1)) }, nil, doAdopt},
		"another's":                                   {func(a *attempt) { a.foreign = true }, nil, doNothing},
		"another's, draining":                         {func(a *attempt) { a.foreign = true }, func(v *view) { v.draining = true }, doNothing},
		"another's, dead":                             {func(a *attempt) { a.foreign = true }, func(v *view) { v.dead = true }, doLose},
		"failed a moment ago":                         {func(a *attempt) { a.failedAt, a.notBefore = 5, now.Add(1) }, nil, doNothing},
		"failed a moment ago, but changed since":      {func(a *attempt) { a.failedAt, a.notBefore, a.Mod = 5, now.Add(1), 6 }, nil, doAdopt},
		"running":                                     {running2, nil, doNothing},
		"running for a while":                         {func(a *attempt) { running2(a); a.startedAt = now.Add(-time.Second) }, nil, doMark},
		"running for a while, marked":                 {func(a *attempt) { running2(a); a.startedAt = now.Add(-time.Hour); a.State = task.Running }, nil, doNothing},
		"running, held before":                        {func(a *attempt) { running2(a); a.session = 1 }, nil, doAdopt},
		"running, held before, fenced":                {func(a *attempt) { running2(a); a.session = 1 }, func(v *view) { v.fenced = true }, doNothing},
		"waiting, held before, fenced":                {func(a *attempt) { a.session = 1 }, func(v *view) { v.fenced = true }, doNothing},
		"running, gone":                               {func(a *attempt) { running2(a); a.recordGone = true }, nil, doKill},
		"running, cancelled":                          {func(a *attempt) { running2(a); a.CancelRequested = true }, nil, doKill},
		"running, overdue":                            {running2, func(v *view) { v.overdue = true }, doKill},
		"running, draining":                           {running2, func(v *view) { v.draining = true }, doNothing},
		"running, stopping":                           {running2, func(v *view) { v.stopping = true }, doKill},
		"running, killed": {func(a *attempt) {
			running2(a)
			a.CancelRequested, a.killed = true, process.Kill{Cause: process.CauseCancel, Grace: a.KillGrace.Std()}
		}, nil, doNothing},
		"running, killed, and gone since": {func(a *attempt) {
			running2(a)
			a.recordGone, a.killed = true, process.Kill{Cause: process.CauseCancel, Grace: time.Hour}
		}, nil, doKill},
		"ended":         {func(a *attempt) { a.phase = phaseEnded }, nil, doRecord},
		"ended, gone":   {func(a *attempt) { a.phase, a.recordGone = phaseEnded, true }, nil, doRecord},
		"settled":       {func(a *attempt) { a.phase = phaseSettled }, nil, doNothing},
		"settled, gone": {func(a *attempt) { a.phase, a.recordGone = phaseSettled, true }, nil, doForget},
	} {
		a, v := &attempt{Held: &record.Held{}}, ok
		a.KillGrace = task.Duration(10 * time.Second)
		c.a(a)

		if c.v != nil {
			c.v(&v)
		}

		if got := nextStep(a, v); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func perhapsHandedBack(a *attempt) { a.session, a.Mod, a.handBackMod = 2, 5, 5 }

func running2(a *attempt) { a.phase, a.session = phaseRunning, 2 }

// Verifies: G10
func TestDecide_NeverStartsWhatItMustNot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
		a := &attempt{
			Held: &record.Held{}, phase: phase(rapid.IntRange(0, int(phases)-1).Draw(t, "phase")), recordGone: flip("gone"), foreign: flip("foreign"), stale: flip("stale"),
			session: rapid.IntRange(0, 2).Draw(t, "session"), busy: flip("busy"),
		}
		a.CancelRequested = flip("cancel")
		a.Mod, a.handBackMod = int64(rapid.IntRange(1, 2).Draw(t, "mod")), int64(rapid.IntRange(0, 2).Draw(t, "handed back"))
		v := view{session: rapid.IntRange(0, 2).Draw(t, "latest"), draining: flip("draining"), stopping: flip("stopping"),
			overdue: flip("overdue"), dead: flip("dead"), behind: flip("behind"), frozen: flip("frozen")}
		if nextStep(a, v) != doReady {
			return
		}

		if a.phase != phaseWaiting || a.recordGone || a.foreign || a.stale || a.busy || a.CancelRequested || v.draining || v.behind || v.frozen || v.overdue ||
			v.session == 0 || a.session != v.session || a.Mod == a.handBackMod {
			t.Fatalf("would start %+v in %+v", a, v)
		}
	})
}

func TestNext(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	base := executortest.Assigned("r1", nil)
	base.Retry = task.Retry{Attempts: 3, Backoff: task.Duration(10 * time.Second), Factor: 2, MaxBackoff: task.Duration(time.Hour),
		On: []task.State{task.Failed, task.Lost}}
	base.LatenessMS = new(int64(5))
	base.CreatedBy, base.EnvNames = &task.Actor{Subject: "ann", Token: "k3vq"}, []string{"A", "B"}
	base.Args, base.TargetNode = []string{"x"}, "n1"
	base.FanOut = task.FanOut{PartCount: 3, Step: "load", Item: new(2)}
	end := base.Run

	end.State, end.Token, end.StartedAt, end.ExitCode, end.OutputTail = task.Failed, 7, task.At(now), new(1), "x"
	for name, c := range map[string]struct {
		change func(*task.Assigned, *task.Run)
		wait   time.Duration // 0: no next attempt
		number int
	}{
		"first failed":         {func(*task.Assigned, *task.Run) {}, 10 * time.Second, 2},
		"second failed":        {func(a *task.Assigned, _ *task.Run) { a.Attempt = 2 }, 20 * time.Second, 3},
		"third failed":         {func(a *task.Assigned, _ *task.Run) { a.Attempt = 3 }, 0, 0},
		"without a number":     {func(a *task.Assigned, _ *task.Run) { a.Attempt = 0 }, 10 * time.Second, 2},
		"lost":                 {func(_ *task.Assigned, r *task.Run) { r.State = task.Lost }, 10 * time.Second, 2},
		"timed out, not in on": {func(_ *task.Assigned, r *task.Run) { r.State = task.TimedOut }, 0, 0},
		"cancel requested":     {func(a *task.Assigned, _ *task.Run) { a.CancelRequested = true }, 0, 0},
		"cancelled":            {func(_ *task.Assigned, r *task.Run) { r.State = task.Cancelled }, 0, 0},
		"succeeded":            {func(_ *task.Assigned, r *task.Run) { r.State = task.Succeeded }, 0, 0},
		"missed":               {func(_ *task.Assigned, r *task.Run) { r.State = task.Missed }, 0, 0},
		"an exit code that is": {func(a *task.Assigned, r *task.Run) { a.Retry.ExitCodes = []int{75, 1} }, 10 * time.Second, 2},
		"one that is not":      {func(a *task.Assigned, r *task.Run) { a.Retry.ExitCodes = []int{75} }, 0, 0},
		"no exit code":         {func(a *task.Assigned, r *task.Run) { a.Retry.ExitCodes, r.ExitCode = []int{75}, nil }, 0, 0},
		"lost, with codes": {func(a *task.Assigned, r *task.Run) {
			a.Retry.ExitCodes, r.State, r.ExitCode = []int{75}, task.Lost, nil
		}, 10 * time.Second, 2},
	} {
		a, r := base, end
		c.change(&a, &r)

		w := Next(a, r, now, 0.5)
		if (w == nil) != (c.wait == 0) {
			t.Errorf("%s: got %+v", name, w)
			continue
		}

		if w == nil {
			continue
		}

		if got := w.NotBefore.Sub(now); got != c.wait || w.Attempt != c.number || w.State != task.Queued || w.ID != "r1" {
			t.Errorf("%s: waits %s for attempt %d: %+v", name, got, w.Attempt, w)
		}

		if !w.CreatedBy.Equal(base.CreatedBy) || !slices.Equal(w.EnvNames, base.EnvNames) {
			t.Errorf("%s: asked for by %q with %q", name, w.CreatedBy, w.EnvNames)
		}
		if w.PartCount != 3 || w.Step != "load" || w.Item == nil || *w.Item != 2 {
			t.Errorf("%s: it is part of %+v", name, w.FanOut)
		}
		if !slices.Equal(w.Args, base.Args) || w.TargetNode != base.TargetNode {
			t.Errorf("%s: the arguments are %q, the node is %q", name, w.Args, w.TargetNode)
		}

		last := w.Attempts[len(w.Attempts)-1]
		if last.Token != 7 || last.State != r.State || last.Attempt != c.number-1 || *w.LatenessMS != 5 {
			t.Errorf("%s: got %+v", name, last)
		}

		if w.Token != 0 || w.Node != "" || w.ExitCode != nil || w.OutputTail != "" || !w.StartedAt.IsZero() {
			t.Errorf("%s: the next attempt carries what the last one left: %+v", name, w)
		}
	}
}

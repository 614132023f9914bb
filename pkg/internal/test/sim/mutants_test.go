package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/internal/test/sim"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// detection describes how a mutant is to be detected.
type detection struct {
	by []string // guarantees; the mutant must break one of them
	in scenario
}

// scenario is the conditions in which mutants run. It has a name, so that several mutants can share the comparison
// without a mutant.
type scenario struct {
	name string
	sim.Options
}

var (
	calmScenario      = scenario{"calm", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 10 * time.Second}}
	roughScenario     = scenario{"rough", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Rough: true}}
	movingScenario    = scenario{"moving", sim.Options{Plain: true, Only: []string{"join", "drain", "kill", "held", "stall watches"}, Duration: 40 * time.Second}}
	killedScenario    = scenario{"killed", sim.Options{Plain: true, Only: []string{"kill", "kill host"}, Duration: 30 * time.Second}}
	revokedScenario   = scenario{"revoked", sim.Options{Plain: true, Only: []string{"revoke a lease"}, Duration: 30 * time.Second}}
	deposedScenario   = scenario{"deposed", sim.Options{Plain: true, Only: []string{"revoke a lease", "kill", "drain", "join"}, Duration: 30 * time.Second}}
	lateScenario      = scenario{"late", sim.Options{Plain: true, Only: []string{"stall watches"}, Duration: 30 * time.Second, Calls: []string{"pause", "resume", "resume", "delete", "apply", "patch"}}}
	editedScenario    = scenario{"edited", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 5, Rough: true, Shape: withoutLedger, Calls: []string{"pause", "resume", "patch", "patch"}}}
	waitingScenario   = scenario{"waiting", sim.Options{Plain: true, Only: []string{"stall watches"}, Duration: 30 * time.Second, Calls: []string{"cancel", "trigger"}, Shape: withRetries(4 * time.Second)}}
	cancelledScenario = scenario{"cancelled", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 5, Calls: []string{"cancel", "trigger"}, Shape: withRetries(500 * time.Millisecond)}}
	aloneScenario     = scenario{"alone", sim.Options{Plain: true, Only: []string{"calm"}, Nodes: 1, Duration: 30 * time.Second, Tasks: 5, Calls: []string{"cancel", "trigger"}, Shape: withRetries(500 * time.Millisecond)}}
	lostScenario      = scenario{"lost", sim.Options{Plain: true, Only: []string{"cut"}, Duration: time.Minute, Shape: withReplace}}

	changedScenario  = scenario{"changed", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"change lost_after"}, Nodes: 4, Tasks: 5, Duration: time.Minute, Shape: withReplace, Calls: []string{"trigger"}}}
	blinkingScenario = scenario{"blinking", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"blink nodes"}, Duration: 40 * time.Second, Slots: 1, Tasks: 20, Rough: true, Shape: withSlowRuns}}

	frozenScenario     = scenario{"frozen", sim.Options{Only: []string{"stall watches"}, Duration: 30 * time.Second, Calls: []string{"freeze", "unfreeze"}}}
	limitedScenario    = scenario{"limited", sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second, Shape: withBounds}}
	busyScenario       = scenario{"busy", sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second, Shape: withLongRuns}}
	fanOutScenario     = scenario{"fanned", sim.Options{Only: []string{"calm"}, Duration: 15 * time.Second, Tasks: 4, Shape: withParts, Calls: []string{"trigger", "resume"}}}
	unheardScenario    = scenario{"unheard", sim.Options{Only: []string{"stall watches"}, Duration: 30 * time.Second, Tasks: 4, Shape: withFailingParts, Calls: []string{"cancel"}}}
	forbiddenScenario  = scenario{"forbidden", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 50 * time.Second, Tasks: 4, Shape: withUser, Calls: []string{"limit namespace", "trigger"}}}
	unlabelledScenario = scenario{"unlabelled", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 50 * time.Second, Tasks: 4, Shape: withUser, Calls: []string{"restrict nodes", "limit nodes", "trigger"}}}
	inputScenario      = scenario{"input", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{}, Duration: 50 * time.Second, Tasks: 2, Shape: withInput, Calls: []string{"trigger with input", "trigger with input", "change accept"}}}
	refusedScenario    = requestsScenario("refused", withRequests(3*time.Second))
	forgottenScenario  = requestsScenario("forgotten", withRequests(time.Minute))
	foldedScenario     = scenario{"folded", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Shape: withFolds("10ms"), Calls: []string{"trigger"}}}
	refoldedScenario   = scenario{"folded again", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Rough: true, Shape: withFolds("10ms"), Calls: []string{"trigger"}}}
	skippingScenario   = scenario{"skipping", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 40 * time.Second, Tasks: 6, Slots: 30, Rough: true, Shape: withManyFolds, Calls: []string{"freeze", "unfreeze"}}}
	pausedScenario     = scenario{"paused", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 75 * time.Second, Tasks: 4, Shape: withFolds("10ms"), Calls: []string{"pause", "resume"}}}
	crowdedScenario    = scenario{"crowded", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Slots: 20, Shape: withCrowds}}
	queuedScenario     = scenario{"queued", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Shape: withQueues}}
	jitteredScenario   = scenario{"jittered", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Shape: withJitter}}
	behindScenario     = scenario{"behind", sim.Options{Plain: true, Only: []string{"kill", "kill host"}, Duration: 30 * time.Second, Shape: withLateTicks}}
	joiningScenario    = scenario{"joining", sim.Options{Plain: true, Only: []string{"kill", "kill host"}, Duration: 30 * time.Second, Shape: withJoining}}
	deadlineScenario   = scenario{"deadline", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Shape: withDeadlines}}
	flakyScenario      = scenario{"flaky", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 4, Shape: withFlakyRuns(), Calls: []string{"apply", "apply", "resume"}}}
	selectedScenario   = scenario{"selected", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Shape: withSelectors}}
	drainedScenario    = scenario{"drained", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 50 * time.Second, Tasks: 6, Shape: withSpread, Calls: []string{"cordon node", "trigger"}}}
	replacedScenario   = scenario{"replaced", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Tasks: 6, Shape: withReplacements}}
	alertingScenario   = scenario{"alerting", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"alerts"}, Duration: 50 * time.Second, Tasks: 3, Slots: 20, Shape: withAlerts, Calls: []string{"edit alerts", "dismiss all"}, WrapClient: delayAlerts}}
	ruledScenario      = scenario{"ruled", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"alerts"}, Duration: 50 * time.Second, Tasks: 6, Slots: 20, Shape: withRules, Calls: []string{"set alert rule", "delete alert rule"}, WrapClient: delayAlerts}}
	repeatingScenario  = scenario{"repeating", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"alerts"}, Duration: 50 * time.Second, Tasks: 6, Slots: 20, Shape: withLongFailures, Calls: []string{"retry"}}}
	lateSuccesses      = scenario{"late successes", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"alerts"}, Duration: 70 * time.Second, Tasks: 3, Slots: 20, Shape: withLateSuccesses, Calls: []string{"resume"}}}
	unmetScenario      = scenario{"unmet", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{}, Duration: 160 * time.Second, Tasks: 4, Shape: withUnmet, Calls: []string{"dismiss"}}}
	metScenario        = scenario{"met", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{}, Duration: 240 * time.Second, Tasks: 3, Shape: withSlowSuccess, Calls: []string{"dismiss"}}}
	bootingScenario    = scenario{"booting", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"boots"}, Nodes: 4, Duration: 40 * time.Second, Tasks: 6, Rough: true, Shape: withBoots, Calls: []string{"apply"}}}
	undeletedScenario  = scenario{"undeleted", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 1, Calls: []string{"apply", "delete", "delete", "undelete"}}}
	chainedScenario    = scenario{"chained", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 6, Slots: 20, Rough: true, Shape: withChains, Calls: []string{"apply", "edit sources"}}}
	sentLateScenario   = scenario{"sent late", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 6, Slots: 20, Shape: withChains, Calls: []string{"apply"}, WrapClient: delaySends}}
	damagedScenario    = scenario{"damaged", sim.Options{Plain: true, Only: []string{"stall watches"}, Duration: 40 * time.Second, Tasks: 6, Slots: 20, Shape: withChains, Calls: []string{"apply", "damage links", "damage links", "damage links"}}}
	heldBackScenario   = scenario{"held back", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 6, Slots: 20, Shape: withBranches, Calls: []string{"apply", "pause", "resume"}}}
	unorderedScenario  = scenario{"unordered", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 60 * time.Second, Tasks: 3, Slots: 60, Shape: withUnorderedEnds, Calls: []string{"trigger"}}}
	steppedScenario    = scenario{"stepped", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"workflows"}, Duration: 30 * time.Second, Tasks: 6, Slots: 20, Calls: []string{"apply", "trigger"}}}
	stalledSteps       = scenario{"stalled steps", sim.Options{Plain: true, Only: []string{"stall watches"}, Workloads: []string{"workflows"}, Duration: 40 * time.Second, Tasks: 6, Slots: 20, Calls: []string{"trigger"}}}
	failingScenario    = scenario{"failing", sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second, Shape: withFailingRuns}}
)

// detections maps mutants to how they are detected. The faults are chosen so that the mutant does harm quickly. Others would do, given
// enough seeds.
var detections = map[string]detection{
	"sent-by-mod":           {[]string{"G63"}, damagedScenario},
	"sent-uncompared":       {[]string{"G63"}, chainedScenario},
	"older-ends":            {[]string{"G63"}, chainedScenario},
	"trim-unsent":           {[]string{"G63"}, sentLateScenario},
	"fold-range-unguarded":  {[]string{"G31"}, unorderedScenario},
	"trigger-kept":          {[]string{"G64"}, chainedScenario},
	"trigger-uncompared":    {[]string{"G64"}, damagedScenario},
	"same-millisecond":      {[]string{"G64"}, heldBackScenario},
	"accept-anything":       {[]string{"G29"}, inputScenario},
	"no-owner-fence":        {[]string{"G1"}, movingScenario},
	"no-session-fence":      {[]string{"G2"}, revokedScenario},
	"no-watermark-compare":  {[]string{"G3", "G5"}, roughScenario},
	"no-entry-compare":      {[]string{"G7"}, lateScenario},
	"no-queue-compare":      {[]string{"G3", "G12"}, waitingScenario},
	"no-run-compare":        {[]string{"G9", "G12", "state"}, lostScenario},
	"no-term-compare":       {[]string{"G2"}, deposedScenario},
	"open-without-commit":   {[]string{"G1"}, calmScenario},
	"seen-ahead":            {[]string{"G5"}, calmScenario},
	"tick-again":            {[]string{"G3"}, calmScenario},
	"error-is-nothing":      {[]string{"G3", "G12", "G13"}, roughScenario},
	"error-is-done":         {[]string{"G13"}, roughScenario},
	"stale-scan":            {[]string{"G8"}, killedScenario},
	"anyones-attempt":       {[]string{"G9"}, killedScenario},
	"cleared-unseen":        {[]string{"G17"}, lostScenario},
	"present-lost-after":    {[]string{"G8", "G17"}, changedScenario},
	"adoption-forged":       {[]string{"G9", "G11", "G13", "G17"}, blinkingScenario},
	"forged-renewals":       {[]string{"G17"}, lostScenario},
	"start-before-commit":   {[]string{"G10"}, calmScenario},
	"deaf-watches":          {[]string{"G16"}, calmScenario},
	"no-freezes-compare":    {[]string{"G21"}, frozenScenario},
	"no-revised-compare":    {[]string{"G4"}, lateScenario},
	"edit-unrevised":        {[]string{"G4"}, lateScenario},
	"edit-uncompared":       {[]string{"G31"}, editedScenario},
	"run-uncounted":         {[]string{"G24"}, limitedScenario},
	"range-short":           {[]string{"G3", "G12"}, busyScenario},
	"nothing-kept":          {[]string{"G25"}, failingScenario},
	"undelete-uncompared":   {[]string{"G25"}, undeletedScenario},
	"no-parent-compare":     {[]string{"state"}, unheardScenario},
	"part-again":            {[]string{"G9"}, fanOutScenario},
	"part-astray":           {[]string{"G24"}, fanOutScenario},
	"part-untold":           {[]string{"G4"}, fanOutScenario},
	"rule-bent":             {[]string{"G24"}, fanOutScenario},
	"namespaces-open":       {[]string{"G29"}, forbiddenScenario},
	"limits-unseen":         {[]string{"G29"}, unlabelledScenario},
	"unsent-counted":        {[]string{"G9"}, forgottenScenario},
	"unsent-forever":        {[]string{"G9"}, refusedScenario},
	"unsent-after-sent":     {[]string{"G9"}, forgottenScenario},
	"retry-after-clamped":   {[]string{"G9"}, forgottenScenario},
	"full-rule-ignored":     {[]string{"G24"}, forgottenScenario},
	"fold-apart":            {[]string{"G31"}, foldedScenario},
	"chunk-uncompared":      {[]string{"G31"}, refoldedScenario},
	"grown-range-unguarded": {[]string{"G31"}, skippingScenario},
	"exception-dropped":     {[]string{"G31"}, foldedScenario},
	"span-over-a-hole":      {[]string{"G31"}, pausedScenario},
	"conflicts-together":    {[]string{"G1", "G3", "G12"}, aloneScenario},

	// Workflows.
	"plan-unpinned":       {[]string{"G65"}, steppedScenario},
	"flow-uncompared":     {[]string{"G65", "state"}, stalledSteps},
	"need-unknown":        {[]string{"G65"}, steppedScenario},
	"no-cleanup":          {[]string{"G66"}, steppedScenario},
	"cancel-hits-cleanup": {[]string{"G66"}, steppedScenario},
	"timeout-always":      {[]string{"G65"}, steppedScenario},
	"plan-leaked":         {[]string{"G65"}, steppedScenario},
	"retry-keeps-failed":  {[]string{"G65"}, steppedScenario},
	"retry-reruns":        {[]string{"G65"}, steppedScenario},
	"cleanup-kept":        {[]string{"G65"}, steppedScenario},

	// Boots.
	"boot-uncompared": {[]string{"G62"}, bootingScenario},

	// Alerts.
	"range-uncompared": {[]string{"G57"}, alertingScenario},
	"dead-uncompared":  {[]string{"G57"}, alertingScenario},
	"entry-uncompared": {[]string{"G57"}, alertingScenario},
	"rule-uncompared":  {[]string{"G57"}, ruledScenario},
	"old-dead-run":     {[]string{"G57", "G58"}, alertingScenario},
	"retry-closes":     {[]string{"G57"}, repeatingScenario},
	"row-only":         {[]string{"G57"}, alertingScenario},
	"older-tick":       {[]string{"G57"}, lateSuccesses},
	"success-unread":   {[]string{"G58"}, unmetScenario},
	"deadline-unread":  {[]string{"G58"}, unmetScenario},
	"judged-late":      {[]string{"G58"}, unmetScenario},
	"met-stays-open":   {[]string{"G58"}, metScenario},

	// Decisions.
	"ledger-twice":      {[]string{"G31"}, foldedScenario},
	"overlap-ignored":   {[]string{"G8"}, busyScenario},
	"late-not-joined":   {[]string{"G24"}, joiningScenario},
	"one-active-more":   {[]string{"G8", "G24"}, crowdedScenario},
	"oldest-stays":      {[]string{"G24"}, queuedScenario},
	"backoff-ignored":   {[]string{"G24"}, waitingScenario},
	"retry-at-once":     {[]string{"G24"}, cancelledScenario},
	"jitter-twice":      {[]string{"G4", "G6"}, jitteredScenario},
	"catch-up-short":    {[]string{"G24"}, behindScenario},
	"deadline-late":     {[]string{"G22"}, deadlineScenario},
	"trim-one-more":     {[]string{"G25", "G31"}, foldedScenario},
	"success-uncounted": {[]string{"G24"}, flakyScenario},
	"pause-late":        {[]string{"G24"}, flakyScenario},
	"paused-fires":      {[]string{"G7"}, pausedScenario},
	"selector-ignored":  {[]string{"G29"}, selectedScenario},
	"drained-gets-runs": {[]string{"G20"}, drainedScenario},
	"frozen-fires":      {[]string{"G21"}, frozenScenario},
	"replaced-stay":     {[]string{"G16"}, replacedScenario},
}

// requestsScenario returns a scenario in which the targets of requests fail, and nothing else.
func requestsScenario(name string, shape func(*task.Spec)) scenario {
	return scenario{name, sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"requests"}, Duration: 40 * time.Second, Tasks: 6, Shape: shape, Calls: []string{"trigger"}}}
}

// withRequests gives tasks requests, which are repeated when they are not answered. Those that are not sent are free for
// a time.
func withRequests(free time.Duration) func(*task.Spec) {
	return func(s *task.Spec) {
		*s = withShortRuns(*s)
		s.Overlap, s.Schedule, s.Timeout = task.OverlapAllow, task.Schedules{"*/2 * * * * *"}, task.Duration(2*time.Second)
		s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 4, task.Duration(100*time.Millisecond), []task.State{task.Failed, task.TimedOut}
		s.Action = task.Action{HTTP: &task.HTTP{
			URL: fmt.Sprintf("http://svc%d.test/300ms/200", int(s.Name[len(s.Name)-1])%3), Method: "GET", UnsentFor: new(task.Duration(free)),
		}}
	}
}

// withReplace gives tasks long runs that start again elsewhere when they are lost.
func withReplace(s *task.Spec) {
	s.Schedule, s.Timeout = task.Schedules{"*/5 * * * * *"}, 0
	s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 4, task.Duration(100*time.Millisecond), []task.State{task.Lost}
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "40s", "0"}}}
}

// withUser gives tasks an OS user that their namespace allows at first.
func withUser(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "100ms", "0"}, User: "batch"}}
}

// withInput gives tasks runs that wait for each other, and that accept arguments at first.
func withInput(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Schedule, s.Overlap, s.Queue = task.Schedules{"@manual"}, task.OverlapQueue, task.QueuePolicy{Limit: 100}
	s.Accept, s.Action = task.Accept{Args: 2, Target: true}, task.Action{Process: &task.Process{Command: []string{"sim", "4s", "0"}}}
}

// withBounds limits the number of runs.
func withBounds(s *task.Spec) {
	*s = withShortRuns(*s)
	s.MaxRuns = 5
}

// withSlowRuns gives tasks runs that have to wait in the inboxes of their nodes.
func withSlowRuns(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "1s", "0"}}}
}

// withLongRuns gives tasks runs that take longer than several periods of their schedules.
func withLongRuns(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Overlap, s.Action = task.OverlapSkip, task.Action{Process: &task.Process{Command: []string{"sim", "8s", "0"}}}
}

// withFailingRuns gives tasks that fail.
func withFailingRuns(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "10ms", "1"}}}
}

// withAlerts gives tasks runs that often fail, and alerts about that.
func withAlerts(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Schedule, s.Alerts = task.Schedules{"*/3 * * * * *"}, &task.Alerts{}
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "300ms", sim.Flaky}}}
}

// withRules leaves tasks to rules. Half of their runs fail.
func withRules(s *task.Spec) {
	withAlerts(s)
	s.Alerts, s.Labels = nil, map[string]string{"team": "data"}
}

// delayAlerts delays the writes of alerts, so that something changes between the reading of a task and the write.
func delayAlerts(_ string, c *clientv3.Client) {
	c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if writesAlert(op) {
			clock.Sleep(ctx, 1500*time.Millisecond)
		}
		return next(ctx, op)
	})
}

// writesAlert reports whether an operation writes the alert of a task.
func writesAlert(op clientv3.Op) bool {
	if op.IsTxn() {
		_, then, _ := op.Txn()
		return slices.ContainsFunc(then, writesAlert)
	}
	return op.IsPut() && strings.Contains(string(op.KeyBytes()), "/alerts/0")
}

// withLongFailures gives tasks a failed run now and then. When one is repeated, that takes longer than an evaluation of alerts.
func withLongFailures(s *task.Spec) {
	withAlerts(s)
	s.Schedule, s.Overlap, s.Action.Process.Command = task.Schedules{"*/20 * * * * *"}, task.OverlapSkip, []string{"sim", "8s", "1"}
}

// withLateSuccesses gives tasks runs that succeed long after the deadlines of the ticks that they skip.
func withLateSuccesses(s *task.Spec) {
	withAlerts(s)
	s.Schedule, s.Overlap, s.Action.Process.Command = task.Schedules{"*/5 * * * * *"}, task.OverlapSkip, []string{"sim", "40s", "0"}
	s.Alerts = &task.Alerts{Failures: new(0), SuccessBy: "*/10 * * * * *"}
}

// withUnmet gives tasks runs that all fail, although successes are expected.
func withUnmet(s *task.Spec) {
	withAlerts(s)
	s.Schedule, s.Action.Process.Command = task.Schedules{"*/10 * * * * *"}, []string{"sim", "300ms", "1"}
	s.Alerts = &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Minute)}
	if int(s.Name[len(s.Name)-1])%2 == 0 {
		s.Alerts.SuccessWithin, s.Alerts.SuccessBy = 0, "*/30 * * * * *"
	}
}

// withSlowSuccess gives tasks runs that succeed, but not before a success is expected.
func withSlowSuccess(s *task.Spec) {
	withAlerts(s)
	s.Schedule, s.Overlap, s.Action.Process.Command = task.Schedules{"*/5 * * * * *"}, task.OverlapSkip, []string{"sim", "140s", "0"}
	s.Alerts = &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(2 * time.Minute)}
}

// withChains lets each task run after the one before it, with one record in its history. The first has a tick each second.
func withChains(s *task.Spec) {
	*s = withShortRuns(*s)
	s.History.Keep = 1
	s.Schedule = task.Schedules{sim.RareTick, "* * * * 11 *"}
	if n := int(s.Name[len(s.Name)-1] - '0'); n > 0 {
		s.Schedule, s.Overlap, s.Queue = task.Schedules{task.ManualSchedule}, task.OverlapQueue, task.QueuePolicy{Limit: 100}
		s.After = task.Sources{{Task: fmt.Sprintf("t%02d", n-1)}}
	}
}

// withBranches lets all tasks run after the first, with runs that take so long that triggers wait.
func withBranches(s *task.Spec) {
	withChains(s)
	if len(s.After) > 0 {
		s.After[0].Task, s.Action = "t00", task.Action{Process: &task.Process{Command: []string{"sim", "8s", "0"}}}
	}
}

// delaySends delays the writes of triggers, so that histories are trimmed before.
func delaySends(_ string, c *clientv3.Client) { delayPuts(c, "/sent/") }

// delayPuts delays transactions that write keys with a part.
func delayPuts(c *clientv3.Client, part string) {
	var puts func(op clientv3.Op) bool
	puts = func(op clientv3.Op) bool {
		if op.IsTxn() {
			_, then, _ := op.Txn()
			return slices.ContainsFunc(then, puts)
		}
		return op.IsPut() && strings.Contains(string(op.KeyBytes()), part)
	}

	c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if puts(op) {
			clock.Sleep(ctx, 1500*time.Millisecond)
		}
		return next(ctx, op)
	})
}

// withBoots lets tasks run at boot.
func withBoots(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Schedule = task.Schedules{task.BootSchedule}
}

// withCrowds lets tasks have two runs at a time, which take longer than that.
func withCrowds(s *task.Spec) {
	withLongRuns(s)
	s.Overlap, s.MaxActive = task.OverlapAllow, 2
}

// withQueues lets one tick of a task wait, and drops it for a newer one.
func withQueues(s *task.Spec) {
	withLongRuns(s)
	s.Overlap, s.Queue = task.OverlapQueue, task.QueuePolicy{Limit: 1, Drop: task.DropOldest}
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "3s", "0"}}}
}

// withReplacements ends runs for newer ticks.
func withReplacements(s *task.Spec) {
	withLongRuns(s)
	s.Overlap = task.OverlapReplace
}

// withJitter delays ticks by up to five seconds.
func withJitter(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Schedule, s.Jitter = task.Schedules{"*/10 * * * * *"}, task.Duration(5*time.Second)
}

// withLateTicks lets tasks catch up with the newest of the ticks that they have missed.
func withLateTicks(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Missed.Policy = task.MissedLatest
}

// withJoining lets every late tick run, with runs that take longer than half of a period.
func withJoining(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Schedule, s.Missed.Policy, s.Missed.Limit, s.Missed.Grace = task.Schedules{"* * * * * *"}, task.MissedAll, 100, task.Duration(time.Second)
	s.Overlap, s.Action = []string{task.OverlapSkip, task.OverlapReplace}[int(s.Name[len(s.Name)-1])%2], task.Action{Process: &task.Process{Command: []string{"sim", "600ms", "0"}}}
}

// withDeadlines lets ticks wait for two seconds at most.
func withDeadlines(s *task.Spec) {
	withQueues(s)
	s.Queue, s.Deadline = task.QueuePolicy{Limit: 5}, task.Duration(2*time.Second)
}

// withFlakyRuns returns what gives tasks runs that fail until somebody applies the task again, and then succeed. Three
// failures in a row pause a task.
func withFlakyRuns() func(*task.Spec) {
	var applied atomic.Int64
	return func(s *task.Spec) {
		*s = withShortRuns(*s)
		s.PauseAfter, s.Action = 3, task.Action{Process: &task.Process{Command: []string{"sim", "10ms", fmt.Sprint(applied.Add(1) % 2)}}}
	}
}

// withSelectors limits tasks to one node.
func withSelectors(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Target.Selector = "pool=a"
}

// withSpread spreads the runs of tasks over all nodes.
func withSpread(s *task.Spec) {
	*s = withShortRuns(*s)
	s.Target.Strategy = task.StrategyRoundRobin
}

// withFolds gives tasks a fold after almost each run. Runs take some time; those of every second task fail.
func withFolds(length string) func(*task.Spec) {
	return func(s *task.Spec) {
		*s = withShortRuns(*s)
		s.Schedule, s.Overlap, s.History.Keep = task.Schedules{sim.RareTick, "* * * * 11 *"}, task.OverlapSkip, 1
		s.Action = task.Action{Process: &task.Process{Command: []string{"sim", length, fmt.Sprint(int(s.Name[len(s.Name)-1]) % 2)}}}
	}
}

// withManyFolds gives tasks many runs at a time. When their ticks are frozen, the runs end one by one, and each causes a fold
// while the record of the ticks that are skipped grows.
func withManyFolds(s *task.Spec) {
	withFolds("8s")(s)
	s.Overlap = task.OverlapAllow
}

// withUnorderedEnds gives tasks many runs at a time, half of which take longer than those after them.
func withUnorderedEnds(s *task.Spec) {
	withFolds("2s")(s)
	s.Overlap, s.Action.Process.Command[2] = task.OverlapAllow, sim.Flaky
	s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 3, task.Duration(2*time.Second), []task.State{task.Failed}
}

// withoutLedger gives tasks one record and no ledger, so that answers about earlier ticks follow from the times of edits.
func withoutLedger(s *task.Spec) {
	withFolds("10ms")(s)
	s.History.Ledger = new(task.Duration(0))
}

// withFailingParts gives tasks runs with parts that fail and wait for a retry.
func withFailingParts(s *task.Spec) {
	withParts(s)
	s.Target = task.Target{Parts: 4, Count: 1, Strategy: task.StrategyAuto}
	s.Retry.Attempts, s.Retry.Backoff = 4, task.Duration(4*time.Second)
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "100ms", "1"}}}
}

// withShortRuns returns a task with a tick every second and no policies.
func withShortRuns(s task.Spec) task.Spec {
	q := task.Defaults()
	q.Name, q.Namespace, q.Description = s.Name, s.Namespace, s.Description
	q.Schedule, q.Action, q.Overlap = task.Schedules{"* * * * * *"}, task.Action{Noop: &task.Noop{}}, s.Overlap
	return q
}

// withRetries gives tasks that fail and wait for a moment before the retry.
func withRetries(backoff time.Duration) func(*task.Spec) {
	return func(s *task.Spec) {
		s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 4, task.Duration(backoff), []task.State{task.Failed}
		s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "100ms", "1"}}}
	}
}

// Each mutant must break a guarantee of its rule, and the same simulation must be valid without the mutant.
func TestMutants_AreCaught(t *testing.T) {
	var comparisons cleanRuns
	for _, name := range mutant.Names(mutant.Simulation) {
		h, known := detections[name]
		if !known {
			t.Errorf("no scenario for mutant %s", name)
			continue
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel() // a simulation uses little more than one processor
			is, log := mutant.InProcess(t, name)
			if is {
				requireCaught(t, h)
				return
			}

			var seed uint64
			_, caught, _ := strings.Cut(log, seedMark)
			if _, err := fmt.Sscan(caught, &seed); err == nil {
				comparisons.requireValid(t, h, seed)
			}
		})
	}
}

const (
	maxSeeds = 100              // simulations of a mutant; each takes about a second. The rarest mutant is caught by one in seven
	patience = 90 * time.Second // for runs to end; with a mutant they may never end
	seedMark = "caught by seed "
)

// requireCaught simulates seeds until one breaks a guarantee of the detection, and logs that seed.
func requireCaught(t *testing.T, h detection) {
	t.Helper()

	others := map[string]int{}
	for seed := uint64(1); seed <= maxSeeds; seed++ {
		o := h.in.Options
		o.Patience = patience
		r := sim.Run(t, seed, o)

		i := slices.IndexFunc(r.Violations, func(v check.Violation) bool { return slices.Contains(h.by, v.Promise) })
		if i >= 0 {
			t.Logf("%s%d in %q: %s", seedMark, seed, h.in.name, r.Violations[i])
			return
		}
		for _, v := range r.Violations {
			others[v.Promise]++
		}
	}

	t.Fatalf("not caught by %v in %d simulations of %q; other violations: %v", h.by, maxSeeds, h.in.name, others)
}

// cleanRuns are simulations without a mutant. Several mutants can share one.
type cleanRuns struct {
	mu   sync.Mutex
	done map[string]bool // by scenario and seed
}

// requireValid runs the simulation without the mutant, unless another mutant has started it.
func (c *cleanRuns) requireValid(t *testing.T, h detection, seed uint64) {
	t.Helper()
	if c.isStarted(fmt.Sprint(h.in.name, seed)) {
		return
	}

	o := h.in.Options
	if slices.Contains(h.by, "G16") {
		o.Patience = patience
	}

	runInBubble(t, seed, o)
}

// isStarted reports whether a run was started before, and notes that it is started now.
func (c *cleanRuns) isStarted(run string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	before := c.done[run]
	if c.done == nil {
		c.done = map[string]bool{}
	}
	c.done[run] = true

	return before
}

// Each mutant of lists must make a list wrong.
func TestMutants_OfListsAreCaught(t *testing.T) {
	for _, name := range mutant.Names(mutant.Lists) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if is, _ := mutant.InProcess(t, name); !is {
				return
			}

			if name == "not-asked-again" {
				if len(judgeMovedShard(t)) == 0 {
					t.Error("not caught")
				}
				return
			}

			const most = 40
			for seed := uint64(1); seed <= most; seed++ {
				r := sim.RunLists(t, seed, sim.ListOptions{Askers: 6, Readers: 1})
				if len(r.Violations) > 0 {
					t.Logf("%s%d: %s", seedMark, seed, r.Violations[0])
					return
				}
			}

			t.Errorf("not caught by %d simulations", most)
		})
	}
}

func TestMutants_OfRestoresAreCaught(t *testing.T) {
	for _, name := range mutant.Names(mutant.Restores) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if is, _ := mutant.InProcess(t, name); !is {
				return
			}

			const most = 120
			for seed := uint64(1); seed <= most; seed++ {
				r := sim.RunRestore(t, seed, sim.DrawRestore(seed))
				if len(r.Violations) > 0 {
					t.Logf("%s%d: %s", seedMark, seed, r.Violations[0])
					return
				}
			}

			t.Errorf("not caught by %d simulations", most)
		})
	}
}

// The places of a superseded shard are those of a node that has others to offer, which has to be asked again.
func TestLists_AreRightWhereAShardHasMoved(t *testing.T) {
	t.Parallel()
	if v := judgeMovedShard(t); len(v) > 0 {
		t.Error(v)
	}
}

// judgeMovedShard judges the first page of a list while a node answers for a shard that has moved. In the simulation of
// lists, it rarely matters that such a node is asked again: the tasks of the shard must be gone meanwhile.
func judgeMovedShard(t *testing.T) []check.Violation {
	t.Helper()
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	// The tasks a and b of shard 0 are deleted, and the shard has moved to n2. n1 does not know either.
	now := time.Now()
	events := []check.Event{{Revision: 1, Key: keys.Entry(record.Ref{Namespace: "ns", Name: "c", Shard: 1}), Value: []byte(record.Encode(task.Entry{UID: "c"}))}}
	history := listcheck.NewHistory(keys, events, func(int64) time.Time { return now.Add(-time.Hour) }, nil)

	place := func(name string, shard int) readmodel.Place { return readmodel.Place{Name: "ns/" + name, Shard: shard} }
	owned := func(shard int, owner int64, tasks int) readmodel.ShardAnswer {
		return readmodel.ShardAnswer{Shard: shard, Owner: owner, Counts: readmodel.Counts{Tasks: tasks}}
	}

	n2 := readmodel.NodeAnswer{Node: "n2", Shards: []readmodel.ShardAnswer{owned(0, 9, 0)}}
	answers := []readmodel.NodeAnswer{
		{Node: "n1", Shards: []readmodel.ShardAnswer{owned(0, 5, 2), owned(1, 5, 1)}, Places: []readmodel.Place{place("a", 0), place("b", 0)}, More: true}, n2,
	}

	// n1 is asked again without the shard that has moved.
	if lost := readmodel.Superseded(answers); slices.Contains(lost["n1"], 0) {
		answers = []readmodel.NodeAnswer{{Node: "n1", Shards: []readmodel.ShardAnswer{owned(1, 5, 1)}, Places: []readmodel.Place{place("c", 1)}}, n2}
	}

	p := readmodel.Merge(&readmodel.Query{Order: readmodel.ByName, Limit: 2}, 2, answers)
	l := listcheck.List{Filter: listcheck.All, ByName: true, Asked: now, AsOf: now, Shown: now, Count: p.Counts.Tasks, Missing: p.Missing}
	for _, place := range p.Places {
		l.Names = append(l.Names, place.Name)
	}

	return history.CheckList(&l)
}

package ui

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertsScreen lists alerts with what each receiver knows of them, and the silences, as "carillon alert" does.
func alertsScreen() Screen {
	return Screen{
		Name: "alerts", Pattern: "/ui/alerts", Nav: "alerts",
		Title:   func(*View) string { return "Alerts" },
		Load:    loadAlerts,
		Command: alertsCommand,
		Parts:   []Part{{Name: "summary"}, {Name: "rows", Hold: true}, {Name: "receivers"}, {Name: "silences"}},
		Every:   5 * time.Second, // each rendering reads the alerts from etcd
		Actions: []Action{
			{Pattern: "/ui/alerts/acknowledge", Run: acknowledgeAlerts},
			{Pattern: "/ui/alerts/silence", Run: silenceAlerts},
			{Pattern: "/ui/alerts/unsilence/{ns}/{id}", Run: endSilence},
		},
	}
}

// alertsShown is the maximum number of alerts on the page. The API returns all, in no order.
const alertsShown = 200

// alertFilter chooses alerts by their state.
type alertFilter struct {
	Name  string // the value of the parameter "show"
	Label string
	keep  func(a *task.AlertStatus) bool // nil: all
}

// showClosed is the filter of alerts that were closed. All others are about open ones.
const showClosed = "closed"

var alertFilters = []alertFilter{
	{"", "open", nil},
	{"new", "nobody works on it", func(a *task.AlertStatus) bool { return a.Acknowledged == nil && a.Silence == nil }},
	{"acknowledged", "acknowledged", func(a *task.AlertStatus) bool { return a.Acknowledged != nil }},
	{"silenced", "silenced", func(a *task.AlertStatus) bool { return a.Silence != nil }},
	{showClosed, "closed in the last 2 hours", nil},
}

// alertsPage is what the screen shows.
type alertsPage struct {
	Filters                         []alertFilter
	Show, Namespace, Kind, Selector string
	Spaces                          []string
	Kinds                           []string

	Alerts    []alertRow
	More      int    // alerts that match but are not shown
	Summary   string // how many are in the list, by severity
	Ack       bool   // the viewer may acknowledge one of them
	Receivers []receiverRow
	Silences  []silenceRow
	Silence   bool // the viewer may silence tasks in some namespace
	Create    bool // the viewer may create tasks in some namespace
	Panel     *silencePanel

	left []leftRow[task.AlertStatus]
}

// Closed reports whether the page lists alerts that were closed.
func (p *alertsPage) Closed() bool { return p.Show == showClosed }

// Filtered reports whether anything limits the list.
func (p *alertsPage) Filtered() bool {
	return p.Show != "" || p.Namespace != "" || p.Kind != "" || p.Selector != ""
}

// alertRow is an alert as pages show it.
type alertRow struct {
	task.AlertStatus
	Problem  string // which expectation is not met
	Ending   string // why it was closed
	Silenced string // by whom, until when and why
	Told     []receiverState
	Ack      bool   // the viewer may acknowledge it
	Hold     bool   // the viewer may silence its task
	Left     string // why the row is not in the list any more; "" if it is
}

// Key names the alert in a form.
func (a alertRow) Key() string { return a.FullName() }

// receiverState is what a receiver knows of an alert, and why it gets no messages.
type receiverState struct {
	Namespace, Task string
	Look            string // whose looks the state has
	Words           string
	Run             string
}

// receiverRow is a receiver with how many of the listed alerts it knows.
type receiverRow struct {
	receiverState
	Notified, Waiting, Failed int
}

// silenceRow is a silence in the list.
type silenceRow struct {
	task.AlertSilence
	End bool // the viewer may end it
}

// silencePanel is the form that silences tasks.
type silencePanel struct {
	Namespace, Glob, Selector string
	Spaces                    []string // those in which the viewer may silence tasks
	Labels                    []string // of the task that the form is about, each as a selector
}

// rightsCache remembers for which namespaces the viewer has a right.
type rightsCache struct {
	r     *Request
	known map[string]bool
}

// may reports whether the viewer has a right in a namespace.
func (c *rightsCache) may(verb, kind, namespace string) bool {
	key := verb + " " + kind + " " + namespace
	allowed, known := c.known[key]
	if !known {
		allowed, _ = c.r.May(verb, kind, namespace) // the verbs and kinds exist
		if c.known == nil {
			c.known = map[string]bool{}
		}
		c.known[key] = allowed
	}

	return allowed
}

func loadAlerts(ctx context.Context, r *Request) (any, error) {
	q := r.Query
	p := &alertsPage{
		Filters: alertFilters, Show: q.Get("show"), Namespace: q.Get("ns"), Kind: q.Get("kind"), Selector: strings.TrimSpace(q.Get("selector")), Spaces: r.Namespaces(),
		Kinds: alertKinds(),
	}

	i := slices.IndexFunc(alertFilters, func(f alertFilter) bool { return f.Name == p.Show })
	if i < 0 {
		return p, task.Invalid(task.CodeBadValue, "show", "%s is not a state of alerts", task.Quote(p.Show))
	}

	o := client.AlertListOptions{Namespace: p.Namespace, Closed: p.Closed(), Selector: p.Selector}
	var list []task.AlertStatus
	var err, noSilences error
	callgroup.Run(
		func() { list, err = r.API.Alerts.List(ctx, o) },
		func() { noSilences = p.addSilences(ctx, r) },
	)
	if err != nil {
		return p, err
	}
	if noSilences != nil {
		return p, noSilences
	}

	rights := rightsCache{r: r}
	p.Panel = silencePanelOf(r, &rights, list)
	p.Silence = slices.ContainsFunc(p.Spaces, func(ns string) bool { return rights.may("pause", "tasks", ns) })
	p.Create = slices.ContainsFunc(p.Spaces, func(ns string) bool { return rights.may("create", "tasks", ns) })
	p.addReceivers(r, list)

	keep := alertFilters[i].keep
	list = slices.DeleteFunc(list, func(a task.AlertStatus) bool {
		return p.Kind != "" && string(a.Kind) != p.Kind || keep != nil && !keep(&a)
	})
	overview.SortAlerts(list)

	p.Summary = severitiesOf(list)
	shown := list[:min(len(list), alertsShown)]
	p.More = len(list) - len(shown)
	for i := range shown {
		row := alertRowOf(r, &rights, shown[i], "")
		p.Ack = p.Ack || row.Ack
		p.Alerts = append(p.Alerts, row)
	}

	if before, ok := r.previous.(*alertsPage); ok {
		p.addLeft(ctx, r, &rights, before, o)
	}

	return p, nil
}

// severitiesOf counts alerts by their severity.
func severitiesOf(list []task.AlertStatus) string {
	counts := map[string]int{}
	for i := range list {
		counts[list[i].Severity]++
	}

	if len(list) == 0 {
		return ""
	}

	return countText(len(list), "open alert") + ": " + overview.SeveritiesText(counts)
}

// addLeft adds the alerts that have left the list, for viewers who still see their rows. What has become of them is in the other list.
func (p *alertsPage) addLeft(ctx context.Context, r *Request, rights *rightsCache, before *alertsPage, o client.AlertListOptions) {
	listed := func(rows []alertRow) (list []task.AlertStatus) {
		for i := range rows {
			if rows[i].Left == "" {
				list = append(list, rows[i].AlertStatus)
			}
		}
		return list
	}
	nameOf := func(a task.AlertStatus) string { return a.FullName() }

	p.left = leftRows(r.Now, listed(before.Alerts), before.left, listed(p.Alerts), nameOf)
	if len(p.left) == 0 {
		return
	}

	o.Closed = !o.Closed
	others, err := r.API.Alerts.List(ctx, o)
	for i := range p.left {
		left := &p.left[i].item
		words := "no longer in this list"
		if at := slices.IndexFunc(others, func(a task.AlertStatus) bool { return nameOf(a) == nameOf(*left) }); err == nil && at >= 0 {
			*left = others[at]
		}

		row := alertRowOf(r, rights, *left, "")
		row.Left, row.Ack = words, false
		p.Alerts = append(p.Alerts, row)
	}
}

// alertRowOf returns an alert as pages show it. timezone is that of its task, if it is known.
func alertRowOf(r *Request, rights *rightsCache, a task.AlertStatus, timezone string) alertRow {
	at := r.clockText(timezone)
	row := alertRow{AlertStatus: a, Problem: wording.AlertProblem(&a.Alert, at)}
	if c := a.Closed; c != nil {
		row.Ending = wording.AlertClosedText(c)
	}
	if s := a.Silence; s != nil {
		row.Silenced = wording.AlertSilenceText(s, at)
	}
	for i := range a.Receivers {
		row.Told = append(row.Told, receiverStateOf(&a.Receivers[i], !a.IsOpen(), at))
	}

	switch {
	case !a.IsOpen():
	case a.Kind == task.AlertCluster:
		row.Ack = rights.may("operate", "cluster", "")
	case a.Kind != task.AlertMore:
		row.Ack = rights.may("retry", "runs", a.Namespace)
		row.Hold = a.Silence == nil && rights.may("pause", "tasks", a.Namespace)
	}

	return row
}

// clockText returns a function that formats a time as a part of a sentence.
func (r *Request) clockText(timezone string) func(task.Time) string {
	zone := r.Zone(timezone)

	return func(t task.Time) string { return t.In(zone).Format("Mon 2 Jan 15:04 MST") }
}

// receiverStateOf returns what a receiver knows as pages show it. The page links the run.
func receiverStateOf(status *task.AlertReceiver, closed bool, at func(task.Time) string) receiverState {
	r := *status
	s := receiverState{Look: receiverLook(&r), Run: r.Run}
	s.Namespace, s.Task, _ = strings.Cut(r.Receiver, "/")
	r.Run = ""
	if s.Words = wording.AlertReceiverText(&r, closed, at); s.Words == "" {
		s.Words = "gets messages"
	}

	return s
}

// receiverLook returns whose looks the state of a receiver has.
func receiverLook(r *task.AlertReceiver) string {
	if b := r.Blocked; b != nil {
		switch b.Why {
		case task.BlockPaused:
			return string(task.Paused)
		case task.BlockFrozen:
			return "frozen"
		}
		return string(task.Failed)
	}

	switch r.State {
	case task.ReceiverSending:
		return string(task.Running)
	case task.ReceiverFailed:
		return string(task.Failed)
	case task.ReceiverWaiting:
		return string(task.Queued)
	}

	return string(task.Succeeded)
}

// addReceivers adds the receivers of all alerts of the list.
func (p *alertsPage) addReceivers(r *Request, list []task.AlertStatus) {
	at := r.clockText("")
	byName := map[string]*receiverRow{}
	for i := range list {
		for _, status := range list[i].Receivers {
			row := byName[status.Receiver]
			if row == nil {
				row = &receiverRow{}
				byName[status.Receiver] = row
			}
			// A receiver may be forbidden to one namespace, and get the alerts of others.
			if row.Words == "" || status.Blocked != nil {
				row.receiverState = receiverStateOf(&task.AlertReceiver{Receiver: status.Receiver, Blocked: status.Blocked}, false, at)
			}

			switch status.State {
			case task.ReceiverNotified:
				row.Notified++
			case task.ReceiverFailed:
				row.Failed++
			case task.ReceiverWaiting, task.ReceiverSending:
				row.Waiting++
			}
		}
	}

	for _, name := range slices.Sorted(maps.Keys(byName)) {
		p.Receivers = append(p.Receivers, *byName[name])
	}
}

// addSilences adds the silences that are in force.
func (p *alertsPage) addSilences(ctx context.Context, r *Request) error {
	list, err := r.API.Alerts.Silences(ctx, p.Namespace)
	if err != nil {
		return err
	}

	for _, s := range list {
		may, err := r.May("pause", "tasks", s.Namespace)
		if err != nil {
			return err
		}
		p.Silences = append(p.Silences, silenceRow{s, may})
	}

	return nil
}

// silencePanelOf returns the form that the page shows; nil if it shows none.
func silencePanelOf(r *Request, rights *rightsCache, list []task.AlertStatus) *silencePanel {
	q := r.Query
	if q.Get("do") != "silence" {
		return nil
	}

	p := &silencePanel{Namespace: q.Get("in"), Glob: q.Get("tasks"), Selector: q.Get("labels")}
	for _, ns := range r.Namespaces() {
		if rights.may("pause", "tasks", ns) {
			p.Spaces = append(p.Spaces, ns)
		}
	}
	if len(p.Spaces) == 0 {
		return nil
	}

	if i := slices.IndexFunc(list, func(a task.AlertStatus) bool { return a.Namespace == p.Namespace && a.Task == q.Get("of") }); i >= 0 {
		for _, label := range labelTerms(list[i].Labels) {
			p.Labels = append(p.Labels, label.Text)
		}
	}

	return p
}

// alertsCommand returns the command line that shows the same, or does the same as the form.
func alertsCommand(v *View) []string {
	q := v.Query
	words := []string{"carillon", "alert", "list"}
	scope := []string{"-A"}
	if ns := q.Get("ns"); ns != "" {
		scope = []string{"-n", ns}
	}

	if q.Get("do") == "silence" {
		words = []string{"carillon", "alert", "silence", "--for", "2h", "--reason", "TEXT"}
		if ns := q.Get("in"); ns != "" {
			words = append(words, "-n", ns)
		}
		if labels := q.Get("labels"); labels != "" {
			return append(words, "--selector="+labels)
		}
		if tasks := q.Get("tasks"); tasks != "" {
			return commandWith(words, []string{tasks})
		}
		return words
	}

	words = append(words, scope...)
	if q.Get("show") == showClosed {
		words = append(words, "--closed")
	}
	if selector := strings.TrimSpace(q.Get("selector")); selector != "" {
		return append(words, "--selector="+selector)
	}
	if kind := q.Get("kind"); slices.Contains(alertKinds(), kind) && kind != string(task.AlertCluster) {
		words = append(words, "*:"+kind)
	}

	return words
}

// alertKinds are the kinds of alerts by which the list can be filtered.
func alertKinds() []string {
	var kinds []string
	for _, kind := range alert.Kinds {
		kinds = append(kinds, string(kind))
	}

	return append(kinds, string(task.AlertCluster))
}

// alertField is the field of a form with the name of an alert. oneField is that of a button that is about one alert, whatever is
// selected.
const (
	alertField = "alert"
	oneField   = "one"
)

// acknowledgeAlerts notes that the viewer works on alerts. Those that were closed meanwhile are not an error.
func acknowledgeAlerts(ctx context.Context, r *Request) (Done, error) {
	names := r.Form[alertField]
	if one := r.Form.Get(oneField); one != "" {
		names = []string{one}
	}
	if len(names) == 0 {
		return Done{}, task.Invalid(task.CodeRequired, alertField, "select at least one alert")
	}
	if len(names) > alertsShown {
		return Done{}, task.Invalid(task.CodeTooMany, alertField, "%d alerts are selected; at most %d can be acknowledged at once", len(names), alertsShown)
	}

	errs := make([]error, len(names))
	group := callgroup.New()
	group.SetLimit(changesAtOnce)
	for i, name := range names {
		group.Go(func() error {
			errs[i] = acknowledgeAlert(ctx, r, name)
			return nil
		})
	}
	_ = group.Wait()

	done, closed := 0, 0
	for _, err := range errs {
		switch {
		case err == nil:
			done++
		case len(names) > 1 && problemOf(err).Code == client.CodeConflict:
			closed++
		default:
			return Done{}, err
		}
	}

	message := "acknowledged " + countText(done, "alert")
	if len(names) == 1 {
		message = "acknowledged " + names[0]
	}
	if closed > 0 {
		message += fmt.Sprintf("; %d closed meanwhile", closed)
	}

	return Done{Message: message}, nil
}

// acknowledgeAlert acknowledges an alert by its full name: NAMESPACE/TASK:KIND, or cluster:CODE.
func acknowledgeAlert(ctx context.Context, r *Request, name string) error {
	object, kind, ok := strings.Cut(name, ":")
	namespace, taskName, inNamespace := strings.Cut(object, "/")

	var err error
	switch {
	case ok && object == "cluster":
		_, err = r.API.Alerts.AcknowledgeCluster(ctx, kind)
	case ok && inNamespace:
		_, err = r.API.Alerts.Acknowledge(ctx, namespace, taskName, task.AlertKind(kind))
	default:
		err = task.Invalid(task.CodeBadValue, alertField, "%s is not an alert; open the page again", task.Quote(name))
	}

	return err
}

// silenceAlerts holds back messages about the alerts of some tasks.
func silenceAlerts(ctx context.Context, r *Request) (Done, error) {
	namespace := r.Form.Get("namespace")
	pause, err := pauseRequest(r, r.Zone("").String())
	if err != nil {
		return Done{}, err
	}

	request := client.SilenceRequest{
		Glob: strings.TrimSpace(r.Form.Get("glob")), Selector: strings.TrimSpace(r.Form.Get("selector")), Until: pause.Until, Reason: pause.Reason,
	}
	if pause.For > 0 { // so that an error names the field of the form
		request.Until = task.At(r.Now.Add(pause.For.Std()))
	}

	s, err := r.API.Alerts.Silence(ctx, namespace, request, false)
	if err != nil {
		return Done{}, err
	}

	message := fmt.Sprintf("silenced %s in %s until %s; %s", s.What(), namespace, r.clockText("")(s.Until), countText(s.Alerts, "open alert"))

	return Done{To: r.Form.Get("back"), Message: message}, nil
}

// endSilence ends a silence before its time.
func endSilence(ctx context.Context, r *Request) (Done, error) {
	s, err := r.API.Alerts.EndSilence(ctx, r.Value("ns"), r.Value("id"))

	return Done{Message: "ended the silence of " + s.What() + " in " + r.Value("ns")}, err
}

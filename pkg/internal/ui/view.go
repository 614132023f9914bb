package ui

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"html/template"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Page is what the frame of every page shows.
type Page struct {
	Title   string
	Cluster string
	Node    string
	Version string
	Time    string // when the page was made
	Theme   string // light, dark or "": that of the system
	// Clear is set if the connection to the browser is not encrypted.
	Clear bool
	// Away is set if the cluster does not answer. The page then shows the last known state, or nothing.
	Away bool
}

// Viewer is who looks at a page.
type Viewer struct {
	Subject string
	Roles   []string // "editor in prod, test"
	Scope   string   // what the token limits them to; ""
	Until   task.Time
}

// NavItem is a link of the navigation.
type NavItem struct {
	Name, Label, Path, Key string
	Current                bool
	Count                  string // "" if it is not known
	Alert                  bool   // the count needs attention
}

// View is the dot of a screen's templates. Inside of range and with, templates reach it as $.
type View struct {
	*Request
	Page
	Data    any       // what Load has returned; nil if it failed
	Problem *Problem  // why it, or an action, failed
	Message string    // what an action did
	Stale   task.Time // of the last known state, if the page shows that
	Viewer  Viewer

	screen *Screen
	server *Server
	tmpl   *template.Template
	counts counts
	failed bool           // Load has returned an error with its data
	shown  []part         // the parts that were rendered
	sizes  map[string]int // of the parts in the rendering before, which tell about how large they become; nil if there was none
}

// At returns the path and query of the page.
func (v *View) At() string {
	if len(v.Query) == 0 {
		return v.Path
	}
	return v.Path + "?" + v.Query.Encode()
}

// Link returns a path with a query, and keeps the chosen time zone. Each {} of the path stands for one of the first pairs,
// which are escaped as a part of a path; the others are names and values of parameters. Parameters without a value are
// left out:
//
//	{{$.Link "/ui/tasks/{}/{}" .Namespace .Name "tab" "runs"}}
//
// Attributes that htmx interprets get paths only from Link.
func (v *View) Link(path string, pairs ...any) (string, error) {
	q := url.Values{}
	if zone := v.Query.Get(zoneParam); zone != "" {
		q.Set(zoneParam, zone)
	}

	return link(path, q, pairs)
}

// With returns the address of this page with other parameters: names and values, and an empty value removes one. The page
// of a list is left out, because the list is another one.
func (v *View) With(pairs ...any) (string, error) {
	q := url.Values{}
	for name, values := range v.Query {
		q[name] = values
	}
	q.Del(pageParam)

	return link(v.Path, q, pairs)
}

// pageParam is the parameter with the token of a page of a list.
const pageParam = "page"

// link fills in the placeholders of a path and adds parameters to its query.
func link(path string, q url.Values, pairs []any) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(path, "{}")
		b.WriteString(before)
		if !found {
			break
		}
		if len(pairs) == 0 {
			return "", fmt.Errorf("link %q: a value is missing", path)
		}

		part := fmt.Sprint(pairs[0])
		if part == "." || part == ".." {
			return "", fmt.Errorf("link %q: %q cannot be a part of a path", path, part)
		}
		b.WriteString(url.PathEscape(part))
		path, pairs = after, pairs[1:]
	}

	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("link %q: a parameter has no value", path)
	}
	for i := 0; i < len(pairs); i += 2 {
		name, value := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		if value == "" {
			q.Del(name)
		} else {
			q.Set(name, value)
		}
	}

	if len(q) > 0 {
		b.WriteString("?" + q.Encode())
	}

	return b.String(), nil
}

// Live shows a part of the screen that changes while somebody watches: an element with the part's name as its id. attrs are
// names and values of further attributes.
func (v *View) Live(name, tag string, attrs ...string) (template.HTML, error) {
	content, err := v.renderPart(name)
	if err != nil {
		return "", err
	}
	v.shown = append(v.shown, part{name, content, hashOf(content)})

	var b strings.Builder
	fmt.Fprintf(&b, `<%s id="%s"`, tag, name)
	for i := 0; i+1 < len(attrs); i += 2 {
		fmt.Fprintf(&b, ` %s="%s"`, attrs[i], template.HTMLEscapeString(attrs[i+1]))
	}
	if v.holds(name) {
		b.WriteString(" data-hold")
	}
	b.WriteString(">")
	b.Write(content)
	fmt.Fprintf(&b, "</%s>", tag)

	return template.HTML(b.String()), nil //nolint:gosec // the tag and the names of attributes are literals of templates
}

// holds reports whether the order of a part's rows changes only on request.
func (v *View) holds(name string) bool {
	for _, p := range v.screen.Parts {
		if p.Name == name {
			return p.Hold
		}
	}
	return false
}

// renderPart renders the template of a part.
func (v *View) renderPart(name string) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(v.sizes[name] + v.sizes[name]/16)
	if err := v.tmpl.ExecuteTemplate(&b, name, v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// hashOf returns a short hash of a part. It only saves sending what a page already shows.
func hashOf(content []byte) string {
	h := fnv.New64a()
	h.Write(content)
	return strconv.FormatUint(h.Sum64(), 36)
}

// Stream returns the address of the stream of this page. It names the parts that the page contains, so that the stream
// begins with those that differ.
func (v *View) Stream() (string, error) {
	have := make([]string, len(v.shown))
	for i, p := range v.shown {
		have[i] = p.name + "." + p.hash
	}

	return link("/ui/live", url.Values{}, []any{"at", v.At(), "have", strings.Join(have, " ")})
}

// IsLive reports whether the page changes while somebody watches. A page that was opened while the cluster does not answer
// waits for its state in the same way.
func (v *View) IsLive() bool {
	return len(v.screen.Parts) > 0 && (v.Away || v.Data != nil && !v.failed)
}

// AgeMS is how old the content of the page is, in milliseconds.
func (v *View) AgeMS() int64 {
	if v.Stale.IsZero() {
		return 0
	}
	return max(v.Now.Sub(v.Stale.Time).Milliseconds(), 0)
}

// Command returns the command line that shows the same, in the quoting of a shell.
func (v *View) Command() string {
	if v.screen.Command == nil {
		return ""
	}

	// No name begins so: the page does not exist, and the CLI would take the name for a flag.
	for _, name := range []string{"ns", "name", "id", "node"} {
		if strings.HasPrefix(v.Value(name), "-") {
			return ""
		}
	}

	words := v.screen.Command(v)
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}

	return strings.Join(quoted, " ")
}

// shellQuote quotes a word for a POSIX shell, if it needs that.
func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%^"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// negatedTerm matches a term of a query that begins with a minus sign, which the CLI does not take for a flag.
var negatedTerm = regexp.MustCompile(`^-[a-z]{4,}[:~]`)

// commandWith returns a command line with words that come from the address of the page. Words that the CLI would take for
// flags follow after --, because a link from somebody else must not be able to add flags to a line that people copy.
func commandWith(command, words []string) []string {
	if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") && !negatedTerm.MatchString(w) }) {
		command = append(command, "--")
	}
	return append(command, words...)
}

// RowID returns an id for an element from what identifies its content, such as a namespace and a name. Ids of rows must not
// contain what users have written.
func (v *View) RowID(kind string, words ...string) string {
	h := fnv.New64a()
	for _, w := range words {
		fmt.Fprintf(h, "%d:%s", len(w), w)
	}
	return kind + "-" + strconv.FormatUint(h.Sum64(), 36)
}

// When shows a time with its zone. timezone is that of the task that the time belongs to, if any.
func (v *View) When(t task.Time, timezone ...string) template.HTML {
	if t.IsZero() {
		return noValue
	}
	local := t.In(v.zoneFor(timezone))

	return timeElement(t.Time, "", v.dateText(local), exactText(local))
}

// Ago shows a time in the past. Scripts show how long ago it was.
func (v *View) Ago(t task.Time, timezone ...string) template.HTML {
	if t.IsZero() {
		return noValue
	}
	local := t.In(v.zoneFor(timezone))

	return timeElement(t.Time, "ago", v.dateText(local), exactText(local))
}

// Left shows a time in the future. Scripts show how much time is left.
func (v *View) Left(t task.Time, timezone ...string) template.HTML {
	if t.IsZero() {
		return noValue
	}
	local := t.In(v.zoneFor(timezone))

	return timeElement(t.Time, "left", v.dateText(local), exactText(local))
}

// TimeOfDay shows the time of day of a time whose day and zone are beside it.
func (v *View) TimeOfDay(t task.Time, timezone ...string) template.HTML {
	local := t.In(v.zoneFor(timezone))

	layout := time.TimeOnly
	if local.Nanosecond() != 0 {
		layout += ".000"
	}

	return timeElement(t.Time, "", local.Format(layout), exactText(local))
}

// noValue is the text of an empty cell, as in the CLI.
const noValue = template.HTML("–")

func (v *View) zoneFor(timezone []string) *time.Location {
	if len(timezone) > 0 {
		return v.Zone(timezone[0])
	}
	return v.Zone("")
}

// dateText formats a time with its zone. It depends on the present only by the year, so that pages do not change with time.
func (v *View) dateText(local time.Time) string {
	layout := "Mon 2 Jan 15:04"
	if local.Year() != v.Now.In(local.Location()).Year() {
		layout = "Mon 2 Jan 2006 15:04"
	}
	if local.Second() != 0 || local.Nanosecond() != 0 {
		layout += ":05"
	}

	return local.Format(layout + " MST")
}

// exactText formats a time to the millisecond.
func exactText(local time.Time) string { return local.Format("2006-01-02 15:04:05.000 MST") }

// timeElement returns a time element. kind says how scripts show it: "ago" or "left".
func timeElement(t time.Time, kind, text, title string) template.HTML {
	esc := template.HTMLEscapeString
	attr := ""
	if kind != "" {
		attr = ` data-` + kind
	}

	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s"%s>%s</time>`, t.UTC().Format(time.RFC3339Nano), esc(title), attr, esc(text))) //nolint:gosec // all texts are escaped
}

// Loaded reports whether the page has data to show.
func (v *View) Loaded() bool { return v.Data != nil }

// ZoneName names the zone of times.
func (v *View) ZoneName() string {
	if v.zone == nil {
		return "Task zones"
	}
	return v.zone.String()
}

// Param is a parameter of the page.
type Param struct{ Name, Value string }

// OtherParams are the parameters of the page that its forms keep, apart from those that they set themselves.
func (v *View) OtherParams(set ...string) []Param {
	set = append(set, zoneParam)

	return v.paramsWithout(set)
}

// KeptParams is OtherParams with the zone of times, for the forms of screens.
func (v *View) KeptParams(set ...string) []Param { return v.paramsWithout(append(set, pageParam)) }

func (v *View) paramsWithout(names []string) []Param {
	var list []Param
	for _, name := range slices.Sorted(maps.Keys(v.Query)) {
		if slices.Contains(names, name) {
			continue
		}
		for _, value := range v.Query[name] {
			list = append(list, Param{name, value})
		}
	}

	return list
}

// HasScreen reports whether there is a screen with a name, to link to.
func (v *View) HasScreen(name string) bool { return v.server.screenNamed(name) != nil }

// Faulty reports whether the problem of an action is about a field of its form, or about something within it.
func (v *View) Faulty(field string) bool {
	return v.Problem != nil && v.Problem.messageAbout(field) != ""
}

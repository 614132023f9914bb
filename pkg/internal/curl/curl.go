// Package curl writes the request of an HTTP action as a curl command for a POSIX shell, with which a person can repeat it.
//
// The command contains the values that the run had. It never contains a secret: each one is a shell variable that the
// person sets. So it can be pasted into a terminal, a ticket or a chat.
//
// The package does no I/O and does not know the node's policy: a request that a node refuses to send can still be
// written.
package curl

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Command is a curl command.
type Command struct {
	Text string `json:"command" doc:"The command, for a POSIX shell."`
	// Variables are the shell variables that the command uses, in the order of their names.
	Variables []Variable `json:"variables"`
	// Notes say what the command cannot contain, such as a signature.
	Notes []string `json:"notes,omitempty"`
}

// Variable is a shell variable of a command.
type Variable struct {
	Name string `json:"name"`
	From string `json:"from" doc:"Where its value is: secret NAME/KEY, or env.NAME for the environment of the run."`
}

// Of returns the command that repeats the request of a run. t is the version of its task that was in force. An error says
// why there is none.
func Of(t task.Spec, r task.Run) (Command, error) {
	h := t.Action.HTTP
	if h == nil {
		return Command{}, fmt.Errorf("the action of the task is %s; only the request of an http action can be written as a curl command", cmp.Or(t.Action.Kind(), "unknown"))
	}

	c := &command{run: r, names: map[string]string{}}
	c.addRequest(h, cmp.Or(t.Timeout, task.DefaultHTTPTimeout))
	if c.err != nil {
		return Command{}, c.err
	}

	slices.Sort(c.notes)
	out := Command{Text: strings.Join(c.words, " \\\n  ") + "\n", Variables: []Variable{}, Notes: slices.Compact(c.notes)}
	for _, ref := range slices.SortedFunc(maps.Keys(c.names), func(a, b string) int { return cmp.Compare(c.names[a], c.names[b]) }) {
		out.Variables = append(out.Variables, Variable{Name: c.names[ref], From: strings.Replace(ref, task.SecretRefPrefix, "secret ", 1)})
	}

	return out, nil
}

// command collects the words of a command.
type command struct {
	run   task.Run
	words []string
	notes []string
	names map[string]string // the shell variable of each secret and each variable of the run, by its reference
	err   error             // the first error
}

// addRequest adds the words for a request.
func (c *command) addRequest(h *task.HTTP, timeout task.Duration) {
	// -g passes on braces and brackets in the URL as they are. HTTP/1.1 is what nodes use.
	c.words = []string{"curl -g -i --http1.1"}

	switch method := h.EffectiveMethod(); {
	case method == http.MethodHead:
		c.words[0] += " --head"
	default:
		c.words[0] += " -X " + method
	}

	c.words[0] += " --max-time " + strconv.FormatFloat(timeout.Std().Seconds(), 'f', -1, 64)
	if h.Redirects > 0 {
		c.words[0] += " --location --max-redirs " + strconv.Itoa(h.Redirects)
		c.notes = append(c.notes, "curl sends headers to redirected URLs by rules of its own")
	}

	c.addURL(h)
	c.addTLS(h.TLS)
	c.addHeaders(h)
	c.addAuth(h.Auth)
	c.addBody(h)
}

// addURL adds the URL.
func (c *command) addURL(h *task.HTTP) {
	if ref, secret := h.URLSecret(); secret {
		c.words = append(c.words, c.quoted(c.secret(ref)))
		return
	}

	before := "" // what of the URL precedes the current part
	text := c.expand("action.http.url", h.URL, func(value string) string {
		if _, rest, _ := strings.Cut(before, "://"); strings.Contains(rest, "?") {
			return url.QueryEscape(value)
		}
		return url.PathEscape(value)
	}, func(text string) string { before += text; return text })

	if slices.ContainsFunc(text, func(p piece) bool { return strings.Contains(p.text, "/.") }) {
		c.words[0] += " --path-as-is"
	}

	if slices.ContainsFunc(text, func(p piece) bool { return p.variable != "" }) {
		c.notes = append(c.notes, "escape the values of variables in the URL")
	}

	c.words = append(c.words, c.quoted(text...))
}

// addHeaders adds the headers that every request has, and those of the task.
func (c *command) addHeaders(h *task.HTTP) {
	add := func(name string, value ...piece) {
		c.words = append(c.words, "-H "+c.quoted(append([]piece{{text: name + ": "}}, value...)...))
	}

	add("Idempotency-Key", piece{text: c.run.ID})
	add("Carillon-Fencing-Token", piece{text: strconv.FormatInt(c.run.Token, 10)})

	hasType := false
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		hasType = hasType || strings.EqualFold(name, "Content-Type")
		add(name, c.expand("action.http.headers."+name, h.Headers[name], nil, nil)...)
	}

	switch {
	case hasType, !h.HasBody():
	case len(h.JSON) > 0:
		add("Content-Type", piece{text: "application/json"})
	case h.Body != "":
		add("Content-Type", piece{text: "text/plain; charset=utf-8"})
	}
}

// addAuth adds the credentials.
func (c *command) addAuth(a *task.HTTPAuth) {
	switch {
	case a == nil:
	case a.Bearer != "":
		c.words = append(c.words, "-H "+c.quoted(piece{text: "Authorization: Bearer "}, c.secret(a.Bearer)))
	case a.Basic != "":
		c.words = append(c.words, "-u "+c.quoted(c.secret(a.Basic)))
	case a.Signature != "":
		c.notes = append(c.notes, "the signature is missing: the webhook-* headers depend on the time and on secret "+a.Signature)
	}
}

// addTLS adds the certificates. They are secrets, so they are passed as files that exist only while curl runs.
func (c *command) addTLS(t *task.HTTPTLS) {
	if t == nil {
		return
	}

	for _, f := range []struct{ option, ref string }{{"--cacert", t.CA}, {"--cert", t.Cert}} {
		if ref := strings.TrimPrefix(f.ref, task.SecretRefPrefix); ref != "" {
			c.words = append(c.words, fmt.Sprintf("%s <(printf %%s %s)", f.option, c.quoted(c.secret(ref))))
		}
	}

	c.notes = append(c.notes, "<(…) needs bash or zsh")
}

// addBody adds the body.
func (c *command) addBody(h *task.HTTP) {
	switch {
	case len(h.JSON) > 0:
		c.words = append(c.words, "--data-raw "+c.quoted(c.expandJSON(h.JSON)...))

	case len(h.Form) > 0:
		for _, name := range slices.Sorted(maps.Keys(h.Form)) {
			// curl escapes the value, but not the name.
			value := c.expand("action.http.form."+name, h.Form[name], nil, nil)
			c.words = append(c.words, "--data-urlencode "+c.quoted(append([]piece{{text: url.QueryEscape(name) + "="}}, value...)...))
		}

	case strings.HasPrefix(h.Body, task.SecretRefPrefix):
		c.words = append(c.words, "--data-raw "+c.quoted(c.secret(strings.TrimPrefix(h.Body, task.SecretRefPrefix))))

	case strings.HasPrefix(h.Body, task.EnvBodyPrefix):
		c.words = append(c.words, "--data-raw "+c.quoted(piece{variable: c.variable(task.EnvRefPrefix + strings.TrimPrefix(h.Body, task.EnvBodyPrefix))}))

	case h.Body != "":
		c.words = append(c.words, "--data-raw "+c.quoted(piece{text: h.Body}))
	}
}

// expand returns the text of a template. escape escapes the values of the run for their place, and seen is called with
// each other text; both may be nil.
func (c *command) expand(field, text string, escape, seen func(string) string) []piece {
	t, err := task.ParseTemplate(text)
	if err != nil {
		c.fail(fmt.Errorf("%s: %w", field, err))
		return nil
	}

	var list []piece
	for _, p := range t {
		switch value, known := c.valueOf(p.Ref); {
		case p.Ref == "":
			if seen != nil {
				seen(p.Text)
			}
			list = append(list, piece{text: p.Text})
		case !known:
			list = append(list, piece{variable: c.variable(p.Ref)})
		case escape != nil:
			list = append(list, piece{text: escape(value)})
		default:
			list = append(list, piece{text: value})
		}
	}

	return list
}

// expandJSON returns a JSON value with the templates in its strings expanded. It changes nothing else.
func (c *command) expandJSON(raw json.RawMessage) []piece {
	escape := func(s string) string { return strings.Trim(jsonString(s), `"`) }
	var list []piece

	for rest := string(raw); rest != ""; {
		at := strings.IndexByte(rest, '"')
		if at < 0 {
			return append(list, piece{text: rest})
		}

		end := at + 1
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}

		end = min(end+1, len(rest))
		list = append(list, piece{text: rest[:at]})

		var s string
		if literal := rest[at:end]; json.Unmarshal([]byte(literal), &s) != nil || !strings.Contains(s, "${") {
			list = append(list, piece{text: literal})
		} else {
			list = append(list, piece{text: `"`})
			for _, p := range c.expand("action.http.json", s, nil, nil) {
				if p.variable != "" {
					c.notes = append(c.notes, "escape the value of $"+p.variable+" for a JSON string")
				}
				list = append(list, piece{text: escape(p.text), variable: p.variable})
			}
			list = append(list, piece{text: `"`})
		}

		rest = rest[end:]
	}

	return list
}

// jsonString returns a JSON string. Unlike json.Marshal, it does not escape <, > and &.
func jsonString(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can always be encoded

	return strings.TrimSuffix(b.String(), "\n")
}

// valueOf returns the value of a reference. known is false for a secret and for a variable of the run, whose value is not
// on record.
func (c *command) valueOf(ref string) (value string, known bool) {
	r := c.run
	_, index, isPart := task.ParentOf(r.ID)

	switch ref {
	case "run.id":
		return r.ID, true
	case "run.scheduled_time":
		b, err := r.ScheduledTime.MarshalText()
		c.fail(err)
		return string(b), true
	case "run.attempt":
		return strconv.Itoa(max(r.Attempt, 1)), true
	case "run.token":
		return strconv.FormatInt(r.Token, 10), true
	case "task.name":
		return r.Task, true
	case "task.namespace":
		return r.Namespace, true
	case "node.name":
		return r.Node, true
	case "part.index", "part.count":
		if !isPart {
			c.fail(fmt.Errorf("the request depends on the part: name a part of the run, such as %s", task.PartID(r.ID, 0)))
		}
		if ref == "part.index" {
			return strconv.Itoa(index), true
		}
		return strconv.Itoa(r.PartCount), true
	}

	if ref == "run.period" || strings.HasPrefix(ref, task.CauseRefPrefix) {
		value, ok := r.CausationValue(ref)
		if !ok {
			c.fail(fmt.Errorf("the run has no value for %s", task.Quote("${"+ref+"}")))
		}

		return value, true
	}

	return "", false
}

// secret returns the variable for a value of a secret.
func (c *command) secret(ref string) piece {
	return piece{variable: c.variable(task.SecretRefPrefix + ref)}
}

// fail keeps the first error.
func (c *command) fail(err error) { c.err = cmp.Or(c.err, err) }

// piece is a part of a word: a text, or the value of a shell variable after it.
type piece struct{ text, variable string }

// safeWord matches words that a shell does not change.
var safeWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted returns a word for a shell. Text is in single quotes, in which nothing is special; variables are in double quotes,
// so that their values are not split.
func (c *command) quoted(pieces ...piece) string {
	var b, text strings.Builder

	flush := func() {
		if text.Len() > 0 {
			b.WriteString(quoteText(text.String()))
		}
		text.Reset()
	}

	for _, p := range pieces {
		text.WriteString(p.text)
		if p.variable != "" {
			flush()
			b.WriteString(`"$` + p.variable + `"`)
		}
	}

	flush()
	if b.Len() == 0 {
		return "''"
	}

	return b.String()
}

// quoteText returns a text for a shell.
func quoteText(s string) string {
	if safeWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// notInVariable matches what the name of a shell variable must not contain.
var notInVariable = regexp.MustCompile(`[^A-Z0-9_]+`)

// variable returns the name of the shell variable for a reference: API_KEY for secret:api/key, and the name itself for a
// variable of the run. Two references never share a name.
func (c *command) variable(ref string) string {
	if name, ok := c.names[ref]; ok {
		return name
	}

	base, isEnv := strings.CutPrefix(ref, task.EnvRefPrefix)
	if !isEnv {
		base = notInVariable.ReplaceAllString(strings.ToUpper(strings.TrimPrefix(ref, task.SecretRefPrefix)), "_")
	}
	if base[0] >= '0' && base[0] <= '9' {
		base = "_" + base
	}

	name := base
	for n := 2; slices.Contains(slices.Collect(maps.Values(c.names)), name); n++ {
		name = base + "_" + strconv.Itoa(n)
	}

	c.names[ref] = name

	return name
}

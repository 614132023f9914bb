package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// templates are the parsed templates.
type templates struct {
	static  *staticFiles
	login   *template.Template
	problem *template.Template
	screens map[string]*template.Template // by the name of the screen
}

// frameFiles are the files that all pages share.
var frameFiles = []string{"templates/layout.html", "templates/parts.html", "templates/flow.html"}

// parseTemplates parses the templates of some screens, and reads the static files that they name.
func parseTemplates(fsys fs.FS, list []Screen) (*templates, error) {
	static, err := newStaticFiles(fsys)
	if err != nil {
		return nil, err
	}

	frame, err := template.New("layout.html").Funcs(functions(static)).ParseFS(fsys, frameFiles...)
	if err != nil {
		return nil, err
	}

	parse := func(name string) (*template.Template, error) {
		t, err := frame.Clone()
		if err != nil {
			return nil, err
		}
		return t.ParseFS(fsys, "templates/"+name+".html")
	}

	t := &templates{static: static, screens: map[string]*template.Template{}}
	if t.login, err = parse("login"); err != nil {
		return nil, err
	}
	if t.problem, err = parse("problem"); err != nil {
		return nil, err
	}

	for _, s := range list {
		if t.screens[s.Name], err = parse(cmp.Or(s.Template, s.Name)); err != nil {
			return nil, err
		}
		for _, p := range s.Parts {
			if t.screens[s.Name].Lookup(p.Name) == nil {
				return nil, fmt.Errorf("screen %s: its template does not define the part %q", s.Name, p.Name)
			}
		}
	}

	return t, nil
}

// functions are the functions of templates that do not depend on the page. Those that do are methods of View.
func functions(static *staticFiles) template.FuncMap {
	return template.FuncMap{
		"static":   static.path,
		"vals":     vals,
		"state":    stateBadge,
		"bytes":    wording.Bytes,
		"duration": durationText,
		"count":    wording.Grouped,
		"lines":    linesIn,
		"group":    func(n int64) string { return wording.Grouped(int(n)) },
		"sign":     stateSign,
		"took":     tookText,
		"result":   resultBadge,
		"problem":  problemBadge,
		"severity": severityBadge,

		"problemClass": func(s overview.Severity) string { return problemClasses[s] },
		"meter":        meter,
		"actor":        (*task.Actor).Name,
		"restored":     wording.RestoredText,
		"list":         func(items ...string) []string { return items },
	}
}

// linesIn returns the number of lines of a text field with a text, between least and 10.
func linesIn(text string, least int) int {
	return min(max(strings.Count(strings.TrimRight(text, "\n"), "\n")+1, least), 10)
}

// vals returns names and values as the JSON that htmx expects in hx-vals.
func vals(pairs ...any) (string, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("vals: a name has no value")
	}

	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	b, err := json.Marshal(all)

	return string(b), err
}

// badge is how a state looks: a symbol and a color, which only repeats the word.
type badge struct{ symbol, class string }

// Class and Show return the color of the badge and the badge with a text, for templates.
func (b badge) Class() string                  { return b.class }
func (b badge) Show(text string) template.HTML { return badgeWith(b, text) }

// badges are the looks of states of tasks and nodes.
var badges = map[string]badge{
	"failing": {"✗", "bad"}, "unreadable": {"!", "bad"}, "frozen": {"❄", "warn"}, "waiting": {"…", "busy"}, "ended": {"■", "idle"}, "ok": {"✓", "good"},

	task.NodeReady: {"✓", "good"}, task.NodeCordoned: {"◐", "warn"}, task.NodeDraining: {"↓", "warn"},
}

// stateBadge shows a state as a symbol and a word, in a color. words replace the word: "exit 1".
func stateBadge(state any, words ...string) template.HTML {
	name := fmt.Sprint(state)
	text := plainState(name)
	if len(words) > 0 {
		text = words[0]
	}

	return badgeWith(badgeOf(name), text)
}

// badgeOf returns how a state looks.
func badgeOf(state string) badge {
	if look, ok := wording.StateLooks[task.State(state)]; ok {
		return badge{look.Sign, look.Tone}
	}
	if look, ok := badges[state]; ok {
		return look
	}
	return badge{"?", "idle"}
}

// badgeWith shows a text beside a symbol.
func badgeWith(look badge, text string) template.HTML {
	esc := template.HTMLEscapeString
	return template.HTML(fmt.Sprintf(`<span class="state %s"><span class="sign" aria-hidden="true">%s</span> %s</span>`, look.class, esc(look.symbol), esc(text))) //nolint:gosec // the texts are escaped
}

// problemClasses are the colors of problems.
var problemClasses = map[overview.Severity]string{overview.Critical: "bad", overview.Warning: "warn", overview.Info: "note"}

// problemBadge shows the kind of a group of problems.
func problemBadge(g problemGroup) template.HTML {
	return badgeWith(badge{g.Sign, problemClasses[g.Severity]}, g.Title)
}

// severities are the looks of the severities of alerts.
var severities = map[string]badge{"critical": {"▲", "bad"}, "error": {"✗", "bad"}, "warning": {"!", "warn"}, "info": {"○", "note"}}

// severityBadge shows the severity of an alert.
func severityBadge(severity string) template.HTML { return badgeWith(severities[severity], severity) }

// stateSign shows a state as its symbol, where words are given for several of them together.
func stateSign(state any) template.HTML {
	name := fmt.Sprint(state)
	if sign, ok := signs[name]; ok {
		return sign
	}
	return newSign(name, badgeOf(name))
}

// signs are the symbols of all states of runs. A list shows ten in each row.
var signs = func() map[string]template.HTML {
	all := map[string]template.HTML{}
	for state := range wording.StateLooks {
		all[string(state)] = newSign(string(state), badgeOf(string(state)))
	}
	return all
}()

func newSign(state string, look badge) template.HTML {
	return template.HTML(fmt.Sprintf(`<span class="state %s" title="%s"><span class="sign">%s</span></span>`, look.class, template.HTMLEscapeString(plainState(state)), look.symbol)) //nolint:gosec // the text is escaped
}

// tookText returns how long an ended run took.
func tookText(r *task.Run) string {
	if r.StartedAt.IsZero() || r.EndedAt.IsZero() {
		return string(noValue)
	}
	return task.Duration(wording.RunDuration(*r, time.Time{})).Approximate()
}

// resultBadge shows how a run ended, or what it does, in the words of the CLI.
func resultBadge(r *task.Run) template.HTML {
	if r.State == task.Paused { // without for how long, because that changes all the time
		return stateBadge(r.State)
	}

	return stateBadge(r.State, wording.RunResult(*r, r.LastSeen().Time))
}

// meter shows a part of a whole as a bar. The numbers must be beside it, because it says nothing to screen readers.
func meter(part, whole int) template.HTML {
	width := 0
	if whole > 0 {
		width = min(max(part, 0)*100/whole, 100)
	}

	return template.HTML(fmt.Sprintf(`<svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="10"/><rect class="fill" width="%d" height="10"/></svg>`, width))
}

// durationText formats a duration briefly.
func durationText(d any) (string, error) {
	switch d := d.(type) {
	case time.Duration:
		return task.Duration(d).Approximate(), nil
	case task.Duration:
		return d.Approximate(), nil
	case int64:
		return millisecondsText(d), nil
	case *int64:
		if d == nil {
			return string(noValue), nil
		}
		return millisecondsText(*d), nil
	}

	return "", fmt.Errorf("duration: %T is none", d)
}

// millisecondsText formats a duration in milliseconds, as the API has them.
func millisecondsText(ms int64) string {
	return task.Duration(time.Duration(ms) * time.Millisecond).Approximate()
}

// htmx.min.js and hx-sse.min.js are htmx 4.0.1 and its extension for server-sent events, from the npm package htmx.org.
//
//go:embed static templates
var embedded embed.FS

// scripts are the files of the one script that pages load, in order: htmx initializes itself after the script has run,
// and must have its extension by then.
var scripts = []string{"htmx.min.js", "hx-sse.min.js", "app.js", "drafts.js", "output.js"}

// scriptName is the name of the script that contains them.
const scriptName = "carillon.js"

// contentTypes are the types of the static files that are served, by extension.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// staticFiles are the files that pages refer to. Their names contain a hash of their content, so that browsers may keep
// them for ever.
type staticFiles struct {
	paths map[string]string      // by name
	files map[string]*staticFile // by name with hash
}

type staticFile struct {
	contentType string
	content     []byte
}

// newStaticFiles reads the files.
func newStaticFiles(fsys fs.FS) (*staticFiles, error) {
	s := &staticFiles{paths: map[string]string{}, files: map[string]*staticFile{}}

	var script bytes.Buffer
	for _, name := range scripts {
		b, err := fs.ReadFile(fsys, "static/"+name)
		if err != nil {
			return nil, err
		}
		script.Write(bytes.TrimRight(b, "\n"))
		script.WriteString("\n;\n")
	}
	s.add(scriptName, script.Bytes())

	names, err := fs.Glob(fsys, "static/*")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		ext := path.Ext(name)
		if contentTypes[ext] == "" || ext == ".js" {
			continue
		}

		b, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		s.add(path.Base(name), b)
	}

	return s, nil
}

// add adds a file.
func (s *staticFiles) add(name string, content []byte) {
	ext := path.Ext(name)
	sum := sha256.Sum256(content)
	hashed := fmt.Sprintf("%s-%s%s", strings.TrimSuffix(name, ext), hex.EncodeToString(sum[:6]), ext)
	s.paths[name], s.files[hashed] = "/ui/static/"+hashed, &staticFile{contentTypes[ext], content}
}

// path returns the path of a file, for templates.
func (s *staticFiles) path(name string) (string, error) {
	p, ok := s.paths[name]
	if !ok {
		return "", fmt.Errorf("there is no static file %q", name)
	}
	return p, nil
}

// serve serves a file by its name with the hash.
func (s *staticFiles) serve(w http.ResponseWriter, r *http.Request) {
	f, ok := s.files[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}

	h := w.Header()
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Content-Type", f.contentType)
	writeCompressed(w, r, http.StatusOK, f.content)
}

// compress compresses answers with gzip if the browser accepts that. Small ones fit into a packet or two anyway.
var compress = func() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		panic(err) // the options are constant
	}

	return wrap
}()

// writeCompressed writes an answer, compressed if the browser accepts that.
func writeCompressed(w http.ResponseWriter, r *http.Request, status int, content []byte) {
	compress(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write(content) // an error means that the browser has gone
	})).ServeHTTP(w, r)
}

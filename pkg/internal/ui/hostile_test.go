package ui

import (
	"bytes"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// fixturePages are a page of each screen that exists in the world of TestScreens_ShowHostileTexts. A new screen adds one.
var fixturePages = map[string]string{
	"now":     "/ui",
	"tasks":   "/ui/tasks?q=name~w",
	"task":    "/ui/tasks/prod/web?tab=versions&to=1",
	"new":     "/ui/tasks/new",
	"edit":    "/ui/tasks/prod/web/edit",
	"bulk":    "/ui/tasks/bulk?do=pause&scope=all",
	"deleted": "/ui/tasks/deleted?ns=prod",
	"nodes":   "/ui/nodes",
	"runs":    "/ui/runs?show=active",
	"run":     "/ui/runs/prod/20261120T22", // a prefix of its id
	"node":    "/ui/nodes/node-a?do=drain",
	"shards":  "/ui/shards",
	"why":     "/ui/why/prod/web?at=2026-11-20T22:00:00Z",
	"load":    "/ui/load?minute=2026-11-20T23:00:00Z",
	"events":  "/ui/events?since=1h",
	"health":  "/ui/health",
	"alerts":  "/ui/alerts?do=silence&in=prod&tasks=web&of=web",
}

// hostileText would leave any place of a page, a script, a URL, or a line of a stream.
const hostileText = "\"'`><xss onload=alert(1)>&</td></tr></table><hx-partial hx-target=\"#nav\">${x}\r\nevent: login\x00\u2028"

// Each screen shows its data as text, whatever texts they contain: the test replaces all texts in the data of a page by a
// hostile one, and fills in everything that the page may show.
func TestScreens_ShowHostileTexts(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.trigger("prod", "web")
	w.online("node-a")
	ann := w.as("user:ann")
	who, ok := w.ui.sessionWith(ann.secret)
	if !ok {
		t.Fatal("there is no session")
	}

	for i := range w.ui.list {
		screen := &w.ui.list[i]
		t.Run(screen.Name, func(t *testing.T) {
			at, ok := fixturePages[screen.Name]
			if !ok {
				t.Fatal("add the screen to fixturePages")
			}

			_, r := w.ui.screenAt(t.Context(), at)
			q, err := w.ui.newRequest(r, who)
			must(t, err)
			data, err := screen.Load(t.Context(), q)
			must(t, err)

			for _, depth := range []int{0, 8} { // without anything but texts, and filled in
				v := w.ui.newView(r, q, who, screen)
				v.Data = withHostileTexts(data, depth)
				v.Title = screen.Title(v)
				v.Message = hostileText
				v.Problem = &Problem{Status: http.StatusConflict, Field: hostileText, Message: hostileText, Hint: hostileText}
				v.Viewer = Viewer{Subject: hostileText, Roles: []string{hostileText}, Scope: hostileText}
				for name := range v.Query {
					v.Query.Set(name, hostileText)
				}

				var page bytes.Buffer
				must(t, v.tmpl.ExecuteTemplate(&page, "layout.html", v))
				checkEscaped(t, page.String())

				var stream bytes.Buffer
				state := &pageState{}
				for _, name := range screen.partNames() {
					content, err := v.renderPart(name)
					must(t, err)
					state.parts = append(state.parts, part{name: name, content: content})
				}
				appendData(&stream, encodeWhole(state, nil))
				checkEscaped(t, stream.String())
				for line := range strings.SplitSeq(strings.ReplaceAll(stream.String(), "\r", "\n"), "\n") {
					if line != "" && !strings.HasPrefix(line, "data: ") {
						t.Errorf("a text has ended a line of the stream: %q", line)
					}
				}
			}
		})
	}
}

// checkEscaped checks that the hostile text is only text.
func checkEscaped(t *testing.T, html string) {
	t.Helper()
	for _, bad := range []string{"<xss", "><hx-partial hx-target=\"#nav\">$"} {
		if at := strings.Index(html, bad); at >= 0 {
			t.Errorf("a text of a user is HTML: …%q…", html[max(at-200, 0):min(at+200, len(html))])
		}
	}
}

// withHostileTexts returns a copy of a value in which each text is hostile. Up to a depth, empty lists get an element, and
// pointers to nothing get something.
func withHostileTexts(data any, depth int) any {
	return fill(reflect.ValueOf(data), depth).Interface()
}

func fill(v reflect.Value, depth int) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)

	switch v.Kind() {
	case reflect.String:
		out.SetString(hostileText)
	case reflect.Bool, reflect.Int, reflect.Int64:
	case reflect.Pointer:
		if v.IsNil() {
			if depth <= 0 {
				return out
			}
			v = reflect.New(v.Type().Elem())
		}
		out.Set(reflect.New(v.Type().Elem()))
		out.Elem().Set(fill(v.Elem(), depth-1))
	case reflect.Slice:
		n := v.Len()
		if n == 0 && depth > 0 {
			n, v = 1, reflect.MakeSlice(v.Type(), 1, 1)
		}
		out.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			out.Index(i).Set(fill(v.Index(i), depth-1))
		}
	case reflect.Map:
		out.Set(reflect.MakeMap(v.Type()))
		if v.Type().Key().Kind() == reflect.String && depth > 0 {
			out.SetMapIndex(reflect.ValueOf(hostileText).Convert(v.Type().Key()), fill(reflect.New(v.Type().Elem()).Elem(), depth-1))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[task.Time]() || v.Type() == reflect.TypeFor[time.Time]() {
			return out
		}
		for i := range v.NumField() {
			if out.Field(i).CanSet() {
				out.Field(i).Set(fill(v.Field(i), depth-1))
			}
		}
	}

	return out
}

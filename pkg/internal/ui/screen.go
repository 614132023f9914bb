package ui

import (
	"context"
	"time"
)

// Screen is a page. Its file is screen_NAME.go, with its template in templates/NAME.html.
type Screen struct {
	// Name is the name of the template, and identifies the screen.
	Name string
	// Template is the name of its template, if that is another one: templates/TEMPLATE.html.
	Template string
	// Pattern is the path, as for http.ServeMux without a method: "/ui/tasks/{ns}/{name}".
	Pattern string
	// Nav is the name of the screen in the navigation that is marked while this one is shown: its own, or that of the
	// list that it belongs to.
	Nav string
	// Title returns the title of the page. The data are those that Load has returned; they are nil if it has failed.
	Title func(v *View) string
	// Load reads what the page shows. It is called with the rights of one viewer, and what it returns is also shown to
	// others with the same rights. So it must not depend on who the viewer is. It may return data together with an error:
	// then the page shows both, for example a query that is not valid.
	Load func(ctx context.Context, r *Request) (any, error)
	// Command returns the command line that shows the same, as words.
	Command func(v *View) []string
	// Parts are the parts of the template that change while somebody watches. The template shows each of them with
	// {{$.Live "name" "tag"}}, and defines a template of that name.
	Parts []Part
	// Every is the least time between two renderings for viewers; 0 means a second.
	Every time.Duration
	// Actions are what forms on the page do.
	Actions []Action
	// Downloads are files that the page links to.
	Downloads []Download
	// Feed, if set, sends further events on the stream of each viewer, such as lines of output. Unlike Load, it is called
	// for each viewer, with that viewer's credential, and its events are not shared. It returns when ctx ends or it has
	// nothing more to send. last is the id of the last of its events that the page has received; "" if there is none.
	Feed func(ctx context.Context, r *Request, last string, send func(FeedEvent) error) error
}

// Part is a part of a screen that changes while somebody watches.
type Part struct {
	// Name is the name of the template, and the id of the element.
	Name string
	// Hold keeps the order of the rows: if rows come, go or move, the viewer is told how many, and sees them on request.
	// Rows are the elements <tr id="…"> of the part. A row that changes is updated in any case.
	Hold bool
}

// Action is what a form does. The form posts to a path that matches Pattern. Run calls the API; it needs no checks of its
// own. If it fails, the page is shown again with the error at its field, and with what was entered: the form must have a
// field "at" with the path and query of the page, {{$.At}}.
type Action struct {
	Pattern string // of the path: "/ui/tasks/{ns}/{name}/pause"
	Run     func(ctx context.Context, r *Request) (Done, error)
}

// Done is the result of an action.
type Done struct {
	To      string // the page to show next, below /ui; "" means the page with the form
	Message string // what was done: "web-1 is paused"; shown once
	// Result, if set, is shown at once on the page of the form, with what was entered: a preview, or a report that is too
	// long for a message. Load finds it in Request.Result.
	Result any
}

// screens returns all screens, in the order of the navigation.
func screens() []Screen {
	return []Screen{
		nowScreen(),
		tasksScreen(),
		bulkScreen(),
		taskScreen(),
		runsScreen(),
		runScreen(),
		newTaskScreen(),
		editTaskScreen(),
		nodesScreen(),
		nodeScreen(),
		shardsScreen(),
		whyScreen(),
		loadScreen(),
		eventsScreen(),
		healthScreen(),
	}
}

// navigation is the order of the navigation. Screens that do not exist are left out.
var navigation = []navEntry{
	{screen: "now", label: "Now", key: "n"},
	{screen: "tasks", label: "Tasks", key: "t"},
	{screen: "runs", label: "Runs", key: "r"},
	{screen: "load", label: "Load", key: "l"},
	{screen: "nodes", label: "Nodes", key: "o"},
	{screen: "shards", label: "Shards", key: "s"},
	{screen: "events", label: "Events", key: "e"},
	{screen: "health", label: "Health", key: "h"},
}

// navEntry is an entry of the navigation.
type navEntry struct {
	screen string
	label  string
	key    string // opens the screen, after g
}

// defaultEvery is the least time between two renderings of a screen.
const defaultEvery = time.Second

func (s *Screen) every() time.Duration {
	if s.Every > 0 {
		return s.Every
	}
	return defaultEvery
}
